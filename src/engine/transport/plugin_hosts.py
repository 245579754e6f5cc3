"""The client's side of plugin hosts: processes that run the plugins' code on the nodes, one for each node.

A plugin host (see `runtime.plugin_host`) is a task that takes no slot, and that the pool's actor does not know. This
module starts the plugin host, exchanges messages with it, and ends it after the tasks. `api.plugin` has the interfaces
of both sides.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from ...actors.interfaces import (
    ConnectFailed,
    Finished,
    NodeFacts,
    NodeId,
    Report,
    Settled,
)
from ...lazy_dataclass import dataclass
from ..api.errors import BootstrapError, OutriderError, SpecError
from ..api.plugin import Heard, Joined, Left, News, Plugin
from ..api.printable import plainly
from ..runtime.plugin_host import READY, STARTING, plugin_host
from ..serialization import function_pickling, program
from ..serialization.client_streams import Values
from ..serialization.error_notes import cause_of, pickling_error
from ..serialization.error_translation import error_of
from ..wire import values
from .link import FIRST_BESIDE, internal_payload

if TYPE_CHECKING:
    from ..wire.importable import ImportableModules
    from .link import NodeLink

KILL_S = 5.0  # seconds for the tasks of a node to end
STOP_S = 20.0  # seconds for the plugins' code on a node to stop
RETIRE_S = 4.5  # seconds for tasks and plugins to end on a node that the pool drops
AHEAD = 256  # limit of unread messages of one node; a message of Outrider's own plugins has a few hundred bytes at most
# limit for the total size of the unread messages of one node, as received; a larger message is held alone
AHEAD_BYTES = 1 << 20
_END: Any = object()


class PluginHosts:
    """The plugin hosts of a pool: one per connected node, if a plugin of the pool has code for nodes."""

    def __init__(
        self, pool: str, plugins: Sequence[Plugin], node_modules: Callable[[], ImportableModules | None]
    ) -> None:
        """Begin without nodes. ``node_modules`` is called at the first connection: returns what nodes can import."""
        self._pool = pool
        self._node_modules = node_modules
        self._plugins = [plugin for plugin in plugins if type(plugin).node is not Plugin.node]
        self.inboxes = {plugin.name: PluginInbox() for plugin in plugins if type(plugin).attach is not Plugin.attach}
        self._by_node: dict[NodeId, PluginHost] = {}
        self._stopped = False  # True: reports of ended tasks are dropped, as their slots must not be filled again

    @property
    def present(self) -> bool:
        return bool(self._plugins)

    async def start(self, node: NodeId, link: NodeLink, facts: NodeFacts, *, systematic: bool) -> NodeFacts:
        """Set up all plugins on a connected node. Return the node's facts, to which plugins may have added variables.

        On cancellation, plugins that have started end with the executor. ``systematic``: whether an error on this node
        would occur on every node.

        Raises:
            ConnectFailed: a plugin cannot be set up on the node, and another try would not help.
        """
        if not self._plugins:
            self.publish(Joined(node, facts))
            return facts
        try:
            packed = self._packed
        except OutriderError as error:
            raise ConnectFailed(str(error), systematic=True) from error
        self._by_node[node] = host = PluginHost(self, node, link, systematic=systematic)
        about_node = {
            "pool": self._pool,
            "node": int(node),
            "hostname": facts.hostname,
            "address": facts.address,
            "accelerators": facts.accelerators,
        }
        host.run(*packed, about_node)
        try:
            env, accelerators = await host.ready
        except BaseException:
            del self._by_node[node]
            host.abandon()
            raise
        full_facts = replace(facts, variables=tuple(env.items()), accelerators=tuple(map(tuple, accelerators)))
        self.publish(Joined(node, full_facts))
        return full_facts

    def reported(self, reports: Sequence[Report]) -> Sequence[Report]:
        return [] if self._stopped else reports

    def left(self, node: NodeId) -> None:
        """Forget the plugin host of a node whose connection is closed for good."""
        host = self._by_node.pop(node, None)
        if host is not None:
            host.abandon()
        self.publish(Left(node))

    async def stop(self) -> None:
        """End the tasks of all nodes, then their plugin hosts, as the pool ends. The time is bounded."""
        self._stopped = bool(self._plugins)
        for inbox in self.inboxes.values():
            inbox.close()
        await asyncio.gather(*(host.stop() for host in self._by_node.values()))

    async def retire(self, node: NodeId) -> None:
        """End the tasks, then the plugin host, of a node that the pool drops. It takes at most `RETIRE_S`."""
        host = self._by_node.get(node)
        if host is not None:
            await asyncio.wait([asyncio.ensure_future(host.stop())], timeout=RETIRE_S)

    def send(self, node: NodeId, plugin: str, message: Any) -> None:
        host = self._by_node.get(node)
        if host is not None:
            host.outbox.put_nowait((plugin, message))

    def publish(self, news: Joined | Left) -> None:
        """Send all plugins the event that a node has joined or left, or that its plugin host has ended by itself."""
        for inbox in self.inboxes.values():
            inbox.put(news)

    @cached_property
    def _packed(self) -> tuple[bytes, bytes]:
        modules = {type(plugin).__module__ for plugin in self._plugins}
        with function_pickling.for_nodes(self._node_modules()):
            try:
                packed = function_pickling.dumps(tuple(self._plugins), "plugins", *modules)
            except Exception as error:  # noqa: BLE001  a __reduce__ may raise anything
                raise pickling_error(error, "the pool", "A plugin") from cause_of(error)
            code = program.build(plugin_host)
        if len(packed) > values.INLINE_BYTES // 2:
            raise SpecError("The pool's plugins are too large to be sent: give them names of files instead.")
        return code, packed


class PluginHost:
    def __init__(self, hosts: PluginHosts, node: NodeId, link: NodeLink, *, systematic: bool) -> None:
        self._hosts, self._node, self._link, self._systematic = hosts, node, link, systematic
        loop = asyncio.get_running_loop()
        self.outbox: asyncio.Queue[Any] = asyncio.Queue()
        self.ready: asyncio.Future[tuple[dict[str, str], Sequence[Any]]] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._output = Values()
        self._reading: asyncio.Task[None] | None = None
        self._setting_up = "?"  # name of the plugin that is being set up
        self._stopping = False

    def run(self, code: bytes, plugins: bytes, facts: dict[str, Any]) -> None:
        items: Any = self._items()
        self._payload = internal_payload(plugin_host(plugins, facts, items), code, output=self._output, name="plugins")
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self._attempt = self._link.run_beside(self._payload, self.ended)

    async def _items(self) -> AsyncIterator[Any]:
        while (item := await self.outbox.get()) is not _END:
            yield item

    def ended(self, report: Finished | None) -> None:
        """Handle the end of the plugin host's process, once all its messages are read.

        ``report``: the end of the process; None: the node is lost, and the pool calls `abandon` next.
        """
        if report is None:
            return
        self._output.end()
        if not self._done.done():
            self._done.set_result(None)
        assert self._reading is not None, "it runs"
        self._reading.add_done_callback(lambda _: self._read_to_the_end(report))

    def _read_to_the_end(self, report: Finished) -> None:
        if not self.ready.done():
            error = error_of(Settled(report.verdict, report.outcome, self._node, 0, 1, 0), self._payload)
            message = f"the plugin {self._setting_up} could not be set up: {error}"
            if isinstance(error, OutriderError):
                self._fail(message, error, systematic=True)
            else:
                self._fail(message, BootstrapError(message, phase="plugins"), plainly(error))
        elif not self._stopping:
            self._hosts.publish(Left(self._node))

    def _fail(
        self, message: str, reason: OutriderError, cause: Exception | None = None, *, systematic: bool = False
    ) -> None:
        reason.__cause__ = cause
        failed = ConnectFailed(message, fatal=True, systematic=self._systematic or systematic)
        failed.__cause__ = reason
        self.ready.set_exception(failed)
        self.ready.exception()  # retrieve the error: asyncio would log it

    def abandon(self) -> None:
        """Forget the process: its connection is closed for good."""
        self._output.end()
        self.outbox.put_nowait(_END)
        for feed in self._payload.inputs:
            feed.stop()
        if self._reading is not None:
            self._reading.cancel()
        for future in (self.ready, self._done):
            future.cancel()

    async def stop(self) -> None:
        if self._stopping or not self.ready.done():
            return
        self._stopping = True
        await self._link.kill_all(FIRST_BESIDE, within_s=KILL_S)
        self.outbox.put_nowait(_END)
        await asyncio.wait([self._done], timeout=STOP_S)

    async def _read(self) -> None:
        try:
            await self._receive()
        except Exception as error:  # noqa: BLE001  unpickling may raise anything: a class may be missing
            self._unreadable(error)

    def _unreadable(self, error: Exception) -> None:
        """End the node's plugin host, because its messages cannot be read, as if its process had ended by itself."""
        cannot = f"cannot be read by the client ({type(error).__name__}: {plainly(error)})"
        mend = "a half may send only what can be imported here as well"
        if self.ready.done():
            story = f"A message of a plugin's half on node {int(self._node)} {cannot}, and all halves there are ended"
            warnings.warn(f"{story}: {mend}.", RuntimeWarning, stacklevel=2)
        else:
            message = f"the plugin {self._setting_up} could not be set up: its message {cannot}; {mend}"
            self._fail(message, BootstrapError(message, phase="plugins"), error)
        # kill the process: it would wait forever to send messages that this client no longer reads
        self._link.kill(self._attempt)

    async def _receive(self) -> None:
        async for received in self._output:
            kind, name, message = cast("tuple[int, str, Any]", values.load(received.data, received.sizes))
            if kind == STARTING:
                self._setting_up = name
            elif kind == READY:
                if not self.ready.done():
                    self.ready.set_result(message)
            elif name in self._hosts.inboxes:
                await self._hosts.inboxes[name].put_message(self._node, message, len(received.data))


