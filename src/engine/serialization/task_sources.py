"""Iterables on the client that running tasks consume as arguments."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from ..node import exception_pickle
from ..node.failure import text_of
from ..wire import values
from .client_streams import as_input_error, items_of, marked_blocking

_TEXT_CHARACTERS = 8 * 1024  # limit for an error that is sent as text

# Sends one item of a stream to its task. First argument None: no more items, or the next item failed with the pickled
# error in the second argument.
Give = Callable[[values.Dumped | None, bytes | None], Awaitable[None]]

# Returns a context in which pickles are for the nodes of a pool. It yields True if classes may have to be copied.
ForNodes = Callable[[], AbstractContextManager[bool | None]]


class Source:
    """An iterable argument on the client that a running task consumes.

    A plain iterator is advanced in a separate thread, because its ``next`` may block. Items keep their order.
    """

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any], for_nodes: ForNodes = nullcontext) -> None:
        self._items, self._for_nodes = items, for_nodes
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.fatal: BaseException | None = None  # an error that is not an `Exception`, to be raised in the caller

    def wanted(self, count: int, give: Give) -> None:
        """Send the task ``count`` more items, and None at the end."""
        self._wanted.put_nowait(count)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve(give))

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, give: Give) -> None:
        """Send the items. Report any failure to the task, which would otherwise wait forever."""
        try:
            await self._give_all(give)
        except BaseException as error:  # the user's iterator failed, or an item cannot be pickled or placed
            if self._stopped:
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            if not isinstance(error, Exception | asyncio.CancelledError):
                self.fatal = error
            with suppress(ConnectionError):  # the node is lost; the caller gets an error for that
                await give(None, self._error(as_input_error(error)))

    async def _give_all(self, give: Give) -> None:
        news = asyncio.Event()
        items = items_of(marked_blocking(self._items, closes=True), news)
        try:
            while True:
                for _ in range(await self._wanted.get()):
                    while not (taken := items.take(1)):
                        if items.is_exhausted():
                            await give(None, None)
                            return
                        await news.wait()
                        news.clear()
                    await give(self._item(taken[0]), None)
        finally:
            await items.close()

    def _item(self, item: object) -> values.Dumped:
        with self._for_nodes() as copies:
            return values.dump(item, "item", by_reference=not copies)

    def _error(self, error: BaseException) -> bytes:
        with self._for_nodes():
            return _pickled(error)


def _pickled(error: BaseException) -> bytes:
    """Pickle the error for the task to raise.

    An error that cannot be pickled or loaded, or is too large for a frame, is replaced by its text.
    """
    text = pickle.dumps(RuntimeError(f"{type(error).__name__}: {text_of(error)[:_TEXT_CHARACTERS]}"))
    try:
        pickled = exception_pickle.either(exception_pickle.dumps(error, most_bytes=values.INLINE_BYTES // 2), text)
        if len(pickled) <= values.INLINE_BYTES:
            return pickled
    except BaseException:  # noqa: BLE001, S110  pickling its class may fail, or call exit()
        pass
    return text
