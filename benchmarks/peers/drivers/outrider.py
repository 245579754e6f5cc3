"""Outrider: a pool of four local nodes with one worker each."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from outrider import Local, Pool, compute

from .driver import WORKERS, main, noop


@compute
def applied(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


numbered = compute(noop)


class Outrider:
    version = version("outrider")

    async def start(self) -> None:
        self.pool = Pool(provider=Local(), nodes=WORKERS, console="silent")
        await self.pool.__aenter__()

    async def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return await self.pool.run(applied(function, argument))

    async def burst(self, count: int) -> list[int]:
        jobs = [self.pool.submit(numbered(number)) for number in range(count)]
        return [await job for job in jobs]

    async def broadcast(self, number: int) -> list[int]:
        return [*await self.pool.broadcast(numbered(number))]

    async def stop(self) -> None:
        await self.pool.__aexit__(None, None, None)


if __name__ == "__main__":
    main(Outrider())