@dataclass(slots=True)
class _Unread:
    count: int = 0
    size_bytes: int = 0
    room: asyncio.Future[None] | None = None  # a future that exists while a sender waits for room

    @property
    def is_full(self) -> bool:
        return self.count >= AHEAD or self.size_bytes >= AHEAD_BYTES

    def wake(self) -> None:
        if self.room is not None and not self.room.done():
            self.room.set_result(None)


class PluginInbox:
    """The events and messages that a plugin's client side has not read yet. There is one reader.

    INBOX-1: of each node, at most `AHEAD` messages are held; all of them but the last take at most `AHEAD_BYTES`.
        Further messages wait at the node, which is no error of the node: a sender cannot know how fast they are read.
        No message is dropped while the inbox is open, and a node that sends more only fills its own memory.
    """

    def __init__(self) -> None:
        self._news: asyncio.Queue[tuple[News, int]] = asyncio.Queue()
        self._unread: dict[NodeId, _Unread] = {}
        self._closed = False

    def put(self, news: Joined | Left) -> None:
        """Add an event of the pool itself. This does not wait for room, as there are few events for each node."""
        self._news.put_nowait((news, 0))

    async def put_message(self, node: NodeId, message: object, size_bytes: int) -> None:
        """Add a node's message when there is room.

        Only one call for a node at a time. If cancelled, nothing is added.
        """
        while not self._closed and (full := self._unread.get(node)) is not None and full.is_full:
            full.room = asyncio.get_running_loop().create_future()
            await full.room
        if not self._closed:
            unread = self._unread.setdefault(node, _Unread())
            unread.count += 1
            unread.size_bytes += size_bytes
            self._news.put_nowait((Heard(node, message), size_bytes))

    async def read(self) -> News:
        news, size_bytes = await self._news.get()
        if isinstance(news, Heard):
            unread = self._unread[news.node]
            unread.count -= 1
            unread.size_bytes -= size_bytes
            if not unread.count:
                del self._unread[news.node]
            unread.wake()
        return news

    def close(self) -> None:
        """Drop all further messages and release waiting senders, as nobody reads the inbox any more."""
        self._closed = True
        for unread in self._unread.values():
            unread.wake()
