"""A try that hangs is not waited for alone: others are begun beside it, and the first that succeeds is taken.

A connection that is begun while there is no network hears of it late: TCP asks again after 1, 3 and 7 s. One that is
begun when the network is back takes a few round trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def first(
    begin: Callable[[], Coroutine[Any, Any, T]], discard: Callable[[T], object], *, every_s: float, at_once: int
) -> T:
    """Return the result of the first try that succeeds. Another try begins every ``every_s``, up to ``at_once`` of
    them.

    The others are cancelled, and what they give all the same is discarded. Cancel-safe if ``begin`` is.

    Raises:
        Exception: what the first of them that failed has raised, if none had succeeded by then.
    """
    tries: list[asyncio.Task[T]] = []
    taken: asyncio.Task[T] | None = None
    try:
        while True:
            if len(tries) < at_once:
                tries.append(asyncio.ensure_future(begin()))
            pause_s = every_s if len(tries) < at_once else None
            done, _ = await asyncio.wait(tries, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                taken = min(done, key=lambda each: (each.exception() is not None, tries.index(each)))
                return taken.result()
    finally:
        for each in tries:
            if each is not taken:
                each.cancel()
                each.add_done_callback(lambda over: _unwanted(over, discard))


def _unwanted(over: asyncio.Task[T], discard: Callable[[T], object]) -> None:
    if not over.cancelled() and over.exception() is None:
        discard(over.result())
