"""The MPI plugin: a broadcast's ranks are ``COMM_WORLD``, and ``mpirun`` reaches the pool's nodes.

The first needs no launcher: each worker is an MPI process, told who it is by `pmi`. The second replaces ssh between the
nodes by the pool's own connections: see `mpi_agent`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..api.errors import SpecError
from ..api.plugin import Plugin, Ports
from ..api.settings import seconds
from . import pmi
from .mpi_hosts import launcher_variables, network_variables, written_hosts

if TYPE_CHECKING:
    from datetime import timedelta

    from ...actors.ports import NodeFacts
    from ..api.instance import InstanceInfo
    from ..api.plugin_sides import NodeSide, PluginContext, Setup
    from .mpi_agent import Switchboard

TIMEOUT_S = 60.0


def mpi(*, ranks_per_node: int = 1, init: bool = True, timeout: float | timedelta = TIMEOUT_S) -> Mpi:
    """Run tasks as MPI processes: ``MPI.COMM_WORLD`` of mpi4py has a broadcast's ranks, and ``mpirun`` works in tasks.

    ``ranks_per_node``: processes of a broadcast on each node. ``init``: initialize MPI before the function runs, where
    mpi4py is installed; False leaves that to the function's import of ``mpi4py.MPI``, before which it may set
    ``mpi4py.rc``. ``timeout``: seconds for all ranks to meet.

    ``COMM_WORLD`` needs an MPI that speaks PMI-1: MPICH, Intel MPI, MVAPICH and others of their kin. ``mpirun`` may be
    Open MPI's as well.

    Raises:
        SpecError
    """
    if not isinstance(ranks_per_node, int) or isinstance(ranks_per_node, bool) or ranks_per_node < 1:
        raise SpecError(f"plugins.mpi: ranks_per_node takes a number, at least 1, not {ranks_per_node!r}.")
    return Mpi(ranks_per_node, init, seconds("plugins.mpi: timeout", timeout), secrets.token_hex(16))


@dataclass(frozen=True)
class Mpi(Plugin):
    """See `mpi`."""

    ranks: int = 1
    init: bool = True
    timeout_s: float = TIMEOUT_S
    secret: str = field(default="", repr=False, compare=False)  # of this pool's ranks

    name: ClassVar[str] = "mpi"
    collective: ClassVar[bool] = True
    fresh_process: ClassVar[bool] = True  # MPI cannot be initialized twice
    ports: ClassVar[Ports] = "head"

    @property
    def has_halves(self) -> bool:
        """A function may have it alone: ``COMM_WORLD`` needs none of them, only ``mpirun`` does."""
        return False

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
        """This process is a rank of one that is to be."""
        with ExitStack() as stack:
            if info.is_head:
                stack.enter_context(_server(info, self._secret(info)))
            reach = partial(pmi.connect, info.head_addr, info.head_port, info.rank, self._secret(info))
            sock = reach(role="rank", within_s=self.timeout_s)
            stack.callback(sock.close)
            watch = pmi.Watch(reach(role="watch", within_s=self.timeout_s))
            stack.callback(watch.close)
            os.environ.update(PMI_FD=str(sock.fileno()), PMI_RANK=str(info.rank), PMI_SIZE=str(info.world_size))
            if self.init:
                _initialize(info)
            yield
            watch.leave()
            _finalize()  # not after an error: the others would be waited for

    def _secret(self, info: InstanceInfo) -> str:
        return f"{self.secret} {info.pool} {info.job} {info.generation}"

    # --- beside the tasks --------------------------------------------------------------------------------------------

    def node(self, side: NodeSide) -> AbstractContextManager[Setup]:
        from .mpi_agent import serving

        return serving(side)

    @asynccontextmanager
    async def attach(self, site: PluginContext) -> AsyncIterator[Switchboard]:
        from .mpi_agent import Switchboard

        async with Switchboard(site) as switchboard:
            yield switchboard


@contextmanager
def _server(info: InstanceInfo, secret: str) -> Iterator[None]:
    """The PMI server, in a process of its own; it ends with its stdin."""
    order = {"size": info.world_size, "secret": secret, "hosts": [peer.hostname for peer in info.peers]}
    with socket.create_server((info.head_addr, info.head_port), backlog=1024) as listener:
        process = subprocess.Popen(  # noqa: S603  ours
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
    """
    Raises:
        SpecError: this MPI has not heard of the other ranks.
    """
    try:
        mpi4py: Any = __import__("mpi4py.MPI").MPI
    except ModuleNotFoundError:  # the function may have another way to use MPI, or none
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
    """MPICH's shared memory keeps its name until the end, so that of a world that is killed would stay for ever."""
    names = set(re.findall(r"/dev/shm/mpich_shm_\S+", Path("/proc/self/maps").read_text()))  # noqa: S108
    mpi4py.COMM_WORLD.Barrier()  # everybody has it
    for name in names:
        with suppress(FileNotFoundError):  # another rank was faster
            Path(name).unlink()


def _finalize() -> None:
    """The function's MPI, if it used one and has not ended it."""
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.Finalize()
