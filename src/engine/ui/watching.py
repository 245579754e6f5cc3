"""The pages that somebody looks at: each is read by one task, however many readers it has, and by none without one."""

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

LOOK_S = 0.05  # between looks at what is shown
ALONE_S = 20.0  # that it is read on when its last reader has left, who may only load it again
T = TypeVar("T")


class Shown(Protocol):
    """A page that changes. Its methods are called in threads, one at a time."""

    updates: Updates
    over: bool  # it will not change any more

    def look(self) -> bool:
        """Read what is new; return whether there is a further message."""
        ...

    def html(self) -> str:
        """Return the whole page, for a reader that has nothing yet."""
        ...

    def whole(self) -> bytes:
        """Return the whole page as a message."""
        ...


class Watch:
    """A page that is read again and again while somebody looks at it."""

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
        """Return the messages after ``cursor``, each with the cursor behind it; a whole page where some are gone.

        With ``wait`` it returns nothing only when there will be nothing more.
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
        """Read until the page does not change any more, or nobody has looked at it for `ALONE_S`."""
        try:
            while not self._shown.over and (self._readers or time.monotonic() - self._left_at < ALONE_S):
                if await self._in_thread(self._shown.look):
                    self._tell()
                await anyio.sleep(self._look_s)
            if self._shown.over:
                await anyio.sleep(ALONE_S)  # slow readers get the last message too
        finally:
            self.close()

    def close(self) -> None:
        """Let all readers go."""
        self.closed = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _in_thread(self, action: Callable[[], T]) -> T:
        async with self._lock:
            return await anyio.to_thread.run_sync(action)


class Watches:
    """The pages that are looked at, by their name. Their tasks are of ``tasks``."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._watches: dict[str, Watch] = {}
        self._lock = anyio.Lock()
        self._closed = False

    async def of(self, name: str, make: Callable[[], Shown], look_s: float = LOOK_S) -> Watch:
        """Return what watches the page of this name; ``make`` is called in a thread where nothing does."""
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
        except Exception as error:  # noqa: BLE001  a record that cannot be read ends its page alone
            print(f"outrider: a page ends: {type(error).__name__}: {error}", file=sys.stderr)
        if self._watches.get(name) is watch:
            del self._watches[name]

    def close(self) -> None:
        self._closed = True
        for watch in self._watches.values():
            watch.close()
