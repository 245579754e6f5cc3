"""A rank of a DDP training that is slow is named by its profile, though its steps take as long as all others'."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, compute, instance_info, plugins
from outrider.engine.cli.profile import take_profile
from outrider.engine.profiles.merged import Merged, facts, lines_of
from outrider.engine.runs.names import runs_folder
from outrider.engine.runs.reader import found_runs

pytestmark = pytest.mark.anyio
RANKS, SLEEP_S, TIMES = 4, 0.03, 10


@compute
def train(folder: str) -> int:
    """Train until the folder says so. The rank that its file ``sleeper`` names sleeps in each step."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    rank = instance_info().rank
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, end, steps = torch.randn(64, 64), torch.zeros(1), 0
    while not end.item():
        if Path(folder, "sleeper").read_text() == str(rank):
            time.sleep(SLEEP_S)
        time.sleep(0.01)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        steps += 1
        Path(folder, f"begun-{rank}").touch()
        if steps % 10 == 0:
            end.fill_(Path(folder, "end").exists())
            torch.distributed.all_reduce(end)
    return steps


async def profiles(folder: Path, sleepers: list[str]) -> list[Merged]:
    """Take one after the other of the same training. ``sleepers``: who sleeps while each is taken; "": nobody."""
    found = list[Merged]()
    (folder / "sleeper").write_text("")
    options: dict[str, Any] = {"provider": Local(), "nodes": RANKS, "plugins": [plugins.torch()], "console": "silent"}
    async with Pool(**options, run="ddp") as pool:
        running = asyncio.ensure_future(pool.broadcast(train(str(folder))))
        while len([*folder.glob("begun-*")]) < RANKS:
            assert not running.done()
            await asyncio.sleep(0.05)
        (run,) = found_runs(runs_folder())
        for sleeper in sleepers:
            (folder / "sleeper").write_text(sleeper)
            found.append(await asyncio.to_thread(take_profile, run, steps=5, seconds=20.0))
        (folder / "end").touch()
        assert len(set(await running)) == 1
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    return tmp_path


async def test_the_rank_that_sleeps_is_named_and_its_trace_shows_all_ranks(folder: Path) -> None:
    sleeping, awake = await profiles(folder, ["2", ""])
    assert sleeping.table is not None
    assert sleeping.table.stragglers == [2], lines_of(sleeping)
    assert SLEEP_S / 2 < sleeping.table.excess_s < 4 * SLEEP_S
    assert (sleeping.steps_by, sleeping.table.by_steps, sleeping.missing) == ("optimizer", True, [])
    assert awake.table is not None
    assert awake.table.stragglers == [], lines_of(awake)
    assert sleeping.trace is not None
    events = json.loads(gzip.decompress(sleeping.trace.read_bytes()))["traceEvents"]
    by_rank = {rank: {each["name"] for each in events if each["pid"] // 1000 == rank} for rank in range(RANKS)}
    for names in by_rank.values():
        assert {"gloo:all_reduce", "aten::addmm", "Optimizer.step#SGD.step", "step 3"} <= names
    assert facts(sleeping)["stragglers"] == [2]


@pytest.mark.nightly
async def test_it_is_named_ten_times_of_ten_and_nobody_else_ever(folder: Path) -> None:
    sleepers = [word for time_ in range(TIMES) for word in (str(time_ % RANKS), "")]
    found = await profiles(folder, sleepers)
    named = [[*each.table.stragglers] if each.table is not None else None for each in found]
    assert named == [[int(word)] if word else [] for word in sleepers], [lines_of(each) for each in found]
