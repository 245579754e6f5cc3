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
    """The steps of an async iterator that a thread asks for, one after another: also where the wait for one was
    interrupted, and its step is still being cancelled.
    """

    def __init__(self, iterator: AsyncIterator[T]) -> None:
        self._iterator = iterator
        self._turn = asyncio.Lock()
        self.closes = isinstance(iterator, AsyncGenerator)

    async def next(self) -> T:
        """Return the next value, or `END`."""
        async with self._turn:
            return await anext(self._iterator, END)

    async def close(self) -> None:
        if isinstance(self._iterator, AsyncGenerator):
            async with self._turn:
                await self._iterator.aclose()
