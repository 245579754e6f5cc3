"""Whole programs: from the start of the process to its first result and its end, and what an idle pool weighs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .figures import Bar, Figure, summarize

ASYNC_WITH = """
import sys, time
import anyio
from outrider import Local, Pool, compute

@compute
def first() -> int:
    return 1

async def main():
    async with Pool(provider=Local(), nodes=4, console="silent") as pool:
        one = await pool.run(first())
        at_one = time.time()
        every = await pool.broadcast(first())
        at_every = time.time()
    print(one, every, at_one, at_every, sep="|")

anyio.run(main)
"""
WITH = """
import time
from outrider import Local, Pool, compute

@compute
def first() -> int:
    return 1

with Pool(provider=Local(), nodes=4, console="silent") as pool:
    one = first() >> pool
    at_one = time.time()
    every = first() @ pool
    at_every = time.time()
print(one, every, at_one, at_every, sep="|")
"""
THEIRS = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor

def first():
    return 1

with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
    one = pool.submit(first).result()
    at_one = time.time()
    every = [future.result() for future in [pool.submit(first) for _ in range(4)]]
    at_every = time.time()
print(one, every, at_one, at_every, sep="|")
"""
IDLE = """
import sys
import anyio
from outrider import Local, Pool, compute

@compute
def first() -> int:
    return 1

async def main():
    async with Pool(provider=Local(), nodes=4, console="silent") as pool:
        print(await pool.broadcast(first()), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)

anyio.run(main)
"""
IDLE_TIMES, IDLE_S = 3, 10.0  # heartbeats are seconds apart; and of this computer others may have a share


def start(rounds: int) -> list[Figure]:
    """a: seconds after the process was started, and after its last result until it was gone; by ``with``, as an
    executor pool is used, and by ``async with`` in a program that imports anyio.

    What an executor pool takes of the same machine is what a machine's speed is taken from; decision 79 has figures.
    """
    programs = {"with": WITH, "async with": ASYNC_WITH}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("theirs", *programs)}
    for _ in range(rounds + 1):
        for name, program in {"theirs": THEIRS, **programs}.items():
            taken[name].append(lifetime(program))
    theirs = list(zip(*taken["theirs"][1:], strict=True))
    figures = []
    for name in programs:
        first, exit_ = zip(*taken[name][1:], strict=True)
        key = name.replace(" ", "-")
        figures += [
            summarize(
                f"a-first-{key}",
                f"`{name}`: start to the first result, 4 nodes up",
                "s",
                first,
                theirs[0],
                bar=Bar("ratio", "at most", 5.5, goal=4),
            ),
            summarize(
                f"a-exit-{key}",
                f"`{name}`: last result to the end of the process",
                "s",
                exit_,
                theirs[1],
                bar=Bar("ratio", "at most", 6),
            ),
        ]
    return figures


def lifetime(program: str) -> tuple[float, float]:
    installed = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=60, env=installed
    )
    ended = time.time()
    one, every, at_one, at_every = done.stdout.strip().split("|")
    if (json.loads(one), json.loads(every)) != (1, [1, 1, 1, 1]):
        raise AssertionError(done.stdout)
    return float(at_one) - began, ended - float(at_every)


def idle() -> list[Figure]:
    """h: the client and everything it started, with warm workers and nothing to do."""
    with subprocess.Popen(
        [sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        if json.loads(client.stdout.readline()) != [1, 1, 1, 1]:
            raise AssertionError("the idle pool did not answer")
        time.sleep(1)
        tree = family(client.pid)
        shares = []
        for _ in range(IDLE_TIMES):
            before = {pid: cpu_ns(pid) for pid in tree}
            time.sleep(IDLE_S)
            shares.append(sum(cpu_ns(pid) - before[pid] for pid in tree) / IDLE_S / 1e7)
        memory = sum(map(pss_mb, tree))
        client.communicate("\n", timeout=30)
    return [
        summarize("h-memory", f"idle: PSS of {len(tree)} processes", "MB", [memory], bar=Bar("ours", "at most", 110)),
        summarize("h-cpu", "idle: share of a core", "%", shares, bar=Bar("ours", "at most", 0.5)),
    ]


def family(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended while we looked
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_ns(pid: int) -> int:
    """Time on a core, all threads."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def pss_mb(pid: int) -> float:
    """Memory with shared pages divided among those that share them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0
