"""A framework's own cluster on the pool's nodes: a head on one node and a worker on each, while the pool is open.

A `Framework` describes the programs of such a cluster. The part on a node (`ProgramRunner`) runs the programs and
reports their starts and ends; the part at the client (`Cluster`) chooses the head's node, and orders nodes to start
programs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from ...actors.interfaces import NodeFacts, NodeId
from ...lazy_dataclass import dataclass
from ..api.errors import BootstrapError
from ..api.plugin import Heard, Joined, Left, NodeSide, Setup
from ..node.process import end_tree

if TYPE_CHECKING:
    from ..api.plugin import PluginContext

Role = Literal["head", "worker"]

UP_S = 90.0  # time for the head to start, and again for all workers to start, when the pool opens
RESTART_S = 1.0  # pause between the end of a program and its next start
MAX_FAILURES = 5  # failures of a program in a row after which the cluster fails
LOG_LINES = 30
POLL_S = 0.1


class Order(NamedTuple):
    """An order to a node to start a program."""

    role: Role
    head: str  # the head's address; empty in the order for the head itself
    sharing: int  # number of the pool's nodes on this node's computer


class Program(NamedTuple):
    command: Sequence[str]
    env: Mapping[str, str]


class Framework(ABC):
    """The programs of a framework's cluster. Picklable."""

    name: ClassVar[str]
    head_works: ClassVar[bool]  # whether the head's program is a worker too
    file_variable: ClassVar[str]  # the variable in tasks that names the file with the head's address
    ready_marker: ClassVar[str]  # text of the output lines that show that a program, or one of its workers, is up

    @abstractmethod
    def program(self, order: Order, side: NodeSide, directory: Path) -> Program:
        """Return the program that an order starts; the program runs in ``directory``."""

    @abstractmethod
    def up(self, order: Order, directory: Path, markers: int) -> Mapping[str, str] | None:
        """Return facts about a running program, such as its ``address``; None while the program is not ready.

        ``markers``: the number of output lines with the `ready_marker` so far.
        """

    def close(self, directory: Path) -> None:
        """Remove files that the framework's program has created outside ``directory``. By default there are none."""
        del directory


# --- on the node -----------------------------------------------------------------------------------------------------


@contextmanager
def node_half(side: NodeSide, framework: Framework, env: Mapping[str, str]) -> Iterator[Setup]:
    """Let this node run programs of the cluster. ``env``: further variables for every task on the node."""
    directory = side.directory / framework.name
    directory.mkdir(mode=0o700)
    runner = ProgramRunner(side, framework, directory)
    side.heard = runner.heard
    try:
        yield Setup(env={**env, framework.file_variable: str(directory / "address")})
    finally:
        runner.close()


class ProgramRunner:
    """Start the programs that the client orders, at most one of each role at a time."""

    def __init__(self, side: NodeSide, framework: Framework, directory: Path) -> None:
        self._side, self._framework, self._directory = side, framework, directory
        self._running: dict[Role, subprocess.Popen[bytes]] = {}

    def heard(self, order: Order) -> None:
        """Start the ordered program, after ending an earlier program of the same role."""
        if order.head:
            (self._directory / "address").write_text(order.head)
        if (before := self._running.pop(order.role, None)) is not None:
            end_tree(before)
        directory = self._directory / order.role
        directory.mkdir(exist_ok=True)
        program = self._framework.program(order, self._side, directory)
        printed = ProgramOutput(self._framework.ready_marker)
        try:
            process = subprocess.Popen(  # noqa: S603  the framework's own program
                program.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **program.env},
                cwd=directory,
                start_new_session=True,
            )
        except OSError as error:
            self._side.tell(("down", order, 127, [str(error)]))
            return
        self._running[order.role] = process
        threading.Thread(target=printed.read, args=[process], daemon=True).start()
        threading.Thread(target=self._watch, args=(order, process, directory, printed), daemon=True).start()

    def close(self) -> None:
        for process in self._running.values():
            end_tree(process)
        self._framework.close(self._directory)

    def _watch(self, order: Order, process: subprocess.Popen[bytes], directory: Path, printed: ProgramOutput) -> None:
        while process.poll() is None:
            facts = self._framework.up(order, directory, printed.markers)
            if facts is not None:
                self._side.tell(("up", order, dict(facts)))
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        status = process.wait()
        # otherwise another program replaced it, or the node leaves the pool
        if self._running.get(order.role) is process:
            self._side.tell(("down", order, status, list(printed.last)))


class ProgramOutput:
    """The output of a program: its last lines, and the number of lines that contained ``ready_marker``."""

    def __init__(self, ready_marker: str) -> None:
        self._ready_marker = ready_marker
        self.last: deque[str] = deque(maxlen=LOG_LINES)
        self.markers = 0

    def read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.last.append(line.decode(errors="replace").rstrip())
                self.markers += self._ready_marker in self.last[-1]


# --- at the client ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ClusterNode:
    """The client's state of one node."""

    facts: NodeFacts
    up: bool = False  # whether the node's worker is ready
    failures: int = 0


