"""``python -m benchmarks.soak``: an hour of tasks, maps, broadcasts, large values and lost nodes in one pool.

Each minute it notes the memory and the descriptors of this process and of those that the nodes keep. They are flat if
what nine tenths of the last third's samples are below is not above that of the middle third, but for `GROWS` of it and
`MORE`: in the first third memory is still taken for the largest values. Medians would not do: the allocator keeps
15 MiB of the last large values for some minutes and gives them back, so that there are two levels. It ends with 1
where they are not flat, or where a result is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outrider import Local, NodeLost, Pool, checkpoint, compute, instance_info
from outrider.testing.fault_injection import processes

NODES = 4
LOSS_S = 30.0  # between two losses of a node
GROWS = 1.05
MORE = 2
LARGE_BYTES = 20_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes have after so many seconds. ``nodes``: those of all nodes together."""

    at: float
    client_bytes: int
    client_descriptors: int
    nodes_bytes: int
    nodes_descriptors: int


@compute(retries=10)
def squared(number: int) -> int:
    return number * number


@compute(retries=10)
def mirrored(array: np.ndarray) -> np.ndarray:
    return array[::-1].copy()


@compute(on_loss="restart", retries=100, max_restarts=100)
def steps(run: int, count: int) -> tuple[int, int]:
    """A training with its states in memory; each rank returns its rank and the sum of its steps."""
    saving = checkpoint(f"soak-{run}", every=1, memory=2, durable=10_000)
    start, total = saving.load()
    total = total or 0
    for step in range(start + 1, count + 1):
        total += step
        saving.save(step, total)
        time.sleep(0.02)
    return instance_info().rank, total


class Soak:
    def __init__(self, pool: Pool, dice: random.Random) -> None:
        self.pool, self.dice = pool, dice
        self.calls = self.losses = 0
        self.wrong: list[str] = []

    async def tasks(self) -> None:
        numbers = [self.dice.randrange(1_000_000) for _ in range(self.dice.randint(1, 2_000))]
        jobs = [self.pool.submit(squared(number)) for number in numbers]
        self.check([await job for job in jobs] == [number * number for number in numbers], "tasks")
        self.calls += len(numbers)

    async def map(self) -> None:
        count = self.dice.randint(1, 5_000)
        found = [each async for each in self.pool.map(squared, range(count))]
        self.check(found == [number * number for number in range(count)], "a map")
        self.calls += count

    async def large(self) -> None:
        array = np.arange(self.dice.randint(1, LARGE_BYTES // 8), dtype=np.float64)
        self.check(np.array_equal(await self.pool.run(mirrored(array)), array[::-1]), "a large value")
        self.calls += 1

    async def kept(self) -> None:
        array = np.arange(LARGE_BYTES // 8, dtype=np.float64)
        ref = await self.pool.put(array)
        found = await asyncio.gather(*(self.pool.run(mirrored(ref.typed)) for _ in range(NODES)))
        self.check(all(np.array_equal(each, array[::-1]) for each in found), "an object")
        self.calls += NODES

    async def broadcast(self) -> None:
        count = self.dice.randint(5, 100)
        found = await self.pool.broadcast(steps(self.calls, count))
        self.check(found == [(rank, sum(range(count + 1))) for rank in range(NODES)], f"a broadcast: {found}")
        self.calls += NODES

    def check(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(what)

    async def works(self, ends: float) -> None:
        while time.monotonic() < ends:
            work = self.dice.choice([self.tasks, self.map, self.large, self.kept, self.broadcast])
            try:
                await work()
            except NodeLost:  # more often than it is tried again
                pass

    async def loses(self, ends: float) -> None:
        while time.monotonic() + LOSS_S < ends:
            await asyncio.sleep(LOSS_S)
            ready = [node for node in self.pool.snapshot().nodes if node.state == "ready" and node.facts]
            if len(ready) == NODES:
                facts = self.dice.choice(ready).facts or {}
                for part in ("group", "pid"):
                    if (process := processes.owned(int(facts[part]))) is not None:
                        processes.send(process, signal.SIGKILL)
                self.losses += 1


def sampled(began: float) -> Sample:
    gc.collect()
    below = children(os.getpid())
    return Sample(
        time.monotonic() - began,
        resident(os.getpid()),
        descriptors(os.getpid()),
        sum(map(resident, below)),
        sum(map(descriptors, below)),
    )


def children(pid: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    except OSError:  # it has ended
        pass
    return found


def resident(pid: int) -> int:
    """The memory that no other process has, so that what workers share counts once or not at all."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def descriptors(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def grown(samples: Sequence[Sample]) -> list[str]:
    """What is not flat, in words."""
    third = max(1, len(samples) // 3)
    middle, last = samples[-2 * third : -third] or samples[:1], samples[-third:]
    found: list[str] = []
    for name in ("client_bytes", "nodes_bytes", "client_descriptors", "nodes_descriptors"):
        before, after = (_high([getattr(each, name) for each in samples]) for samples in (middle, last))
        if after > before * GROWS + MORE:
            found.append(f"{name}: {before:,.0f} in the middle third, {after:,.0f} in the last")
    return found


def _high(numbers: Sequence[int]) -> float:
    return statistics.quantiles(numbers, n=10)[-1] if len(numbers) > 1 else numbers[0]


async def soak(minutes: float, seed: int, kept: str) -> int:
    began = time.monotonic()
    ends, samples = began + 60 * minutes, list[Sample]()
    async with Pool(provider=Local(), nodes=NODES, console="silent", checkpoints=kept) as pool:
        run = Soak(pool, random.Random(seed))
        async with asyncio.TaskGroup() as group:
            working = group.create_task(run.works(ends))
            group.create_task(run.loses(ends))
            while not working.done():
                await asyncio.wait([working], timeout=60)
                if not working.done():
                    samples.append(sampled(began))
                    each = samples[-1]
                    print(
                        f"{each.at / 60:3.0f} min: {run.calls:,} calls, {run.losses} nodes lost; "
                        f"client {each.client_bytes >> 20} MiB, {each.client_descriptors} descriptors; "
                        f"nodes {each.nodes_bytes >> 20} MiB, {each.nodes_descriptors} descriptors",
                        flush=True,
                    )
    faults = [*(f"wrong: {each}" for each in run.wrong), *grown(samples)]
    print("\n".join(faults) or "all results right; memory and descriptors are flat")
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as kept:
        return asyncio.run(soak(options.minutes, options.seed, kept))


if __name__ == "__main__":
    sys.exit(main())
