"""Iterable arguments of calls. The client reads them, and sends their items to the running tasks."""

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

_TEXT_CHARACTERS = 8 * 1024  # maximum length of an error that is sent as text

# A function that sends one item of a stream to its task. If the first argument is None, the stream ends there: with the
# pickled error in the second argument, or without an error.
Give = Callable[[values.Dumped | None, bytes | None], Awaitable[None]]

# Returns a context manager; pickles inside it are for a pool's nodes. It yields True if classes may have to be copied.
ForNodes = Callable[[], AbstractContextManager[bool | None]]


class Source:
    """An iterable argument on the client, whose items are sent to a running task.

    A separate thread advances a plain iterator, because its ``next`` may block. The order of the items is kept.
    """

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any], for_nodes: ForNodes = nullcontext) -> None:
        self._items, self._for_nodes = items, for_nodes
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        # an error of the iterable that is not an `Exception`; it is raised in the caller
        self.fatal: BaseException | None = None

    def wanted(self, count: int, give: Give) -> None:
        """Send the task ``count`` more items and, at the end of the items, None."""
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
        except BaseException as error:  # the user's iterator failed, or an item could not be pickled or stored
            if self._stopped:
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            if not isinstance(error, Exception | asyncio.CancelledError):
                self.fatal = error
            with suppress(ConnectionError):  # raised if the node is lost, for which the caller gets another error
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
    """Pickle an error of the input, which the task then raises.

    If the error cannot be pickled or unpickled, or is too large for a frame, it is replaced by a RuntimeError with its
    text.
    """
    text = pickle.dumps(RuntimeError(f"{type(error).__name__}: {text_of(error)[:_TEXT_CHARACTERS]}"))
    try:
        pickled = exception_pickle.either(exception_pickle.dumps(error, most_bytes=values.INLINE_BYTES // 2), text)
        if len(pickled) <= values.INLINE_BYTES:
            return pickled
    except BaseException:  # noqa: BLE001, S110  pickling its class may fail, or call exit()
        pass
    return text
