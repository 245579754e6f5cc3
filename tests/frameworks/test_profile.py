"""A rank of a DDP training that is slow is named by its profile, though its steps take as long as all others'."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, compute, instance_info, plugins
from outrider.engine.cli.control import take_profile
from outrider.engine.record.profiles import Merged, facts, lines_of
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.runs.reader import runs_in

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


async def profiles(folder: Path, sleepers: list[str], tries: int = 1) -> list[Merged]:
    """Take one after the other of the same training. ``sleepers``: who sleeps while each is taken; "": nobody.

    ``tries``: so often each is taken, until it is right, as a busy computer may make another rank slow for a while.
    """
    found = list[Merged]()
    (folder / "sleeper").write_text("")
    options: dict[str, Any] = {"provider": Local(), "nodes": RANKS, "plugins": [plugins.torch()], "console": "silent"}
    async with Pool(**options, run="ddp") as pool:
        running = asyncio.ensure_future(pool.broadcast(train(str(folder))))
        while len([*folder.glob("begun-*")]) < RANKS:
            assert not running.done()
            await asyncio.sleep(0.05)
        (run,) = runs_in(runs_folder())
        for sleeper in sleepers:
            (folder / "sleeper").write_text(sleeper)
            for _ in range(tries):
                merged = await asyncio.to_thread(take_profile, run, steps=5, seconds=20.0)
                if merged.table is not None and [*merged.table.stragglers] == [int(rank) for rank in sleeper]:
                    break
            found.append(merged)
        (folder / "end").touch()
        assert len(set(await running)) == 1
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    return tmp_path


async def test_the_rank_that_sleeps_is_named_and_its_trace_shows_all_ranks(folder: Path) -> None:
    sleeping, awake = await profiles(folder, ["2", ""], tries=8)
    assert sleeping.table is not None
    assert sleeping.table.stragglers == [2], lines_of(sleeping)
    assert sleeping.table.excess_s > SLEEP_S / 2
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


@compute
def train_on_gpu(folder: str) -> int:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, steps = torch.randn(1024, 1024, device="cuda"), 0
    while not Path(folder, "end").exists():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        steps += 1
        Path(folder, "begun-0").touch()
    return steps


@pytest.mark.nightly
async def test_kernels_of_a_gpu_are_in_the_trace(folder: Path) -> None:
    """For a machine with a GPU: ``pytest -s -m '' tests/frameworks/test_profile.py -k gpu``."""
    look = [sys.executable, "-c", "import torch; exit(not torch.cuda.is_available())"]  # in a process that ends
    if subprocess.run(look, check=False).returncode:
        pytest.skip("there is no GPU")
    async with Pool(provider=Local(), plugins=[plugins.torch()], console="silent", run="gpu") as pool:
        running = asyncio.ensure_future(pool.broadcast(train_on_gpu(str(folder))))
        while not (folder / "begun-0").exists():
            assert not running.done(), await running
            await asyncio.sleep(0.05)
        (run,) = runs_in(runs_folder())
        found = [await asyncio.to_thread(take_profile, run, steps=5, seconds=30.0) for _ in range(2)]
        (folder / "end").touch()
        await running
    for merged in found:
        print("\n".join(lines_of(merged)))
        assert merged.trace is not None, lines_of(merged)
        events = json.loads(gzip.decompress(merged.trace.read_bytes()))["traceEvents"]
        kernels = [each for each in events if each.get("cat") == "kernel"]
        names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
        print(len(kernels), "kernels of", {names[each["pid"]] for each in kernels})
        assert kernels
        assert all("GPU" in names[each["pid"]] for each in kernels)
        steps = [each for each in events if each["name"].startswith("step ")]
        began, ended = min(each["ts"] for each in steps), max(each["ts"] + each["dur"] for each in steps)
        inside = [each for each in kernels if began <= each["ts"] <= ended]
        assert len(inside) >= 5 * len(steps), "the GPU's clock is that of the steps"
