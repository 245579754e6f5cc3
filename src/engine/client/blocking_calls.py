"""Pieces of a `SyncPool`: iterators whose steps run on the pool's event loop, and the end of a pool that is dropped.

`Steps` runs the steps of an async iterator for a thread, `MapResults` iterates over the results of a map, and
`end_dropped` ends a pool that its user does not close: the pool is garbage-collected, or the program ends.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ..api.errors import NotACall, PoolClosed

if TYPE_CHECKING:
    from .loop_thread import LoopThread
    from .signals import ThreadHold


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


class MapResults(Iterator[T]):
    """The results of `SyncPool.map`, which is running already.

    If the iterator is dropped before any result is read, the map is cancelled with a warning.
    """

    def __init__(self, chunks: Iterator[list[T]], first: Future[list[T]], function: str) -> None:
        # each chunk of results takes one call into the loop's thread
        self._results = itertools.chain.from_iterable(chunks)
        self._first, self._function = first, function
        self._read = False

    def __iter__(self) -> Iterator[T]:
        self._read = True
        return self._results

    def __next__(self) -> T:
        self._read = True
        return next(self._results)

    def __repr__(self) -> str:
        return f"<results of pool.map({self._function}, ...): iterate over them, as in list(...)>"

    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise NotACall(
                "This pool was opened by `with`, and its verbs wait: leave out await and async, or open it by "
                "`async with`."
            )

    def __del__(self) -> None:
        if self._read:
            return
        self._first.cancel()
        warnings.warn(
            f"Nobody has read the results of pool.map({self._function}, ...), so most of its items did not run: "
            "iterate over it, as in list(pool.map(...)).",
            RuntimeWarning,
            stacklevel=2,
        )


def end_dropped(pool: Any, shown: str, thread: LoopThread, hold: ThreadHold) -> None:
    """Warn, and end the pool in the pool's own thread.

    Any thread may call this. If the program ends, it waits until the pool has ended.
    """
    warnings.warn(
        f"{shown} was dropped without close(), and is ended now: keep a reference to it while it is used, and call "
        "close(), or open it by `with`.",
        ResourceWarning,
        stacklevel=3,
    )

    def over(ended: Future[None]) -> None:
        try:
            ended.result()  # raises the error of the pool's end, if any, which `concurrent.futures` then logs
        finally:
            hold.release()
            thread.stop()
            atexit.unregister(thread.stop)

    atexit.register(thread.stop)
    with suppress(PoolClosed):  # the pool has ended in the meantime
        thread.submit(pool.__aexit__, None, None, None).add_done_callback(over)


def close_at_exit(reference: weakref.ref[Any]) -> None:
    """Close a pool that is still open when the program ends, unless this process is a fork of the program."""
    if (pool := reference()) is not None and os.getpid() == pool._process:
        pool.close()


def kept(pool: Any, future: Future[T]) -> Future[T]:
    """Return the future, after making it hold a reference to its pool."""
    future.add_done_callback(partial(_do_nothing, pool))
    return future


def _do_nothing(pool: Any, future: Future[Any]) -> None:
    pass
