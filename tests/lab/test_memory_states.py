"""A DDP training on hosts with its states in memory: a host without power costs a step, and no trip to the storage.

``OUTRIDER_STRESS=20`` runs so many (with ``-o faulthandler_timeout=0``). The host and the moment are drawn from the
run's number. A host that replaces another gets its rank's state from the host of the next rank.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import pytest

from outrider import SSH, Image, Nodes, Pool, checkpoint, compute, instance_info, plugins

if TYPE_CHECKING:
    from netlab import Host, Lab

pytestmark = [pytest.mark.anyio, pytest.mark.nightly]
HERE = Image(python=sys.executable)  # this machine's torch, at the same path
RUNS = int(os.environ.get("OUTRIDER_STRESS", "4"))
RANKS, STEPS, DURABLE, STEP_S = 4, 40, 1000, 0.1
PATIENCE_S = 120.0


@compute(retries=20, max_restarts=20)
def trains(run: int) -> tuple[int, int, float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    info = instance_info()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(512, 1024, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saving = checkpoint(f"run-{run}", every=1, memory=2, durable=DURABLE, timeout=60.0)
    start, state = saving.load()
    if state is not None:
        assert (state["step"], state["rank"]) == (start, info.rank)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    step_marks, save_marks = (Path(f"/shared/{name}-{run}-{info.rank}") for name in ("steps", "saved"))
    with step_marks.open("a", buffering=1) as told, save_marks.open("a", buffering=1) as saved:
        for step in range(start + 1, STEPS + 1):
            torch.manual_seed(step * RANKS + info.rank)
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(8, 512)).square().mean().backward()
            optimizer.step()
            told.write(json.dumps([info.generation, start, step, time.monotonic()]) + "\n")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            saving.save(step, {**state, "step": step, "rank": info.rank})
            saved.write(json.dumps([info.generation, start, step, time.monotonic()]) + "\n")
            time.sleep(STEP_S)
    return info.generation, start, float(sum(each.double().sum() for each in model.parameters()))


def steps(shared: Path, run: int, rank: int, name: str = "steps") -> list[list[float]]:
    """Return what a rank has written of each step that it has done, or whose `save` has returned: its generation, where
    that has resumed, the step, and the time.
    """
    try:
        lines = (shared / f"{name}-{run}-{rank}").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


async def reached(shared: Path, run: int, step: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not all((own := steps(shared, run, rank)) and own[-1][2] >= step for rank in range(RANKS)):
            await asyncio.sleep(0.01)


async def ready(pool: Pool) -> dict[str, int]:
    """Return the addresses of the ranks' hosts once all are ready."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            nodes = [node for node in pool.snapshot().nodes if node.state == "ready" and node.rank is not None]
            if len(nodes) == RANKS:
                return {node.address: node.rank for node in nodes if node.rank is not None}
            await asyncio.sleep(0.05)


async def test_a_host_without_power_costs_a_step_and_no_trip_to_the_storage(
    lab: Lab, ssh: Callable[..., SSH], record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("torch")
    shared = lab.folder("shared")
    hosts: Sequence[Host] = [lab.create(shared={"/shared": shared}) for _ in range(RANKS + 1)]
    by_address = {host.address: host for host in hosts}
    first_s, again, right = list[float](), list[int](), 0.0
    pool = Pool(
        provider=ssh(hosts),
        nodes=Nodes(RANKS),
        image=HERE,
        plugins=[plugins.torch(backend="gloo")],
        checkpoints="/shared/kept",
        console="silent",
    )
    async with pool:
        for run in range(RUNS + 1):
            places = await ready(pool)
            dice = Random(f"run {run}")
            training = asyncio.ensure_future(pool.broadcast(trains(run)))
            if not run:  # undisturbed
                right = (await training)[0][2]
                continue
            await reached(shared, run, dice.randint(2, 30))
            await asyncio.sleep(dice.random() * STEP_S)
            victim = by_address[dice.choice(sorted(places))]
            killed = time.monotonic()
            victim.power_off()
            async with asyncio.timeout(PATIENCE_S):
                ended = await training
            own = [steps(shared, run, rank) for rank in range(RANKS)]
            assert {total for _, _, total in ended} == {right}, f"run {run}: {ended}"
            assert len({start for _, start, _ in ended}) == 1
            saves = [steps(shared, run, rank, "saved") for rank in range(RANKS)]
            done, saved = (
                min(max(step for generation, _, step, _ in mine if generation == 1) for mine in each)
                for each in (own, saves)
            )
            after = [next(each for each in mine if each[0] > 1) for mine in own]
            first_s.append(max(each[3] for each in after) - killed)
            again.append(max(0, int(saved - after[0][1])))
            print(
                f"run {run}: again {again[-1]}, with the step under way {int(done - after[0][1])}, first step "
                f"{first_s[-1]:.2f} s after the power cut",
                flush=True,
            )
            victim.power_on()
    record_property("first_step", f"{median(first_s):.2f} s median, {max(first_s):.2f} s worst")
    record_property("steps_again", max(again))
    assert max(again) <= 1
