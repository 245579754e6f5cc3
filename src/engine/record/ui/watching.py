"""The pages that browsers show, and their streams of updates as server-sent events.

A task (`Watch`) updates each page for all its readers; a page without readers has no task. `Updates` keeps the newest
messages of a page, and `EventStream` sends them to one reader (a browser), in order, as fast as it reads. The position
of a reader in the messages is a text, the cursor.

LIVE-2: a reader that always continues from its last cursor receives each message once and in order, or is informed that
    it must begin again.
LIVE-3: the messages kept for readers, however slow, take at most ``most_bytes``, except for a single message.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from starlette.types import Receive, Scope, Send


MOST_BYTES = 4 << 20


class Updates:
    """The messages of one stream.

    ``name``: unique: a reader whose cursor has the name of an older stream must begin again.
    """

    def __init__(self, name: str, most_bytes: int = MOST_BYTES) -> None:
        self._name, self._most_bytes = name, most_bytes
        self._kept: deque[bytes] = deque()
        self._size_bytes = 0
        self._count = 0  # number of all messages so far

    @property
    def newest(self) -> str:
        """The cursor after the last message so far."""
        return f"{self._name}-{self._count}"

    def add(self, message: bytes) -> None:
        self._count += 1
        self._kept.append(message)
        self._size_bytes += len(message)
        while self._size_bytes > self._most_bytes and len(self._kept) > 1:
            self._size_bytes -= len(self._kept.popleft())

    def since(self, cursor: str) -> list[tuple[str, bytes]] | None:
        """Return (cursor, message) of each message after ``cursor``; None: some of these messages were dropped."""
        name, _, number = cursor.rpartition("-")
        if name != self._name or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return None
        missing = self._count - int(number)
        if not 0 <= missing <= len(self._kept):
            return None
        first = self._count - missing
        messages = [self._kept[place] for place in range(len(self._kept) - missing, len(self._kept))]
        return [(f"{self._name}-{first + place}", message) for place, message in enumerate(messages, 1)]


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


# after this many seconds without messages, an empty comment is sent, which fails if the browser has gone
QUIET_S = 15.0
SLOW_S = 60.0  # a browser that reads nothing for this many seconds is disconnected; it reconnects by itself
# milliseconds until a browser reconnects: after an error, and after a response that ends at once
AGAIN_MS, SOON_MS = 2000, 100


class EventStream:
    """The HTTP response with a page's stream of updates.

    It lasts until the page will not change any more, the browser disconnects, or the server ends.

    Args:
        watch: The page.
        cursor: The position in the stream from which to continue.
        lasting: False: the response ends after the present messages, and the browser reconnects. A browser has at most
            six connections to a server for all its pages.
        left: Called at the end of the response.
    """

    def __init__(self, watch: Watch, cursor: str, *, lasting: bool, left: Callable[[], object] = lambda: None) -> None:
        self._watch, self._cursor, self._lasting, self._left = watch, cursor, lasting, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        self._watch.came()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope.cancel)
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._send_all(send)
                tasks.cancel_scope.cancel()
        finally:
            self._watch.left()
            self._left()

    async def _send_all(self, send: Send) -> None:
        await _sent(send, b"retry: %d\n\n" % (AGAIN_MS if self._lasting else SOON_MS))
        while True:
            messages: list[tuple[str, bytes]] = []
            with anyio.move_on_after(QUIET_S) as quiet:
                messages = await self._watch.next(self._cursor, wait=self._lasting)
            if quiet.cancelled_caught:
                if not await _sent(send, b":\n\n"):
                    return
                continue
            for self._cursor, message in messages:
                if not await _sent(send, b"id: %s\ndata: %s\n\n" % (self._cursor.encode(), message)):
                    return
            if not messages or not self._lasting:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return


async def _sent(send: Send, body: bytes) -> bool:
    """Send a part of the response. Return False if the browser does not read it within `SLOW_S` seconds."""
    with anyio.move_on_after(SLOW_S) as slow:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    return not slow.cancelled_caught


async def _until_gone(receive: Receive, gone: Callable[[], object]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()
