"""The client's halves of plugins, around an open pool, and the news that wait for them. See `api.plugin_sides`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...actors.ports import NodeId
from ..api.plugin import Plugin
from ..api.plugin_sides import Heard, Joined, Left, News

if TYPE_CHECKING:
    from ..pool import Pool
    from ..transport.connector import Connector
    from ..transport.forward import Forwards
    from .open_pool import OpenPool
    from .plugin_hosts import PluginHosts

AHEAD = 256  # messages of one node that are not read yet; the largest that plugins here send has a few hundred bytes
AHEAD_BYTES = 1 << 20  # of them all, as they came; one that is larger comes alone


@asynccontextmanager
async def attached(
    core: OpenPool, plugins: Sequence[Plugin], hosts: PluginHosts, connector: Connector
) -> AsyncIterator[Mapping[str, Any]]:
    """Run the client's half of every plugin that has one, during the block. Yield what each half gives, by plugin."""
    attaching = [plugin for plugin in plugins if type(plugin).attach is not Plugin.attach]
    if not attaching:
        yield {}
        return
    from ..transport.forward import Forwards

    handles: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        forwards = await stack.enter_async_context(Forwards())
        for plugin in attaching:
            context = PoolContext(core, plugin.name, hosts, connector, forwards)
            handles[plugin.name] = await stack.enter_async_context(plugin.attach(context))
        yield handles


class PoolContext:
    """Implements `api.plugin_sides.PluginContext` for one plugin."""

    def __init__(
        self, core: OpenPool, plugin: str, hosts: PluginHosts, connector: Connector, forwards: Forwards
    ) -> None:
        self.core = core
        self._plugin, self._hosts, self._connector, self._forwards = plugin, hosts, connector, forwards

    @property
    def pool(self) -> Pool:
        return self.core.pool

    @property
    def slots(self) -> int:
        return self.core.observer.slots()

    def news(self) -> AsyncIterator[News]:
        return self._hosts.news(self._plugin)

    def tell(self, node: NodeId, message: Any) -> None:
        self._hosts.tell(node, self._plugin, message)

    async def forward(self, node: NodeId, port: int) -> str:
        return await self._connector.forward(node, port, self._forwards)


@dataclass(slots=True)
class _Unread:
    count: int = 0
    size_bytes: int = 0
    room: asyncio.Future[None] | None = None  # somebody waits for it

    @property
    def is_full(self) -> bool:
        return self.count >= AHEAD or self.size_bytes >= AHEAD_BYTES


class PluginInbox:
    """The news that a plugin's half has not read yet. There is one reader.

    INBOX-1: of each node's messages at most `AHEAD` are held, and of at most `AHEAD_BYTES` before the last of them. It
    is back pressure and not a node's fault that more come: a sender cannot know how fast they are read. Nothing is
    dropped as long as somebody may read it, and a node that sends more only fills its own memory.
    """

    def __init__(self) -> None:
        self._news: deque[tuple[News, int]] = deque()
        self._unread: dict[NodeId, _Unread] = {}
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, news: Joined | Left) -> None:
        """Add the pool's own news. This does not wait, since there are few for each node."""
        self._append(news, 0)

    async def put_message(self, node: NodeId, message: object, size_bytes: int) -> None:
        """Add a node's message when there is room; one call for a node at a time. If cancelled, it is not added."""
        while not self._closed and (full := self._unread.get(node)) is not None and full.is_full:
            full.room = asyncio.get_running_loop().create_future()
            await full.room
        if not self._closed:
            unread = self._unread.setdefault(node, _Unread())
            unread.count += 1
            unread.size_bytes += size_bytes
            self._append(Heard(node, message), size_bytes)

    async def read(self) -> News:
        while not self._news:
            self._changed.clear()
            await self._changed.wait()
        news, size_bytes = self._news.popleft()
        if isinstance(news, Heard):
            self._taken(news.node, size_bytes)
        return news

    def close(self) -> None:
        """Drop all further messages, and let those go on that wait for room: nobody reads any more."""
        self._closed = True
        for unread in self._unread.values():
            _wake(unread)

    def _append(self, news: News, size_bytes: int) -> None:
        self._news.append((news, size_bytes))
        self._changed.set()

    def _taken(self, node: NodeId, size_bytes: int) -> None:
        unread = self._unread[node]
        unread.count -= 1
        unread.size_bytes -= size_bytes
        if not unread.count:
            del self._unread[node]
        _wake(unread)


def _wake(unread: _Unread) -> None:
    if unread.room is not None and not unread.room.done():
        unread.room.set_result(None)
