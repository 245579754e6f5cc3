"""The Ray plugin: the pool's nodes are a Ray cluster while the pool is open."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ..api import checks
from ..api.errors import SpecError
from ..api.plugin import Plugin
from ..node.environ import free_port
from ..serialization.program import environment
from .client_versions import same_version
from .cluster import Cluster, Framework, Order, Program, address_variable, node_half, opened, processors

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from ..api.instance import InstanceInfo
    from ..api.plugin import NodeSide, PluginContext, Setup

TOKENS_SINCE = (2, 52)  # first version with tokens: https://docs.ray.io/en/latest/ray-security/token-auth.html
STORE_BYTES = 200 << 20  # size of the object store per node, if several nodes share a computer and its memory


def ray(
    *,
    cpus_per_node: int | None = None,
    object_store_bytes: int | None = None,
    resources: Mapping[str, float] | None = None,
) -> Ray:
    """Run a Ray cluster on the pool's nodes: ``pool.handle("ray").init()`` connects this program to it.

    The cluster admits only clients with its token.

    Args:
        cpus_per_node: The processors of each node. Default: all processors of the node.
        object_store_bytes: The memory for objects. Default: Ray's choice, a third of the memory.
        resources: Further resources of each node, as Ray names them.

    Raises:
        SpecError: An option is not valid.
    """
    if cpus_per_node is not None:
        checks.count("plugins.ray: cpus_per_node", cpus_per_node)
    if object_store_bytes is not None:
        checks.count("plugins.ray: object_store_bytes", object_store_bytes)
    wanted = {} if resources is None else resources
    if not isinstance(wanted, Mapping) or not all(isinstance(name, str) and name for name in wanted):
        shown = checks.shown(resources)
        raise SpecError(f"plugins.ray: resources takes names and amounts, as in {{'disk': 2}}, not {shown}.")
    for name, amount in wanted.items():
        checks.amount(f"plugins.ray: resources[{name!r}]", amount, "units")
    return Ray(cpus_per_node, object_store_bytes, tuple(wanted.items()), secrets.token_hex(32))


@dataclass(frozen=True)
class Ray(Plugin):
    """The plugin that `ray` makes."""

    cpus: int | None = None
    object_store_bytes: int | None = None
    resources: tuple[tuple[str, float], ...] = ()
    token: str = field(default="", repr=False, compare=False)

    name: ClassVar[str] = "ray"

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return (same_version("ray", extra="client"),)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:  # noqa: ARG002
        """Let ``ray.init()`` in a task find the cluster."""
        return address_variable(RayFramework(self), "RAY_ADDRESS")

    def node(self, side: NodeSide) -> AbstractContextManager[Setup]:
        with suppress(PackageNotFoundError):  # Ray's own output reports this later
            check_tokens(version("ray"))
        return node_half(side, RayFramework(self), self.variables)

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[RayCluster]:
        """Run the cluster while the pool is open.

        Raises:
            BootstrapError: the cluster does not start in time.
        """
        cluster = RayCluster(context, self)
        async with opened(cluster):
            try:
                yield cluster
            finally:
                cluster.forget()

    @property
    def variables(self) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class RayFramework(Framework):
    plugin: Ray

    name: ClassVar[str] = "ray"
    head_works: ClassVar[bool] = True
    file_variable: ClassVar[str] = "OUTRIDER_RAY_ADDRESS"
    ready_marker: ClassVar[str] = "Ray runtime started"

    def program(self, order: Order, side: NodeSide, directory: Path) -> Program:
        plugin = self.plugin
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
        command += [f"--node-ip-address={side.address}", "--disable-usage-stats", "--dashboard-agent-listen-port=0"]
        command += [f"--num-cpus={plugin.cpus or processors(order.sharing)}"]
        store = plugin.object_store_bytes or (STORE_BYTES if order.sharing > 1 else None)
        command += [f"--object-store-memory={store}"] if store else []
        if plugin.resources:
            import json

            command += [f"--resources={json.dumps(dict(plugin.resources))}"]
        if order.role == "worker":
            return Program([*command, f"--address={order.head}"], plugin.variables)
        # Paths of Ray's sockets in this folder must not exceed 107 bytes, so its name is short.
        temporary = tempfile.mkdtemp(prefix="ray-")
        (directory / "temporary").write_text(temporary)
        command += ["--head", "--port=0", f"--temp-dir={temporary}", "--include-dashboard=false"]
        if find_spec("grpc") is not None:  # without gRPC, Ray has no remote clients (ray://)
            port = free_port()
            (directory / "client-port").write_text(str(port))
            command += [f"--ray-client-server-port={port}"]
        # With gRPC's fork handlers, one in twelve of the processes that Ray starts for its clients died at its start
        # (https://github.com/ray-project/ray/issues/63202). Measured on a busy machine: 2 of 25 died with the handlers,
        # 0 of 140 without.
        return Program(command, {**plugin.variables, "GRPC_ENABLE_FORK_SUPPORT": "0"})

    def up(self, order: Order, directory: Path, markers: int) -> Mapping[str, str] | None:
        if not markers:
            return None
        if order.role == "worker":
            return {}
        try:
            temporary = (directory / "temporary").read_text()
            address = Path(temporary, "ray_current_cluster").read_text().strip()
        except OSError:
            return None
        port = directory / "client-port"
        return {"address": address, **({"client": port.read_text()} if port.exists() else {})}

    def close(self, directory: Path) -> None:
        note = directory / "head" / "temporary"
        if note.exists():
            shutil.rmtree(note.read_text(), ignore_errors=True)


class RayCluster(Cluster):
    """The Ray cluster, as `Pool.handle` returns it. ``address``: ``ray://...``; ``host:port`` without Ray's client."""

    def __init__(self, context: PluginContext, plugin: Ray) -> None:
        super().__init__(context, RayFramework(plugin))
        self._plugin = plugin
        self._token = ExitStack()  # holds the environment variable with the token, and restores the old one
        self._authorized = False

    def init(self, **options: Any) -> Any:
        """Call `ray.init` for this cluster. The token stays in this process's environment until the pool ends."""
        framework: Any = import_module("ray")
        self.authorize()
        return framework.init(self.address, **options)

    def authorize(self) -> None:
        """Put the token into the environment, and make an already imported Ray read it."""
        if not self._authorized:
            self._authorized = True
            self._token.enter_context(environment(self._plugin.variables))
        os.environ.update(self._plugin.variables)
        _read_again()

    def forget(self) -> None:
        """Restore the environment when the pool ends."""
        if self._authorized:
            self._token.close()
            _read_again()

    async def look_up(self, node: NodeId) -> None:
        port = self.head.get("client")
        self._address = f"ray://{await self.context.forward(node, int(port))}" if port else self.head["address"]


def check_tokens(version: str) -> None:
    """Raise `SpecError` for a version of Ray that ignores the token and so lets anybody in."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < TOKENS_SINCE:
        raise SpecError(
            f"plugins.ray: this node has Ray {version}, which lets in whoever reaches its ports: install Ray "
            f"{'.'.join(map(str, TOKENS_SINCE))} or newer there, which asks for a token."
        )


def _read_again() -> None:
    """Make Ray read its settings again: Ray reads them on import, and also keeps the first token that it finds."""
    if "ray" not in sys.modules:
        return
    try:
        raylet: Any = __import__("ray._raylet", fromlist=["Config"])
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
    except (ImportError, AttributeError):  # this program has a version of Ray without tokens
        pass
