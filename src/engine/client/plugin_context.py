"""The plugins' halves at the client, around an open pool: see `api.plugin_sides`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...actors.ports import NodeId
from ..api.plugin import Plugin
from ..api.plugin_sides import News

if TYPE_CHECKING:
    from ..pool import Pool
    from ..transport.connection import Connector
    from ..transport.forward import Forwards
    from .open_pool import OpenPool
    from .plugin_hosts import PluginHosts


@asynccontextmanager
async def attached(
    core: OpenPool, plugins: Sequence[Plugin], hosts: PluginHosts, connector: Connector
) -> AsyncIterator[Mapping[str, Any]]:
    """Within this, every plugin's half runs; what each gives, by name."""
    attaching = [plugin for plugin in plugins if type(plugin).attach is not Plugin.attach]
    if not attaching:
        yield {}
        return
    from ..transport.forward import Forwards

    handles: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        forwards = await stack.enter_async_context(Forwards())
        for plugin in attaching:
            site = PoolContext(core, plugin.name, hosts, connector, forwards)
            handles[plugin.name] = await stack.enter_async_context(plugin.attach(site))
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
