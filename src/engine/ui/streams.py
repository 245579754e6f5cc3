"""Streams of updates as server-sent events: a browser gets each message, in order, as fast as it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from .watching import Watch

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

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
