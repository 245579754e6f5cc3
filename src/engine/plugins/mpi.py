"""The MPI plugin: a broadcast's ranks form ``COMM_WORLD``, and ``mpirun`` reaches the pool's nodes.

``COMM_WORLD`` needs no launcher: each worker is an MPI process that learns its rank from `pmi`. For ``mpirun``, the
pool's own connections replace ssh between nodes: see `mpi_agent`. `written_hosts` and `network_variables` tell MPI's
launchers and libraries about the nodes: host files, and which network to use.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import field
from functools import partial
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ..api import checks
from ..api.errors import SpecError
from ..api.plugin import Plugin, Ports
from . import pmi
from .client_versions import installed
from .mpi_rsh import RSH
from .rank_layout import interface

if TYPE_CHECKING:
    from datetime import timedelta

    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo
    from ..api.plugin import NodeSide, PluginContext, Setup
    from .mpi_agent import Switchboard


def launcher_variables() -> Mapping[str, str]:
    """Return variables that make ``mpirun`` use our program as ssh: for MPICH, Intel MPI, Open MPI 4 and 5 (PRRTE)."""
    rsh = os.environ.get(RSH)
    if rsh is None:  # the plugin belongs to a single function, or the code runs outside a pool
        return {}
    variables = {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": rsh,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": rsh,
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": rsh,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": rsh,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }
    if os.geteuid() == 0:  # the user chose root as the user on the nodes
        for prefix in ("OMPI", "PRTE"):
            variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def network_variables(info: InstanceInfo) -> Mapping[str, str]:
    """Return variables for the network that connects the pool's nodes; empty where all nodes are on one computer."""
    own = _own_address(info)
    addresses = [IPv4Address(peer.address) for peer in info.peers if _is_v4(peer.address)]
    if not addresses or own is None or own.is_loopback:
        return {}
    variables: dict[str, str] = {}
    if name := interface(str(own)):
        variables |= {"HYDRA_IFACE": name, "I_MPI_HYDRA_IFACE": name, "FI_TCP_IFACE": name}
    subnet = common_network(addresses)
    for name in ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"):
        variables[name] = subnet
    return variables


