"""The client's end of the plugin hosts: it starts one on each node, passes messages, and ends them in order.

A plugin host is a process on a node that runs the plugins' halves there (see `runtime.plugin_host`). Here it is a task
beside the slots, which the pool's actor does not know.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from ...actors.ports import (
    AttemptId,
    ConnectFailed,
    Finished,
    JobId,
    NodeFacts,
    NodeId,
    Order,
    Report,
    Settled,
    Task,
    TaskId,
)
from ..api.errors import BootstrapError, OutriderError, SpecError
from ..api.plugin import Plugin
from ..api.plugin_sides import Joined, Left, News
from ..api.printable import plainly
from ..runtime.plugin_host import READY, STARTING, plugin_host
from ..serialization import pickling, program
from ..serialization.error_translation import pickling_error
from ..serialization.outcome import error_of
from ..serialization.payload import Payload
from ..serialization.streams import Source, Values
from ..wire import values
from ..wire.messages import RunFlag
from .plugin_context import PluginInbox

if TYPE_CHECKING:
    from ..serialization.importable import ImportableModules
    from ..transport.link import NodeLink

FIRST_ATTEMPT = 1 << 62  # the pool actor, which never hears of these, counts its own from 1
KILL_S = 5.0  # for the tasks of a node to be gone
STOP_S = 20.0  # for all halves of a node to be taken down
RETIRE_S = 4.5  # for tasks and halves of a node that the pool does not want any more
_END: Any = object()


class PluginHosts:
    """The plugin hosts of a pool: one per connected node, if a plugin of the pool has a half there."""

    def __init__(
        self, pool: str, plugins: Sequence[Plugin], node_modules: Callable[[], ImportableModules | None]
    ) -> None:
        """``node_modules``: the modules that nodes can import; asked when the first node is connected."""
        self._pool = pool
        self._node_modules = node_modules
        self._plugins = [plugin for plugin in plugins if type(plugin).node is not Plugin.node]
        self._inboxes = {plugin.name: PluginInbox() for plugin in plugins if type(plugin).attach is not Plugin.attach}
        self._by_node: dict[NodeId, PluginHost] = {}
        self._attempts = itertools.count(FIRST_ATTEMPT)
        self._stopped = False  # then reports of ended tasks are dropped: their slots are not to be filled again

    @property
    def present(self) -> bool:
        return bool(self._plugins)

    async def start(self, node: NodeId, link: NodeLink, facts: NodeFacts, *, systematic: bool) -> NodeFacts:
        """Set up every half on a node that is connected: its facts as they are then. Cancelled, it leaves what has
        begun to the end of the executor. ``systematic``: what fails here would fail on every node.

        Raises:
            ConnectFailed: (``fatal``) a plugin cannot be set up there.
        """
        if not self._plugins:
            self._tell(Joined(node, facts))
            return facts
        try:
            packed = self._packed
        except OutriderError as error:
            raise ConnectFailed(str(error), systematic=True) from error
        self._by_node[node] = host = PluginHost(self, node, link, systematic=systematic)
        host.run(AttemptId(next(self._attempts)), *packed, self._facts(node, facts))
        try:
            env, accelerators = await host.ready
        except BaseException:
            del self._by_node[node]
            host.abandon()
            raise
        found = replace(facts, variables=tuple(env.items()), accelerators=tuple(map(tuple, accelerators)))
        self._tell(Joined(node, found))
        return found

    def reported(self, node: NodeId, reports: Sequence[Report]) -> Sequence[Report]:
        """Return the reports that are not about a plugin host."""
        if not self._stopped and not any(
            type(report) is Finished and report.attempt >= FIRST_ATTEMPT for report in reports
        ):
            return reports
        each = self._by_node.get(node)
        others: list[Report] = []
        for report in reports:
            if not isinstance(report, Finished) or report.attempt < FIRST_ATTEMPT:
                others.append(report)
            elif each is not None:
                each.ended(report)
        return [] if self._stopped else others

    def left(self, node: NodeId) -> None:
        """Forget the plugin host of a node whose connection is closed for good."""
        each = self._by_node.pop(node, None)
        if each is not None:
            each.abandon()
        self._tell(Left(node))

    async def stop(self) -> None:
        """End what runs on the nodes, then take all halves down: the pool ends. Bounded."""
        self._stopped = bool(self._plugins)
        for inbox in self._inboxes.values():
            inbox.close()
        await asyncio.gather(*(each.stop() for each in self._by_node.values()))

    async def retire(self, node: NodeId) -> None:
        """Do the same on one node, which the pool leaves, in the time that the end of one connection has."""
        each = self._by_node.get(node)
        if each is not None:
            await asyncio.wait([asyncio.ensure_future(each.stop())], timeout=RETIRE_S)

    def tell(self, node: NodeId, plugin: str, message: Any) -> None:
        each = self._by_node.get(node)
        if each is not None:
            each.inbox.put_nowait((plugin, message))

    async def news(self, plugin: str) -> AsyncIterator[News]:
        inbox = self._inboxes[plugin]
        while True:
            yield await inbox.read()

    async def received(self, node: NodeId, plugin: str, message: Any, size_bytes: int) -> None:
        """Take a message of a node's half when there is room. Until then no further one of that node is taken."""
        if plugin in self._inboxes:
            await self._inboxes[plugin].put_message(node, message, size_bytes)

    def broken(self, node: NodeId) -> None:
        """Tell the plugins that a plugin host's process has ended by itself."""
        self._tell(Left(node))

    @cached_property
    def _packed(self) -> tuple[bytes, bytes]:
        """Return the plugin host's program and the plugins, both pickled.

        Raises:
            SerializationError: a plugin cannot be pickled.
            SpecError
        """
        modules = {type(plugin).__module__ for plugin in self._plugins}
        with pickling.for_nodes(self._node_modules()):
            try:
                packed = pickling.dumps(tuple(self._plugins), "plugins", *modules)
            except Exception as error:
                raise pickling_error(error, "the pool", "A plugin") from error
            code = program.build(plugin_host)
        if len(packed) > values.INLINE_BYTES // 2:
            raise SpecError("The pool's plugins are too large to be sent: give them names of files instead.")
        return code, packed

    def _tell(self, news: Joined | Left) -> None:
        for inbox in self._inboxes.values():
            inbox.put(news)

    def _facts(self, node: NodeId, facts: NodeFacts) -> dict[str, Any]:
        return {
            "pool": self._pool,
            "node": int(node),
            "hostname": facts.hostname,
            "address": facts.address,
            "accelerators": facts.accelerators,
        }


