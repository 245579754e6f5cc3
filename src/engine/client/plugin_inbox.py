"""Hold what a plugin's half at the client has not read yet. It is bounded for each node; further messages wait on the
node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from ...actors.ports import NodeId
from ..api.plugin_sides import Heard, Joined, Left, News

AHEAD = 256  # messages of one node that are not read yet; the largest that plugins here send has a few hundred bytes
AHEAD_BYTES = 1 << 20  # of them all, as they came; one that is larger comes alone


@dataclass(slots=True)
class _Unread:
    count: int = 0
    size_bytes: int = 0
    room: asyncio.Future[None] | None = None  # somebody waits for it

    @property
    def is_full(self) -> bool:
        return self.count >= AHEAD or self.size_bytes >= AHEAD_BYTES


class PluginInbox:
    """One plugin's news, for one reader.

    INBOX-1: of each node's messages at most `AHEAD` are held, and of at most `AHEAD_BYTES` before the last of them.

    More of them wait on the node, by back pressure: a sender cannot know how fast its messages are read. Nothing is
    dropped as long as somebody may read it, and a node that sends more only fills its own memory.
    """

    def __init__(self) -> None:
        self._news: deque[tuple[News, int]] = deque()
        self._unread: dict[NodeId, _Unread] = {}
        self._closed = False
        self._changed = asyncio.Event()

    def tell(self, news: Joined | Left) -> None:
        """Add the pool's own news. This does not wait, since there are few for each node."""
        self._put(news, 0)

    async def hear(self, node: NodeId, message: object, size_bytes: int) -> None:
        """Add a node's message when there is room; one call for a node at a time. If cancelled, it is not added."""
        while not self._closed and (full := self._unread.get(node)) is not None and full.is_full:
            full.room = asyncio.get_running_loop().create_future()
            await full.room
        if not self._closed:
            unread = self._unread.setdefault(node, _Unread())
            unread.count += 1
            unread.size_bytes += size_bytes
            self._put(Heard(node, message), size_bytes)

    async def read(self) -> News:
        while not self._news:
            self._changed.clear()
            await self._changed.wait()
        news, size_bytes = self._news.popleft()
        if isinstance(news, Heard):
            self._taken(news.node, size_bytes)
        return news

    def close(self) -> None:
        """Nobody reads any more: nobody waits for room, and what is heard is forgotten."""
        self._closed = True
        for unread in self._unread.values():
            _let_go_on(unread)

    def _put(self, news: News, size_bytes: int) -> None:
        self._news.append((news, size_bytes))
        self._changed.set()

    def _taken(self, node: NodeId, size_bytes: int) -> None:
        unread = self._unread[node]
        unread.count -= 1
        unread.size_bytes -= size_bytes
        if not unread.count:
            del self._unread[node]
        _let_go_on(unread)


def _let_go_on(unread: _Unread) -> None:
    if unread.room is not None and not unread.room.done():
        unread.room.set_result(None)
