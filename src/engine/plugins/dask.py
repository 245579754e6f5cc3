"""The Dask plugin: the pool's nodes are a Dask cluster while the pool is open.

Its connections use a self-signed certificate (`Certificate`); any process with its key can use the pool's cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ..api import checks
from ..api.plugin import Plugin
from .client_versions import same_version
from .cluster import Cluster, Framework, Order, Program, address_variable, node_half, opened, processors

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from ..api.instance import InstanceInfo
    from ..api.plugin import NodeSide, PluginContext, Setup


LIFE = timedelta(days=365)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both as PEM."""

    cert: str = field(repr=False)
    key: str = field(repr=False)

    @classmethod
    def new(cls) -> Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outrider")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))  # the clocks of computers differ
            .not_valid_after(now + LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


CONFIG = "DASK_DISTRIBUTED__COMM__"
# Dask's HTTP server needs no password, so its port is on the loopback address, which other hosts cannot reach. The
# server cannot be switched off: with `--no-dashboard` it still shows logs, code and the scheduler's identity; an empty
# list of routes removes these pages.
HTTP = ["--dashboard-address", "127.0.0.1:0"]
NO_PAGES = {"DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]", "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]"}


def dask(
    *,
    workers_per_node: int = 1,
    threads_per_worker: int | None = None,
    memory_limit: str | None = None,
    dashboard: bool = True,
    tls: bool = True,
) -> Dask:
    """Run a Dask cluster on the pool's nodes: ``pool.handle("dask").client()`` is a `distributed.Client` of it.

    Args:
        workers_per_node: The number of worker processes on each node.
        threads_per_worker: The threads of a worker. Default: the node's processors divided by its workers.
        memory_limit: The memory of a worker, as Dask writes it ("8GB"). Default: Dask's choice.
        dashboard: Whether to serve Dask's web page; the handle's ``dashboard`` is its URL.
        tls: Whether to encrypt all traffic between scheduler, workers and clients, and to admit only holders of the
            pool's certificate. Without it, anyone who reaches the scheduler can run code on the nodes.

    Raises:
        SpecError: An option is not valid.
    """
    checks.count("plugins.dask: workers_per_node", workers_per_node)
    if threads_per_worker is not None:
        checks.count("plugins.dask: threads_per_worker", threads_per_worker)
    certificate = Certificate.new() if tls else None
    return Dask(workers_per_node, threads_per_worker, memory_limit, dashboard, certificate)


@dataclass(frozen=True)
class Dask(Plugin):
    """The plugin that `dask` makes."""

    workers: int = 1
    threads: int | None = None
    memory_limit: str | None = None
    dashboard: bool = True
    certificate: Certificate | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "dask"

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return (same_version("dask"), same_version("distributed"))

    def env(self, info: InstanceInfo) -> Mapping[str, str]:  # noqa: ARG002
        """Let a ``Client()`` in a task find the cluster."""
        return address_variable(DaskFramework(self), "DASK_SCHEDULER_ADDRESS")

    def node(self, side: NodeSide) -> AbstractContextManager[Setup]:
        return node_half(side, DaskFramework(self), self.tls_variables)

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[DaskCluster]:
        """Run the cluster while the pool is open.

        Raises:
            BootstrapError: the cluster does not start in time.
        """
        cluster = DaskCluster(context, self)
        async with opened(cluster):
            yield cluster

    @property
    def tls_variables(self) -> dict[str, str]:
        """Return Dask's configuration for TLS, with certificates in place of the names of their files."""
        if self.certificate is None:
            return {}
        variables = {f"{CONFIG}REQUIRE_ENCRYPTION": "true", f"{CONFIG}TLS__CA_FILE": self.certificate.cert}
        for role in ("SCHEDULER", "WORKER", "CLIENT"):
            variables[f"{CONFIG}TLS__{role}__CERT"] = self.certificate.cert
            variables[f"{CONFIG}TLS__{role}__KEY"] = self.certificate.key
        return variables


@dataclass(frozen=True)
class DaskFramework(Framework):
    plugin: Dask

    name: ClassVar[str] = "dask"
    head_works: ClassVar[bool] = False
    file_variable: ClassVar[str] = "OUTRIDER_DASK_ADDRESS"
    ready_marker: ClassVar[str] = "Registered to"  # each worker prints this text

    def program(self, order: Order, side: NodeSide, directory: Path) -> Program:
        scheme = "tcp" if self.plugin.certificate is None else "tls"
        common = ["--protocol", scheme, "--host", f"{scheme}://{side.address}"]
        if order.role == "head":
            file = directory / "scheduler.json"
            file.unlink(missing_ok=True)
            command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", *common]
            command += ["--scheduler-file", str(file)]
            pages = self.plugin.dashboard
        else:
            workers = self.plugin.workers
            threads = self.plugin.threads or max(1, processors(order.sharing) // workers)
            command = [sys.executable, "-m", "distributed.cli.dask_worker", order.head, *common]
            command += ["--nworkers", str(workers), "--nthreads", str(threads), "--name", f"node-{side.node}"]
            command += ["--local-directory", str(directory)]
            command += ["--memory-limit", self.plugin.memory_limit] if self.plugin.memory_limit else []
            pages = False
        command += [*HTTP, *([] if pages else ["--no-dashboard"])]
        variables = {"DASK_TEMPORARY_DIRECTORY": str(directory), "PYTHONUNBUFFERED": "1"}
        return Program(command, {**self.plugin.tls_variables, **variables, **({} if pages else NO_PAGES)})

    def up(self, order: Order, directory: Path, markers: int) -> Mapping[str, str] | None:
        if order.role == "worker":
            return {} if markers >= self.plugin.workers else None
        try:
            facts = json.loads((directory / "scheduler.json").read_text())
        except (OSError, ValueError):  # the file is missing or incomplete so far
            return None
        dashboard = facts.get("services", {}).get("dashboard") if self.plugin.dashboard else None
        return {"address": facts["address"], **({"dashboard": str(dashboard)} if dashboard else {})}


class DaskCluster(Cluster):
    """The Dask cluster, as `Pool.handle` returns it. ``address``: the scheduler's address, ``tls://...``."""

    def __init__(self, context: PluginContext, plugin: Dask) -> None:
        super().__init__(context, DaskFramework(plugin))
        self._plugin = plugin
        self._dashboard: str | None = None

    @property
    def dashboard(self) -> str | None:
        """Return the URL of Dask's dashboard; None without a dashboard."""
        self.check()
        return self._dashboard

    @property
    def security(self) -> Any:
        """Return the argument ``security=`` for a `distributed.Client`; None without TLS."""
        if self._plugin.certificate is None:
            return None
        distributed: Any = import_module("distributed")
        cert, key = self._plugin.certificate.cert, self._plugin.certificate.key
        return distributed.Security(
            require_encryption=True,
            tls_ca_file=cert,
            tls_client_cert=cert,
            tls_client_key=key,
        )

    def client(self, **options: Any) -> Any:
        """Return a new `distributed.Client`. In async code: ``await cluster.client(asynchronous=True)``."""
        distributed: Any = import_module("distributed")
        return distributed.Client(self.address, security=self.security, **options)

    async def look_up(self, node: NodeId) -> None:
        scheme, _, place = self.head["address"].partition("://")
        self._address = f"{scheme}://{await self.context.forward(node, int(place.rpartition(':')[2]))}"
        port = self.head.get("dashboard")
        pages = await self.context.forward(node, int(port), loopback=True) if port else None
        self._dashboard = pages and f"http://{pages}/status"
