"""Calls that a thread makes on the event loop of its pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
END: Any = object()


async def called(function: Callable[[], T]) -> T:
    return function()


class Steps(Generic[T]):
    """The steps of an async iterator, run one after another for a thread.

    A next step may be requested even if the thread's wait for the step before was interrupted and that step is still
    being cancelled.
    """

    def __init__(self, iterator: AsyncIterator[T]) -> None:
        self._iterator = iterator
        self._turn = asyncio.Lock()
        self.closes = isinstance(iterator, AsyncGenerator)

    async def next(self) -> T:
        """Return the next value, or `END` if there is none."""
        async with self._turn:
            return await anext(self._iterator, END)

    async def close(self) -> None:
        if isinstance(self._iterator, AsyncGenerator):
            async with self._turn:
                await self._iterator.aclose()