class PluginHost:
    """The client's end of one node's plugin host."""

    def __init__(self, hosts: PluginHosts, node: NodeId, link: NodeLink, *, systematic: bool) -> None:
        self._hosts, self._node, self._link, self._systematic = hosts, node, link, systematic
        loop = asyncio.get_running_loop()
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.ready: asyncio.Future[tuple[dict[str, str], Sequence[Any]]] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._output = Values()
        self._reading: asyncio.Task[None] | None = None
        self._setting_up = "?"  # the plugin
        self._stopping = False

    def run(self, attempt: AttemptId, code: bytes, plugins: bytes, facts: dict[str, Any]) -> None:
        items: Any = _items(self.inbox)
        args, kwargs, inputs = plugin_host(plugins, facts, items).detach()
        digest = hashlib.blake2b(code, digest_size=16).digest()
        self._payload = Payload(
            name="plugins",
            function=digest,
            code=code,
            args=values.inline(values.dump((args, kwargs), ("args", "kwargs"))),
            flags=int(RunFlag.STREAM | RunFlag.ALONE | RunFlag.FRESH | RunFlag.BESIDE),
            output=self._output,
            inputs=tuple(Source(each) for each in inputs),
        )
        task = Task(TaskId(0), JobId(0), digest, self._payload, retries=0, at_most_once=True)
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self._attempt = attempt
        self._link.run(Order(attempt, task, 1))

    def ended(self, report: Finished) -> None:
        """Note that the plugin host's process is over, for whatever reason."""
        self._output.end()
        if not self._done.done():
            self._done.set_result(None)
        assert self._reading is not None, "it runs"
        self._reading.add_done_callback(lambda _: self._ended_and_heard(report))

    def _ended_and_heard(self, report: Finished) -> None:
        """Act on the end of the process, once everything that it had said before is read."""
        if not self.ready.done():
            error = error_of(Settled(report.verdict, report.outcome, self._node, 0, 1, 0), self._payload)
            message = f"the plugin {self._setting_up} could not be set up: {error}"
            reason = error if isinstance(error, OutriderError) else BootstrapError(message, phase="plugins")
            reason.__cause__ = plainly(error) if reason is not error else None
            failed = ConnectFailed(message, fatal=True, systematic=self._systematic or reason is error)
            failed.__cause__ = reason
            self.ready.set_exception(failed)
            self.ready.exception()  # whoever waited may have gone
        elif not self._stopping:
            self._hosts.broken(self._node)

    def abandon(self) -> None:
        """Forget the process: its connection is closed for good."""
        self._output.end()
        self.inbox.put_nowait(_END)
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
        await self._link.kill_all(FIRST_ATTEMPT, within_s=KILL_S)
        self.inbox.put_nowait(_END)
        await asyncio.wait([self._done], timeout=STOP_S)

    async def _read(self) -> None:
        try:
            await self._receive()
        except Exception as error:  # noqa: BLE001  whatever unpickling raises: the classes may not be here
            self._unreadable(error)

    def _unreadable(self, error: Exception) -> None:
        """End the node's plugin halves, whose messages cannot be read. They count as if their process had ended by
        itself.
        """
        what = f"{type(error).__name__}: {plainly(error)}"
        if self.ready.done():
            said = f"A message of a plugin's half on node {int(self._node)} cannot be read by the client ({what})"
            warnings.warn(f"{said}: the plugins' halves on that node are ended.", RuntimeWarning, stacklevel=2)
        else:
            said = (
                f"the plugin {self._setting_up} could not be set up: its message cannot be read by the client ({what})"
            )
            failed = ConnectFailed(said, fatal=True, systematic=self._systematic)
            failed.__cause__ = BootstrapError(said, phase="plugins")
            failed.__cause__.__cause__ = error
            self.ready.set_exception(failed)
            self.ready.exception()  # whoever waited may have gone
        self._link.kill(self._attempt)  # it waits for room in what nobody reads any more

    async def _receive(self) -> None:
        async for received in self._output:
            kind, name, message = cast("tuple[int, str, Any]", values.load(received.data, received.sizes))
            if kind == STARTING:
                self._setting_up = name
            elif kind == READY:
                if not self.ready.done():
                    self.ready.set_result(message)
            else:
                await self._hosts.received(self._node, name, message, len(received.data))


async def _items(inbox: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while (item := await inbox.get()) is not _END:
        yield item
