"""Calls and DDP on a computer that is busy: beside programs that never wait, more of them than cores."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import anyio

from outrider import Pool

from .calls import broadcast_times, same
from .ddp import PAIRS, RANKS, rates
from .figures import Bar, Figure, interleaved, summarize
from .tasks import noop, noop_there

PROGRAMS = 4
CALLS = 60
STEPS = 100  # of DDP: each takes several times as long as on an idle computer
PAUSE_S = 0.01  # between two calls: a worker falls asleep in less
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
BESIDE = f"beside {PROGRAMS} busy programs"


@contextmanager
def busy_programs() -> Iterator[None]:
    """Keep all cores busy. The programs end with this process, however it ends."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(PROGRAMS)]
    try:
        time.sleep(0.5)  # until the interpreters have started
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


async def calls_beside(pool: Pool, executor: ProcessPoolExecutor, rounds: int) -> list[Figure]:
    """busy: a call now and then, and a broadcast of no-ops."""

    async def our_run() -> float:
        times = []
        for number in range(CALLS):
            await anyio.sleep(PAUSE_S)
            began = time.perf_counter()
            result = await pool.run(noop_there(number))
            times.append(time.perf_counter() - began)
            same(result, number)
        return 1e6 * statistics.median(times)

    def their_run() -> float:
        times = []
        for number in range(CALLS):
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            result = executor.submit(noop, number).result()
            times.append(time.perf_counter() - began)
            same(result, number)
        return 1e6 * statistics.median(times)

    our_broadcast, their_broadcast = broadcast_times(pool, executor)
    with busy_programs():
        runs = await interleaved(rounds, our_run, their_run)
        broadcasts = await interleaved(rounds, our_broadcast, their_broadcast)
    return [
        summarize("busy-run", f"no-op now and then, {BESIDE}", "us", *runs),
        summarize("busy-d", f"broadcast to 4, {BESIDE}", "us", *broadcasts, bar=Bar("ratio", "at most", 3.75)),
    ]


def ddp_beside(pairs: int = PAIRS) -> list[Figure]:
    """busy-ddp: as `ddp`, in fewer steps."""
    with busy_programs():
        ours, theirs = rates(pairs, STEPS)
    name = f"DDP, {RANKS} ranks, {BESIDE}"
    return [summarize("busy-ddp", name, "steps/s", ours, theirs, bar=Bar("ratio", "at least", 0.9))]
