"""The context of a plugin in an open pool: the number of slots, messages to plugin hosts, forwarded ports of nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from ..api.calls import AsyncVerbs
    from ..api.plugin import News
    from ..transport.connection import Connector
    from ..transport.plugin_hosts import PluginHosts
    from .job_intake import JobIntake


@dataclass(slots=True)
class PoolContext:
    """Implements `api.plugin.PluginContext` for one plugin."""

    pool: AsyncVerbs
    core: JobIntake
    _plugin: str
    _hosts: PluginHosts
    _connector: Connector

    @property
    def slots(self) -> int:
        return self.core.observer.slots()

    async def news(self) -> AsyncIterator[News]:
        while True:
            yield await self._hosts.inboxes[self._plugin].read()

    def tell(self, node: NodeId, message: Any) -> None:
        self._hosts.send(node, self._plugin, message)

    async def forward(self, node: NodeId, port: int, *, loopback: bool = False) -> str:
        return await self._connector.forward(node, port, loopback=loopback)
