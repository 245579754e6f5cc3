"""The streams of a task, in its worker: items that the client sends to the task, and items that the task yields.

A side may send as many items as the other side has allowed by `Credit`. The thread that reads the worker's pipe puts
messages into a queue; the task's threads, or its asyncio code, take them out.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..wire import values
from ..wire.messages import Credit, Input, Message
from . import blobs

OUTPUT = -1  # number of the stream of items that the task yields
WINDOW = 16  # maximum number of input items that are on the way or wait in the queue


class Streams:
    def __init__(self, attempt: int, send: Callable[[Message], None]) -> None:
        self._attempt = attempt
        self._send = send
        self._lock = threading.RLock()  # not locked by `_changed`: `Interrupted` may be raised in its __enter__
        self._changed = threading.Condition(self._lock)
        self._watchers: list[Callable[[], None]] = []
        self._items: defaultdict[int, deque[tuple[Input, list[int]]]] = defaultdict(deque)
        # stream -> number of its items that the client may still send, or that wait in the queue
        self._credited: defaultdict[int, int] = defaultdict(int)
        self._over: dict[int, BaseException] = {}  # input stream that has ended -> the exception for its reader
        self._credit = 0
        self._closed = False  # whether the client wants no more items from the task

    def put(self, message: Input | Credit, fds: list[int]) -> None:
        with self._lock:
            if isinstance(message, Input):
                self._items[message.stream].append((message, fds))
            elif message.stream == OUTPUT:
                self._credit += message.count
                self._closed = self._closed or message.count == 0
        self.wake()

    def wake(self) -> None:
        """Wake all threads that wait here, so that they check for new messages or are interrupted."""
        with self._lock:
            self._changed.notify_all()
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()

    def wait_credit(self) -> bool:
        """Wait until the task may send one more item; return False if the client wants no more items."""
        with self._lock:
            self._changed.wait_for(lambda: self._credit or self._closed)
            self._credit -= 1
            return not self._closed

    def next(self, stream: int) -> Any:
        with self._lock:
            self._ask(stream)
            self._changed.wait_for(lambda: self._has_next(stream))
            entry = self._take(stream)
        return self._unpack(stream, *entry)

    async def anext(self, stream: int) -> Any:
        import asyncio  # imported here because only async tasks need it

        loop = asyncio.get_running_loop()
        try:
            while True:
                with self._lock:
                    self._ask(stream)
                    if self._has_next(stream):
                        entry = self._take(stream)
                        break
                    changed = loop.create_future()
                    self._watchers.append(_waker(loop, changed))
                await changed
            return self._unpack(stream, *entry)
        except StopIteration:
            raise StopAsyncIteration from None

    def close(self, stream: int) -> None:
        with self._lock:
            if stream not in self._over:
                self._over[stream] = StopIteration()
                self._send(Credit(self._attempt, stream, 0))

    def discard(self) -> None:
        """Close the descriptors of items that the task has not read."""
        for items in self._items.values():
            for _, fds in items:
                for fd in fds:
                    os.close(fd)
            items.clear()

    def _ask(self, stream: int) -> None:
        """Allow the client to send more items, once half of `WINDOW` is used: one message for several items."""
        if stream not in self._over and self._credited[stream] <= WINDOW // 2:
            count = WINDOW - self._credited[stream]
            self._credited[stream] += count
            self._send(Credit(self._attempt, stream, count))

    def _has_next(self, stream: int) -> bool:
        return bool(self._items[stream]) or stream in self._over

    def _take(self, stream: int) -> tuple[Input, list[int]]:
        if stream in self._over:
            raise self._over[stream]
        self._credited[stream] -= 1
        return self._items[stream].popleft()

    def _unpack(self, stream: int, message: Input, fds: list[int]) -> Any:
        if message.item is not None:
            return blobs.load(message.item, fds)
        self._over[stream] = StopIteration()
        if message.error is not None:
            raise values.load(message.error)
        raise self._over[stream]


def _waker(loop: Any, future: Any) -> Callable[[], None]:
    def wake() -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nothing waits in it
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

    return wake
