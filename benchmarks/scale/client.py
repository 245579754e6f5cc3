"""One measurement, in a process of its own: a pool of so many played nodes, what it takes, as one line of JSON.

Processor time is that of this process alone, all threads. Memory is its resident set's growth.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from outrider import Pool, compute

from .machines import Played

BROADCASTS, CALLS, SUBMITS, ROUNDS = 11, 100, 20_000, 3
WARM_NODES, WARM_SUBMITS = 2, 500


@dataclass
class Scale:
    """What a pool of ``nodes`` takes of its client."""

    nodes: int
    ready_s: float
    joining_cpu_ms: float  # a node, until all have been told of all
    kib: float  # a node, when all have been told of all
    idle_cpu_percent: float  # of a core, all nodes together
    broadcast_ms: float
    broadcast_cpu_us: float  # a rank
    call_us: float
    submits_per_s: float
    submit_cpu_us: float  # a task
    close_s: float
    close_cpu_ms: float  # a node


@compute
def nothing() -> None: ...


async def measured(nodes: int, *, ssh: bool, idle_s: float) -> Scale:
    async with Pool(provider=Played(ssh), nodes=WARM_NODES, console="silent") as pool:  # what is imported, and so on
        await pool.broadcast(nothing())
        await submits(pool, WARM_SUBMITS)
    gc.collect()
    memory_kib, cpu_s, began = resident_kib(), time.process_time(), time.perf_counter()
    async with Pool(provider=Played(ssh), nodes=nodes, console="silent") as pool:
        ready_s = time.perf_counter() - began
        await anyio.sleep(min(10, nodes / 100) + 1)  # as `Membership.view_delay_s`
        joining_cpu_ms = 1e3 * (time.process_time() - cpu_s) / nodes
        gc.collect()
        kib = (resident_kib() - memory_kib) / nodes
        cpu_s = time.process_time()
        await anyio.sleep(idle_s)
        idle_cpu_percent = 1e2 * (time.process_time() - cpu_s) / idle_s
        broadcasts = [await timed(pool.broadcast(nothing())) for _ in range(BROADCASTS)]
        calls = [await timed(pool.run(nothing())) for _ in range(CALLS)]
        rounds = [await timed(submits(pool, SUBMITS)) for _ in range(ROUNDS)]
        cpu_s, began = time.process_time(), time.perf_counter()
    close_s, close_cpu_ms = time.perf_counter() - began, 1e3 * (time.process_time() - cpu_s) / nodes
    return Scale(
        nodes,
        ready_s,
        joining_cpu_ms,
        kib,
        idle_cpu_percent,
        1e3 * median(broadcasts, 0),
        1e6 * median(broadcasts, 1) / nodes,
        1e6 * median(calls, 0),
        SUBMITS / median(rounds, 0),
        1e6 * median(rounds, 1) / SUBMITS,
        close_s,
        close_cpu_ms,
    )


async def submits(pool: Pool, count: int) -> None:
    jobs = [pool.submit(nothing()) for _ in range(count)]
    for job in jobs:
        await job


async def timed(work: Awaitable[object]) -> tuple[float, float]:
    began, cpu_s = time.perf_counter(), time.process_time()
    await work
    return time.perf_counter() - began, time.process_time() - cpu_s


def median(measured: list[tuple[float, float]], index: int) -> float:
    return statistics.median(each[index] for each in measured)


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.scale.client", description=__doc__)
    parser.add_argument("nodes", type=int)
    parser.add_argument("--ssh", action="store_true")
    parser.add_argument("--idle-s", type=float, default=10.0)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each node takes a descriptor
    print(json.dumps(asdict(anyio.run(lambda: measured(options.nodes, ssh=options.ssh, idle_s=options.idle_s)))))


if __name__ == "__main__":
    main()
