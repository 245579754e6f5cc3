"""Records of runs: what they cost the calls, how fast metrics arrive, the report, and a run that is detached."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from outrider import Local, Pool, compute, instance_info, log_metrics
from outrider.engine.record.report.page import write_report
from outrider.engine.record.runs.metrics import read_metrics
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.runs.reader import Run, runs_in

from .calls import SUBMITS
from .figures import Bar, Figure, summarize
from .tasks import noop_there

RANKS = 4
PACED_S, PACED_HZ = 10.0, 100
FREE_CALLS = 25_000  # of each rank
BUSY_CALLS = 20_000
REPORT_POINTS = 100_000
OUTRIDER = str(Path(sys.executable).with_name("outrider"))
SLEEPS = """
import time
while True:
    time.sleep(0.1)
"""


@compute
def logs_at(hertz: int, seconds: float) -> float:
    """Log two metrics so often; return the mean seconds of a call."""
    took_s, calls = 0.0, int(hertz * seconds)
    began = time.perf_counter()
    for step in range(calls):
        time.sleep(max(0.0, began + step / hertz - time.perf_counter()))
        called = time.perf_counter()
        log_metrics({"loss": 1.0 / (step + 1), "accuracy": step / calls}, step=step)
        took_s += time.perf_counter() - called
    return took_s / calls


@compute
def logs_all(calls: int) -> float:
    """Log two metrics so often, as fast as it goes; return the mean seconds of a call."""
    began = time.perf_counter()
    for step in range(calls):
        log_metrics({"loss": 1.0 / (step + 1), "accuracy": step / calls}, step=step)
    return (time.perf_counter() - began) / calls


@compute
def logs_curve(points: int) -> None:
    rank = instance_info().rank
    for step in range(points):
        log_metrics({"loss": (rank + 1.0) / (step + 1)}, step=step)


@contextmanager
def state() -> Iterator[None]:
    """A folder of its own for records: what others have left there would be looked through, and is left alone."""
    before = os.environ.get("OUTRIDER_STATE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OUTRIDER_STATE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["OUTRIDER_STATE"]
            else:
                os.environ["OUTRIDER_STATE"] = before


def records(rounds: int) -> list[Figure]:
    """r: everything of it."""
    with state():
        return [*anyio.run(calls, rounds), *anyio.run(metrics, rounds), report(rounds), *detached(rounds)]


async def calls(rounds: int) -> list[Figure]:
    """No-ops with a record, against the same without one."""

    async def rate(pool: Pool) -> float:
        began = time.perf_counter()
        jobs = [pool.submit(noop_there(number)) for number in range(SUBMITS)]
        for job in jobs:
            await job
        return SUBMITS / (time.perf_counter() - began)

    async with (
        Pool(provider=Local(), nodes=4, console="silent", run="bench") as recorded,
        Pool(provider=Local(), nodes=4, console="silent", run=False) as plain,
    ):
        a: list[float] = []
        b: list[float] = []
        for number in range(rounds + 1):
            for pool, rates in [(recorded, a), (plain, b)][:: 1 if number % 2 else -1]:
                rates.append(await rate(pool))
    name = f"{SUBMITS:,} no-ops with a record (theirs: without)"
    return [summarize("r-calls", name, "/s", a[1:], b[1:], bar=Bar("ratio", "at least", 0.97))]


async def metrics(rounds: int) -> list[Figure]:
    """At a rate that people log at, every point has to arrive once. Ranks that do nothing else may log more than their
    client can take, and then lose some, which it is told: what arrives is counted.
    """
    paced: list[float] = []
    async with Pool(provider=Local(), nodes=RANKS, console="silent", run="paced") as pool:
        for _ in range(min(rounds, 3)):
            paced += await pool.broadcast(logs_at(PACED_HZ, PACED_S))
    expected = 2 * len(paced) * int(PACED_HZ * PACED_S)
    if arrived() != expected:
        raise AssertionError(f"{expected} points were logged, and {arrived()} are in the record")
    busy, free = [], []
    for _ in range(rounds):
        async with Pool(provider=Local(), nodes=RANKS, console="silent", run="free") as pool:
            await pool.broadcast(logs_all(1))
            began = time.perf_counter()
            await pool.broadcast(logs_all(FREE_CALLS))
            took_s = time.perf_counter() - began
        free.append(arrived() / took_s)
        async with Pool(provider=Local(), nodes=1, console="silent", run="busy") as pool:
            busy.append(await pool.run(logs_all(BUSY_CALLS)))
    return [
        summarize("r-paced", f"log_metrics at {PACED_HZ}/s", "us", us(paced), bar=Bar("ours", "at most", 50)),
        summarize("r-busy", "log_metrics in a loop, one rank", "us", us(busy), bar=Bar("ours", "at most", 8)),
        summarize("r-points", f"points from {RANKS} ranks", "/s", free, bar=Bar("ours", "at least", 100_000)),
    ]


def arrived() -> int:
    """Return how many points the newest record has."""
    return sum(len(call.values) for call in read_metrics(newest().directory))


def report(rounds: int) -> Figure:
    """The file of a run with so many points."""

    async def curves() -> None:
        async with Pool(provider=Local(), nodes=RANKS, console="silent", run="curves") as pool:
            await pool.broadcast(logs_curve(REPORT_POINTS // RANKS))

    anyio.run(curves)
    run = newest()
    took = [seconds(lambda: write_report(run)) for _ in range(rounds)]
    return summarize("r-report", f"report of {REPORT_POINTS:,} points", "s", took, bar=Bar("ours", "at most", 1))


def detached(rounds: int) -> list[Figure]:
    """From the command to the prompt, a look at what all ranks are at, and the end."""
    prompt, stacks, stop = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "sleeps.py"
        script.write_text(SLEEPS)
        for _ in range(min(rounds, 5)):
            prompt.append(seconds(lambda: outrider("run", "--detach", "--nodes", str(RANKS), str(script))))
            run = newest().id
            while len(outrider("stacks", run).split("rank ")) <= RANKS:  # they are starting still
                time.sleep(0.1)
            stacks.append(seconds(lambda run=run: outrider("stacks", run)))  # type: ignore[misc]
            stop.append(seconds(lambda run=run: outrider("stop", run)))  # type: ignore[misc]
    return [
        summarize("r-detach", "outrider run --detach, to the prompt", "s", prompt, bar=Bar("ours", "at most", 1)),
        summarize("r-stacks", f"outrider stacks of {RANKS} ranks", "s", stacks, bar=Bar("ours", "at most", 1)),
        summarize("r-stop", "outrider stop", "s", stop, bar=Bar("ours", "at most", 5)),
    ]


def newest() -> Run:
    return runs_in(runs_folder())[-1]


def outrider(*arguments: str) -> str:
    return subprocess.run([OUTRIDER, *arguments], capture_output=True, text=True, check=True).stdout


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def us(values: list[float]) -> list[float]:
    return [1e6 * value for value in values]
