"""The pages that browsers show. A task updates each page for all its readers. A page without readers has no task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
import anyio.to_thread

from .updates import Updates

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

LOOK_S = 0.05  # seconds between two checks of a page for changes
# Seconds for which a page is still updated after its last reader has gone, as a browser may be reloading it.
ALONE_S = 20.0
T = TypeVar("T")


class Shown(Protocol):
    """A page that changes. Worker threads call its methods, one at a time."""

    updates: Updates
    over: bool  # True: the page will not change any more

    def look(self) -> bool:
        """Read what was added to the record. Return whether this added a message to ``updates``."""
        ...

    def html(self) -> str:
        """Return the HTML of the whole page, for a new reader."""
        ...

    def whole(self) -> bytes:
        """Return a message that replaces the whole page."""
        ...


class Watch:
    """A page with the task that updates it while the page has readers."""

    def __init__(self, shown: Shown, look_s: float = LOOK_S) -> None:
        self._shown, self._look_s = shown, look_s
        self._readers = 0
        self._left_at = time.monotonic()
        self._lock = anyio.Lock()
        self._news = anyio.Event()
        self.closed = False

    async def html(self) -> str:
        self._left_at = time.monotonic()
        return await self._in_thread(self._shown.html)

    async def next(self, cursor: str, *, wait: bool) -> list[tuple[str, bytes]]:
        """Return (cursor, message) of each message after ``cursor``.

        If some of these messages were dropped, return one message that replaces the whole page. ``wait``: True: wait
        for a message; an empty result means that the page will not change any more.
        """
        while not self.closed:
            news, over = self._news, self._shown.over
            messages = self._shown.updates.since(cursor)
            if messages is None:
                return [await self._in_thread(lambda: (self._shown.updates.newest, self._shown.whole()))]
            if messages or over or not wait:
                return messages
            await news.wait()
        return []

    def came(self) -> None:
        self._readers += 1

    def left(self) -> None:
        self._readers -= 1
        self._left_at = time.monotonic()

    async def run(self) -> None:
        """Update the page until it will not change any more, or has had no reader for `ALONE_S` seconds."""
        try:
            while not self._shown.over and (self._readers or time.monotonic() - self._left_at < ALONE_S):
                if await self._in_thread(self._shown.look):
                    self._tell()
                await anyio.sleep(self._look_s)
            if self._shown.over:
                await anyio.sleep(ALONE_S)  # slow readers can still get the last message in this time
        finally:
            self.close()

    def close(self) -> None:
        """End the waiting of all readers."""
        self.closed = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _in_thread(self, action: Callable[[], T]) -> T:
        async with self._lock:
            return await anyio.to_thread.run_sync(action)


class Watches:
    """The pages that are being updated, by name. Their tasks run in the task group ``tasks``."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._watches: dict[str, Watch] = {}
        self._lock = anyio.Lock()
        self._closed = False

    async def of(self, name: str, make: Callable[[], Shown], look_s: float = LOOK_S) -> Watch:
        """Return the watch of the page ``name``. If there is none, a thread creates the page by calling ``make``."""
        async with self._lock:
            watch = self._watches.get(name)
            if watch is None or watch.closed:
                watch = Watch(await anyio.to_thread.run_sync(make), look_s)
                if self._closed:
                    watch.close()
                else:
                    self._watches[name] = watch
                    self._tasks.start_soon(self._run, name, watch)
            return watch

    async def _run(self, name: str, watch: Watch) -> None:
        try:
            await watch.run()
        except Exception as error:  # noqa: BLE001  an unreadable record ends only its own page
            print(f"outrider: a page ends: {type(error).__name__}: {error}", file=sys.stderr)
        if self._watches.get(name) is watch:
            del self._watches[name]

    def close(self) -> None:
        self._closed = True
        for watch in self._watches.values():
            watch.close()