class Cluster:
    """The framework's cluster, as `Pool.handle` returns it. ``head``: facts about the present head, or {}."""

    def __init__(self, context: PluginContext, framework: Framework) -> None:
        self.context, self.framework = context, framework
        self.head: Mapping[str, str] = {}
        self._address = ""
        self._head: NodeId | None = None
        self._nodes: dict[NodeId, ClusterNode] = {}
        self._changed = asyncio.Condition()
        self._log: Sequence[str] = ()

    def check(self) -> None:
        """Raise `BootstrapError` if the cluster has no head at present."""
        if not self.head:
            raise BootstrapError(
                f"The {self.framework.name} cluster has no head just now: wait for one.", phase="plugins"
            )

    @property
    def address(self) -> str:
        """Return the head's address for this computer. The address changes when the head's node is lost.

        Raises:
            BootstrapError: there is no head at present.
        """
        self.check()
        return self._address

    @property
    def on(self) -> NodeId | None:
        """Return the node of the present head or, without a head, of the next one."""
        return self._head

    @property
    def workers(self) -> int:
        """Return the number of nodes whose worker is ready."""
        return sum(each.up for each in self._nodes.values())

    async def wait(self, workers: int | None = None, *, within_s: float = UP_S) -> None:
        """Wait until the head and the workers of ``workers`` nodes are ready; by default of all present nodes.

        Raises:
            BootstrapError: a program was not ready in time; the message has the programs' last output.
        """
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(
                    lambda: bool(self.head) and self.workers >= (len(self._nodes) if workers is None else workers)
                )
        except TimeoutError:
            what = "workers are" if self.head else "head is"
            raise self._error(f"the {self.framework.name} cluster's {what} not up after {within_s:g} s") from None

    async def look_up(self, node: NodeId) -> None:
        """Prepare the connections from this computer to the head, which is ready on ``node``."""

    async def listen(self) -> None:
        """Follow the pool's nodes, and order them to start programs.

        Raises:
            BootstrapError: a program failed `MAX_FAILURES` times in a row.
        """
        async with asyncio.TaskGroup() as restarts:
            async for news in self.context.news():
                async with self._changed:
                    match news:
                        case Joined(node, facts):
                            self._nodes[node] = ClusterNode(facts)
                            self._assign(node)
                        case Left(node):
                            self._left(node)
                        case Heard(node, ("up", Order() as order, facts)):
                            self._up(node, order, facts)
                            if order.role == "head" and node == self._head:
                                await self.look_up(node)
                        case Heard(node, ("down", Order() as order, status, log)):
                            self._down(node, order, status, log)
                            restarts.create_task(self._restart(node, order))
                        case _:
                            pass
                    self._changed.notify_all()

    def _assign(self, node: NodeId) -> None:
        """Order a node to start its program, if the program can start already."""
        if self._head is None:
            self._head = node
            self._send_order(node, "head", "")
        elif self.head and not (node == self._head and self.framework.head_works):
            self._send_order(node, "worker", self.head["address"])

    def _up(self, node: NodeId, order: Order, facts: Mapping[str, str]) -> None:
        known = self._nodes.get(node)
        if known is None:
            return
        known.failures = 0
        if order.role == "worker":
            known.up = order.head == self.head.get("address")
        elif node == self._head:
            self.head = facts
            known.up = self.framework.head_works
            for each in self._nodes:
                self._assign(each)

    def _down(self, node: NodeId, order: Order, status: int, log: Sequence[str]) -> None:
        known = self._nodes.get(node)
        if known is None:
            return
        self._log = log
        known.failures += 1
        known.up = False
        if known.failures >= MAX_FAILURES:
            raise self._error(
                f"the {self.framework.name} {order.role} on node {node} ended {MAX_FAILURES} times, with status "
                f"{status}"
            )
        if order.role == "head":
            self.head = {}

    async def _restart(self, node: NodeId, order: Order) -> None:
        await asyncio.sleep(RESTART_S)
        if node not in self._nodes:
            return
        if order.role == "head" and node == self._head:
            self._send_order(node, "head", "")
        elif order.role == "worker" and self.head and order.head == self.head["address"]:
            self._send_order(node, "worker", order.head)

    def _left(self, node: NodeId) -> None:
        """Remove a lost node. If the head ran on it, restart the cluster with another head."""
        self._nodes.pop(node, None)
        if node != self._head:
            return
        self._head, self.head = None, {}
        for each in self._nodes.values():
            each.up = False
        if self._nodes:
            self._assign(next(iter(self._nodes)))

    def _send_order(self, node: NodeId, role: Role, head: str) -> None:
        hostname = self._nodes[node].facts.hostname
        sharing = sum(each.facts.hostname == hostname for each in self._nodes.values())
        self.context.tell(node, Order(role, head, sharing))

    def _error(self, what: str) -> BootstrapError:
        tail = "".join(f"\n  {line}" for line in self._log)
        story = f"{what[0].upper()}{what[1:]}{':' if tail else '.'}{tail}"
        return BootstrapError(story, phase="plugins", log=tuple(self._log))


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[None]:
    """Run the cluster during the block, which begins when the cluster is ready on all present nodes.

    Raises:
        BootstrapError: the cluster did not become ready in time.
    """
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(cluster.listen())
        await cluster.wait()
        yield
        listening.cancel()


def address_variable(framework: Framework, variable: str) -> dict[str, str]:
    """Return ``variable`` with the head's address, for tasks; empty without a head."""
    file = os.environ.get(framework.file_variable)
    with suppress(OSError):
        return {variable: Path(file).read_text()} if file else {}
    return {}


def processors(sharing: int) -> int:
    """Return the number of processors for a node, if ``sharing`` nodes share its computer."""
    return max(1, len(os.sched_getaffinity(0)) // sharing)
