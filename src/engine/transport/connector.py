"""One pool's connections: opened for its nodes, found again by node, and ended where a node was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...actors.ports import NodeFacts, NodeId, Report
from ...providers.base import Machine
from ..serialization.payload import Blob
from .connection import NodeConnection
from .connection_settings import ConnectionSettings

if TYPE_CHECKING:
    from .forward import Forwards


class Connector:
    """Implements `actors.ports.Connect` for one pool."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._connections: dict[NodeId, NodeConnection] = {}
        self._opening: dict[NodeId, NodeConnection] = {}  # tried and not reached: what was agreed on there stays agreed
        self._evictions: set[asyncio.Task[None]] = set()

    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> NodeConnection:
        connection = self._opening.get(node)
        if connection is None:
            connection = NodeConnection(
                node, machine, self._settings, reports, closed=lambda: self._closed(node), evict=self._evict
            )
            self._opening[node] = connection
        await connection.open(answered)
        del self._opening[node]
        await connection.set_up_plugins()
        self._connections[node] = connection
        return connection

    def _closed(self, node: NodeId) -> None:
        if self._connections.pop(node, None) is not None:
            self._settings.plugins.left(node)

    def _evict(self, connection: NodeConnection) -> None:
        task = asyncio.ensure_future(connection.evict())
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    async def close(self) -> None:
        """Nodes that were given up and not reached since end with their lease."""
        for task in self._evictions:
            task.cancel()
        await asyncio.gather(*self._evictions, return_exceptions=True)

    async def forward(self, node: NodeId, port: int, forwards: Forwards) -> str:
        """See `api.plugin.PluginContext.forward`."""
        connection = self._connections.get(node)
        if connection is None:
            raise ConnectionResetError(f"node {node} has gone")
        if connection.on_this_computer:
            return f"{connection.facts.address}:{port}"
        return await forwards.open(connection.open_connection, connection.facts.address, port)

    @property
    def facts(self) -> list[NodeFacts]:
        """The facts of the ready nodes, by rank."""
        return self._settings.views.facts

    def cut(self, node: NodeId, cause: str) -> None:
        """Drop the connection to a node; like any lost connection, it is tried again."""
        if (connection := self._connections.get(node)) is not None:
            connection.cut(cause)

    def forget(self, function: bytes) -> None:
        """Nobody has this function any more, and no attempt of it is under way."""
        for connection in self._connections.values():
            connection.link.forget(function)

    def drop(self, blob: Blob) -> None:
        """No attempt will read this blob any more, on any node."""
        for connection in self._connections.values():
            connection.link.drop(blob)
        blob.close()
