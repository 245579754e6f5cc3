"""``python -m benchmarks.bulk``: gigabytes to and from one host, and what else goes on meanwhile; a table and JSON.

The host is this computer, by a real sshd; OpenSSH's own client moves as many bytes with the same cipher in between.
Ours are in memory before and after, and so are OpenSSH's: its client reads and writes files of a file system in memory,
and so does `cat` at the other end. Beside that stands what it moves where nothing keeps the bytes (/dev/null).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
import numpy as np
from rich.console import Console
from rich.table import Table

from outrider import Local, Pool, Ref, Worker, compute, events

from ..figures import Bar, Figure, summarize
from .host import LoopbackHost, loopback_host
from .meters import calm, short_calls, watched_loop, watched_memory

OUT = Path(__file__).parents[1] / "out"
PIECE = b"x" * 1_000_000
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
Array = np.ndarray[tuple[int], np.dtype[np.float64]]


@compute
def made(value: float, size_bytes: int) -> Array:
    return np.full(size_bytes // 8, value)


@compute
def increased(array: Array) -> Array:
    array += 1
    return array


@compute
def ends(array: Array) -> tuple[float, float]:
    return float(array[0]), float(array[-1])


@compute
def text(size_bytes: int) -> bytes:
    return b"x" * size_bytes


async def pipeline(pool: Pool, size_bytes: int) -> list[Figure]:
    """Three tasks over an array that stays on its node."""
    with watched_memory() as memory:
        before = traffic(pool)
        first: Ref[Array] = await pool.run(made(1.0, size_bytes), keep=True)
        second = await pool.run(increased(first.typed), keep=True)
        if await pool.run(ends(second.typed)) != (2.0, 2.0):
            raise AssertionError("the pipeline went wrong")
        moved = traffic(pool) - before
    return [
        summarize("p-memory", "pipeline: memory of the client", "MB", [memory.grown_bytes / 1e6], bar=most(20)),
        summarize("p-traffic", "pipeline: bytes of the client", "MB", [moved / 1e6], bar=most(20)),
    ]


async def rates(pool: Pool, host: LoopbackHost, size_bytes: int, rounds: int) -> list[Figure]:
    """To the host and from it, with short calls beside them and without, each between runs of OpenSSH's client."""
    quiet = (await calm(pool)).p99_ms
    kept: Ref[Array] = await pool.run(made(7.0, size_bytes), keep=True)
    numbers: dict[str, list[float]] = {name: [] for name in (*OURS, *THEIRS)}
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        source, sink = Path(folder, "source"), Path(folder, "sink")
        fill(source, size_bytes)
        for number in range(rounds + 1):
            call = ends(np.full(size_bytes // 8, float(number)))
            async with short_calls(pool) as calls:
                there = await rate(size_bytes, partial(pool.run, call))
                back = await rate(size_bytes, kept.get)
                returned = await rate(size_bytes, partial(pool.run, made(8.0, size_bytes)))
            call = ends(np.full(size_bytes // 8, number + 0.5))
            alone = [await rate(size_bytes, partial(pool.run, call)), await rate(size_bytes, kept.get)]
            found = [each / 1e6 for each in (there, back, returned, *alone)] + [calls.p99_ms - quiet]
            found += [each / 1e6 for each in openssh_rates(host, source, sink, size_bytes)]
            if number:
                for name, value in zip(numbers, found, strict=True):
                    numbers[name].append(value)
    at_least = Bar("ratio", "at least", 0.85)
    size = f"{size_bytes / 1e9:g} GB"
    up, down, result, up_alone, down_alone, late, ssh_up, ssh_up_unkept, ssh_down, ssh_down_unkept = numbers.values()
    return [
        summarize("s-up", f"{size} to a host", "MB/s", up, ssh_up, bar=at_least),
        summarize("s-up-unkept", f"{size} to a host, OpenSSH's to /dev/null", "MB/s", up, ssh_up_unkept),
        summarize("s-down", f"{size} from a host, by a Ref", "MB/s", down, ssh_down, bar=at_least),
        summarize("s-down-unkept", f"{size} from a host, OpenSSH's to /dev/null", "MB/s", down, ssh_down_unkept),
        summarize("s-up-alone", f"{size} to a host, without short calls", "MB/s", up_alone, ssh_up),
        summarize("s-down-alone", f"{size} from a host, without short calls", "MB/s", down_alone, ssh_down),
        summarize("s-result", f"{size} made there and returned", "MB/s", result, ssh_down),
        summarize("s-p99", "no-op meanwhile, 99th percentile: more than alone", "ms", late, bar=most(10)),
    ]


def fill(source: Path, size_bytes: int) -> None:
    """Write a file that has memory of its own: what was never written is read from one page of zeros."""
    with source.open("wb") as file:
        for _ in range(0, size_bytes, len(PIECE)):
            file.write(PIECE)
        file.truncate(size_bytes)


OURS = ("up", "down", "result", "up alone", "down alone", "p99")
THEIRS = ("ssh up", "ssh up, unkept", "ssh down", "ssh down, unkept")


def openssh_rates(host: LoopbackHost, source: Path, sink: Path, size_bytes: int) -> list[float]:
    """Return the rates of OpenSSH's client, as `THEIRS` names them; nothing of what it has moved stays."""
    rates = [host.rate(f"cat > {sink}", size_bytes, source=source)]
    sink.unlink()
    rates.append(host.rate("cat > /dev/null", size_bytes, source=source))
    rates.append(host.rate(f"cat {source}", size_bytes, sink=sink))
    sink.unlink()
    rates.append(host.rate(f"cat {source}", size_bytes))
    return rates


async def large(pool: Pool, way: str, size_bytes: int) -> list[Figure]:
    """``bytes`` as a result: the longest stall of the event loop, and what the pool thought of its node."""
    suspected: list[object] = []

    async def listen() -> None:
        async for event in pool.events():
            if isinstance(event, events.NodeSuspect | events.NodeLost):
                suspected.append(event)  # noqa: PERF401 - one at a time, as they come

    listening = asyncio.ensure_future(listen())
    await pool.run(text(1))
    async with watched_loop() as loop:
        with watched_memory() as memory:
            began = time.perf_counter()
            value = await pool.run(text(size_bytes))
            took_s = time.perf_counter() - began
        if len(value) != size_bytes or value[-1:] != b"x":
            raise AssertionError("the value is not what was returned")
        del value  # whose memory the loop's thread gives back
        await asyncio.sleep(0.1)
    listening.cancel()
    size = f"{size_bytes / 2**30:g} GiB of bytes, {way}"
    return [
        summarize(f"l-stall-{way}", f"{size}: longest stall of the loop", "ms", [1e3 * loop.longest_s], bar=most(50)),
        summarize(f"l-suspect-{way}", f"{size}: events that suspect the node", "", [len(suspected)], bar=most(0)),
        summarize(f"l-rate-{way}", f"{size}: made and returned", "MB/s", [size_bytes / took_s / 1e6]),
        summarize(f"l-memory-{way}", f"{size}: memory of the client", "times", [memory.grown_bytes / size_bytes]),
    ]


def traffic(pool: Pool) -> int:
    return sum(node.sent_bytes + node.received_bytes for node in pool.snapshot().nodes)


async def rate(size_bytes: int, moved: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await moved()
    return size_bytes / (time.perf_counter() - began)


def most(value: float) -> Bar:
    return Bar("ours", "at most", value)


async def figures(options: argparse.Namespace) -> list[Figure]:
    found: list[Figure] = []
    size_bytes, large_bytes = int(options.gb * 1e9), int(options.large_gib * 2**30)
    if "pipeline" in options.only:
        async with Pool(provider=Local(), nodes=2, console="silent") as pool:
            found += await pipeline(pool, size_bytes)
    if "large" in options.only:
        async with Pool(provider=Local(), nodes=1, console="silent") as pool:
            found += await large(pool, "local", large_bytes)
    if {"ssh", "large-ssh"} & set(options.only):
        worker = Worker(2, object_memory_gb=size_bytes / 1e9, object_disk_gb=0)
        with loopback_host() as host:
            async with Pool(provider=host.provider, nodes=1, worker=worker, console="silent") as pool:
                if "ssh" in options.only:
                    found += await rates(pool, host, size_bytes, options.rounds)
                if "large-ssh" in options.only:
                    found += await large(pool, "ssh", large_bytes)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.bulk", description=__doc__)
    names = ["pipeline", "ssh", "large", "large-ssh"]
    parser.add_argument("only", nargs="*", metavar="FIGURE", help=f"some of {', '.join(names)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gb", type=float, default=1.0, help="of the arrays")
    parser.add_argument("--large-gib", type=float, default=4.0, help="of the bytes")
    options = parser.parse_args()
    options.only = options.only or names
    if unknown := set(options.only) - set(names):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")
    found = anyio.run(figures, options)
    Console(width=None if sys.stdout.isatty() else 130).print(table(found))
    OUT.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()}
    rows = [asdict(figure) | {"holds": figure.holds} for figure in found]
    path = OUT / "bulk.json"
    path.write_text(json.dumps({"at": time.time(), "machine": machine, "figures": rows}, indent=2) + "\n")
    print(f"written to {path}")
    return 0 if all(figure.holds is not False for figure in found) else 1


def table(found: list[Figure]) -> Table:
    result = Table(title="Large data, and OpenSSH's own client beside it", title_justify="left")
    for heading in ("figure", "ours", "OpenSSH", "ratio (range)", "bar", "holds"):
        result.add_column(heading)
    for figure in found:
        theirs = "" if figure.theirs is None else f"{figure.theirs:,.0f} {figure.unit}"
        ratio = ""
        if figure.ratio is not None and figure.ratio_range is not None:
            ratio = f"{figure.ratio:.2f} ({figure.ratio_range[0]:.2f}-{figure.ratio_range[1]:.2f})"
        bar = "" if figure.bar is None else f"{figure.bar.must_be} {figure.bar.value:g}"
        holds = {None: "", True: "[green]yes", False: "[bold red]NO"}[figure.holds]
        result.add_row(figure.name, f"{figure.ours:,.3g} {figure.unit}", theirs, ratio, bar, holds)
    return result


if __name__ == "__main__":
    sys.exit(main())