@contextmanager
def written_hosts(info: InstanceInfo) -> Iterator[None]:
    """Write host files of the nodes that this task sees, and set the variables by which launchers find the files.

    The files are in the plugin's folder on the node, so they are removed even if this task is killed.
    """
    rsh = os.environ.get(RSH)
    if rsh is None:  # no launcher can reach another node
        yield
        return
    hosts = hosts_of(info)
    with tempfile.TemporaryDirectory(prefix="hosts-", dir=Path(rsh).parent) as directory:
        hydra, open_mpi = Path(directory, "hosts.hydra"), Path(directory, "hosts.openmpi")
        hydra.write_text("".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
        open_mpi.write_text("".join(f"{host} slots={slots}\n" for host, slots in hosts.items()))
        os.environ.update(
            HYDRA_HOST_FILE=str(hydra),
            I_MPI_HYDRA_HOST_FILE=str(hydra),
            OMPI_MCA_orte_default_hostfile=str(open_mpi),
            PRTE_MCA_prte_default_hostfile=str(open_mpi),
        )
        yield


def hosts_of(info: InstanceInfo) -> dict[str, int]:
    """Return {address: slots} of the hosts. Each has as many slots as this node has processors.

    Nodes that share a computer count as one host.
    """
    addresses = list(dict.fromkeys(peer.address for peer in info.peers))
    return dict.fromkeys(addresses, len(os.sched_getaffinity(0)))


def common_network(addresses: Sequence[IPv4Address]) -> str:
    """Return the smallest network that contains all addresses: ``10.0.0.0/29``."""
    first, last = int(min(addresses)), int(max(addresses))
    return str(ip_network((first, 32 - (first ^ last).bit_length()), strict=False))


def _own_address(info: InstanceInfo) -> IPv4Address | None:
    own = next((peer.address for peer in info.peers if peer.node == info.node), info.head_addr)
    return IPv4Address(own) if _is_v4(own) else None


def _is_v4(address: str) -> bool:
    try:
        return ip_address(address).version == 4
    except ValueError:
        return False


TIMEOUT_S = 60.0


def mpi(*, ranks_per_node: int = 1, init: bool = True, timeout: float | timedelta = TIMEOUT_S) -> Mpi:
    """Run tasks as MPI processes: ``MPI.COMM_WORLD`` of mpi4py has the ranks of a broadcast. ``mpirun`` works in tasks.

    ``COMM_WORLD`` needs an MPI with PMI-1, such as MPICH, Intel MPI or MVAPICH. ``mpirun`` may also be Open MPI's.

    Args:
        ranks_per_node: The number of processes of a broadcast on each node.
        init: Whether to initialize MPI before the function runs, if mpi4py is installed. With False, the function
            initializes MPI by importing ``mpi4py.MPI``, and may set ``mpi4py.rc`` before.
        timeout: Seconds for all ranks to connect.

    Raises:
        SpecError: An option is not valid.
    """
    checks.count("plugins.mpi: ranks_per_node", ranks_per_node)
    return Mpi(ranks_per_node, init, checks.seconds("plugins.mpi: timeout", timeout), secrets.token_hex(16))


@dataclass(frozen=True)
class Mpi(Plugin):
    """The plugin that `mpi` makes."""

    ranks: int = 1
    init: bool = True
    timeout_s: float = TIMEOUT_S
    secret: str = field(default="", repr=False, compare=False)  # authenticates this pool's ranks

    name: ClassVar[str] = "mpi"
    collective: ClassVar[bool] = True
    fresh_process: ClassVar[bool] = True  # MPI cannot be initialized twice
    ports: ClassVar[Ports] = "head"

    @property
    def has_halves(self) -> bool:
        """Return False: the plugin runs nothing on the nodes besides the ranks, so single functions may use it."""
        return False

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return installed("mpi4py", "mpich", "impi-rt")

    def ranks_per_node(self, facts: NodeFacts) -> int:  # noqa: ARG002
        return self.ranks

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        return {**network_variables(info), **launcher_variables()}

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(written_hosts(info))
            if info.world_size > 1:
                stack.enter_context(self._world(info))
            yield
            if info.world_size == 1:
                _finalize()

    @contextmanager
    def _world(self, info: InstanceInfo) -> Iterator[None]:
        """Make this process a rank of ``COMM_WORLD``."""
        with ExitStack() as stack:
            if info.is_head:
                stack.enter_context(_server(info, self._secret(info)))
            connect = partial(pmi.connect, info.head_addr, info.head_port, info.rank, self._secret(info))
            sock = connect(role="rank", within_s=self.timeout_s)
            stack.callback(sock.close)
            watch = pmi.AbortWatch(connect(role="watch", within_s=self.timeout_s))
            stack.callback(watch.close)
            os.environ.update(PMI_FD=str(sock.fileno()), PMI_RANK=str(info.rank), PMI_SIZE=str(info.world_size))
            if self.init:
                _initialize(info)
            yield
            watch.leave()
            _finalize()  # not after an error, as finalizing would wait for the other ranks

    def _secret(self, info: InstanceInfo) -> str:
        return f"{self.secret} {info.pool} {info.job} {info.generation}"

    # --- beside the tasks --------------------------------------------------------------------------------------------

    def node(self, side: NodeSide) -> AbstractContextManager[Setup]:
        from .mpi_agent import serving

        return serving(side)

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[Switchboard]:
        from .mpi_agent import Switchboard

        async with Switchboard(context) as switchboard:
            yield switchboard


@contextmanager
def _server(info: InstanceInfo, secret: str) -> Iterator[None]:
    """Run the PMI server in a process of its own, which ends when its stdin is closed."""
    order = {"size": info.world_size, "secret": secret, "hosts": [peer.hostname for peer in info.peers]}
    with socket.create_server((info.head_addr, info.head_port), backlog=1024) as listener:
        process = subprocess.Popen(  # noqa: S603  fixed arguments
            [sys.executable, "-I", "-S", str(Path(pmi.__file__))],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({**order, "listener": listener.fileno()}).encode() + b"\n")
        process.stdin.flush()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def _initialize(info: InstanceInfo) -> None:
    """Initialize MPI, if mpi4py is installed.

    Raises:
        SpecError: this MPI does not find the other ranks.
    """
    try:
        mpi4py: Any = __import__("mpi4py.MPI").MPI
    except ModuleNotFoundError:  # the function may use MPI in another way, or not at all
        return
    if mpi4py.COMM_WORLD.size != info.world_size:
        library = mpi4py.Get_library_version().partition("\n")[0].partition(",")[0].strip("\0 ")
        raise SpecError(
            f"COMM_WORLD has {mpi4py.COMM_WORLD.size} rank instead of {info.world_size}: the MPI of this node, "
            f"{library}, does not speak PMI-1. Give the nodes MPICH, as by Image(pip=['mpi4py', 'mpich']), or start "
            "this program with mpirun in a task."
        )
    _disown_memory(mpi4py)


def _disown_memory(mpi4py: Any) -> None:
    """Unlink MPICH's shared memory, which would otherwise never be removed if the ranks are killed."""
    names = set(re.findall(r"/dev/shm/mpich_shm_\S+", Path("/proc/self/maps").read_text()))  # noqa: S108
    mpi4py.COMM_WORLD.Barrier()  # after this, all ranks have mapped the shared memory
    for name in names:
        with suppress(FileNotFoundError):  # another rank has unlinked it
            Path(name).unlink()


def _finalize() -> None:
    """Finalize MPI, if the function used MPI and has not finalized it."""
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.Finalize()
