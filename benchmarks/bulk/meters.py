"""What is looked at while large data moves: the event loop's stalls, this process's memory, and short calls."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from outrider import compute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outrider import Pool

TICK_S = 0.001
CALM_S = 2.0  # of short calls before anything else goes on


@compute
def noop() -> None:
    pass


@dataclass
class Loop:
    """The longest time for which the event loop ran nothing that was due."""

    longest_s: float = 0.0

    async def tick(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - TICK_S)


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Loop]:
    loop = Loop()
    ticking = asyncio.ensure_future(loop.tick())
    try:
        yield loop
    finally:
        ticking.cancel()


@dataclass
class Calls:
    """Short calls, one after another."""

    took_s: list[float] = field(default_factory=list)

    @property
    def p99_ms(self) -> float:
        return 1e3 * statistics.quantiles(self.took_s, n=100)[98]

    async def make(self, pool: Pool) -> None:
        while True:
            began = time.perf_counter()
            await pool.run(noop())
            self.took_s.append(time.perf_counter() - began)
            await asyncio.sleep(TICK_S)


@asynccontextmanager
async def short_calls(pool: Pool) -> AsyncIterator[Calls]:
    calls = Calls()
    calling = asyncio.ensure_future(calls.make(pool))
    try:
        yield calls
    finally:
        calling.cancel()


async def calm(pool: Pool) -> Calls:
    async with short_calls(pool) as calls:
        await asyncio.sleep(CALM_S)
    return calls


@dataclass
class Memory:
    """Bytes that this process had more than at first, at most."""

    grown_bytes: int = 0


@contextmanager
def watched_memory() -> Iterator[Memory]:
    memory = Memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    yield memory
    memory.grown_bytes = _status("VmHWM") - before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(name)
