"""A framework's own cluster on the pool's nodes: a head on one of them, a worker on each, while the pool is open.

A `Kit` says which programs those are. The node's half (`Member`) runs them, and says when they are up and that they are
down; the client's half (`Cluster`) decides who is the head, and who is told to start what.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from ...actors.ports import NodeFacts, NodeId
from ..api.errors import BootstrapError
from ..api.plugin_sides import Heard, Joined, Left, NodeSide, Setup
from ..node.process import descendants, kill_tree

if TYPE_CHECKING:
    from ..api.plugin_sides import PluginContext

Role = Literal["head", "worker"]

UP_S = 90.0  # for the head, and then for the workers, to be up when the pool opens
AGAIN_S = 1.0  # after a program has ended
TRIES = 5  # in a row, none of which came up
LOG_LINES = 30
ASK_S = 0.1


class Order(NamedTuple):
    """What a node is told to start."""

    role: Role
    head: str  # the head's address; empty: this is the head's order
    sharing: int  # how many of the pool's nodes are on this node's computer


class Program(NamedTuple):
    command: Sequence[str]
    env: Mapping[str, str]


class Kit(ABC):
    """A framework, on a node. Picklable."""

    name: ClassVar[str]
    head_works: ClassVar[bool]  # the head's program is a worker too
    file_variable: ClassVar[str]  # names, in tasks, the file with the head's address
    sign: ClassVar[str]  # is in the lines that tell that a program is up, or a worker of it

    @abstractmethod
    def program(self, order: Order, side: NodeSide, directory: Path) -> Program:
        """What an order starts; it runs in ``directory``."""

    @abstractmethod
    def up(self, order: Order, directory: Path, signs: int) -> Mapping[str, str] | None:
        """What there is to know of a program that is up, with its ``address``; None: it is not yet.

        ``signs``: how many lines with the `sign` it has printed.
        """

    def close(self, directory: Path) -> None:
        """Remove what is elsewhere than in ``directory``."""
        del directory


# --- on the node -----------------------------------------------------------------------------------------------------


@contextmanager
def member(side: NodeSide, kit: Kit, env: Mapping[str, str]) -> Iterator[Setup]:
    """The node's half. ``env``: of every task there."""
    directory = side.directory / kit.name
    directory.mkdir(mode=0o700)
    here = Member(side, kit, directory)
    side.heard = here.heard
    try:
        yield Setup(env={**env, kit.file_variable: str(directory / "address")})
    finally:
        here.close()


class Member:
    """Runs what the client's half orders, one program of each role at a time."""

    def __init__(self, side: NodeSide, kit: Kit, directory: Path) -> None:
        self._side, self._kit, self._directory = side, kit, directory
        self._running: dict[Role, subprocess.Popen[bytes]] = {}

    def heard(self, order: Order) -> None:
        """A program of this role that still runs, for an older head, is ended first."""
        if order.head:
            (self._directory / "address").write_text(order.head)
        if (before := self._running.pop(order.role, None)) is not None:
            _end(before)
        directory = self._directory / order.role
        directory.mkdir(exist_ok=True)
        program = self._kit.program(order, self._side, directory)
        printed = Printed(self._kit.sign)
        try:
            process = subprocess.Popen(  # noqa: S603  the framework's
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
            _end(process)
        self._kit.close(self._directory)

    def _watch(self, order: Order, process: subprocess.Popen[bytes], directory: Path, printed: Printed) -> None:
        while process.poll() is None:
            facts = self._kit.up(order, directory, printed.signs)
            if facts is not None:
                self._side.tell(("up", order, dict(facts)))
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(ASK_S)
        status = process.wait()
        if self._running.get(order.role) is process:  # else it was replaced, or the node is left
            self._side.tell(("down", order, status, list(printed.last)))


class Printed:
    """What a program prints: the last lines, and of all of them how many had a ``sign``."""

    def __init__(self, sign: str) -> None:
        self._sign = sign
        self.last: deque[str] = deque(maxlen=LOG_LINES)
        self.signs = 0

    def read(self, process: subprocess.Popen[bytes]) -> None:
        """All of it, until it ends."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.last.append(line.decode(errors="replace").rstrip())
                self.signs += self._sign in self.last[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        started = descendants(process.pid)
        kill_tree(process.pid)
        process.wait()
        for pid in started:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


# --- at the client ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Employed:
    """What the client's half knows of a node."""

    facts: NodeFacts
    up: bool = False  # its worker
    failures: int = 0


class Cluster:
    """What `Pool.handle` gives. ``head``: what is known of the head that is there now, its ``address`` above all."""

    def __init__(self, site: PluginContext, kit: Kit) -> None:
        self.site, self.kit = site, kit
        self.head: Mapping[str, str] = {}
        self._head: NodeId | None = None
        self._nodes: dict[NodeId, Employed] = {}
        self._changed = asyncio.Condition()
        self._log: Sequence[str] = ()

    def check(self) -> None:
        """
        Raises:
            BootstrapError: there is no head just now.
        """
        if not self.head:
            raise BootstrapError(f"The {self.kit.name} cluster has no head just now: wait for one.", phase="plugins")

    @property
    def on(self) -> NodeId | None:
        """The node of the head, or of the next one."""
        return self._head

    @property
    def workers(self) -> int:
        """Nodes whose worker is up."""
        return sum(each.up for each in self._nodes.values())

    async def wait(self, workers: int | None = None, *, within_s: float = UP_S) -> None:
        """Until the head and so many nodes' workers are up; default those of all nodes that are there.

        Raises:
            BootstrapError: not in time; says what their programs printed last.
        """
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(
                    lambda: bool(self.head) and self.workers >= (len(self._nodes) if workers is None else workers)
                )
        except TimeoutError:
            what = "workers are" if self.head else "head is"
            raise self._error(f"the {self.kit.name} cluster's {what} not up after {within_s:g} s") from None

    async def look_up(self, node: NodeId) -> None:
        """A head is up on ``node``: find, or make, the ways to it."""

    async def listen(self) -> None:
        """
        Raises:
            BootstrapError: a program that ends again and again.
        """
        async with asyncio.TaskGroup() as again:
            async for news in self.site.news():
                async with self._changed:
                    match news:
                        case Joined(node, facts):
                            self._nodes[node] = Employed(facts)
                            self._employ(node)
                        case Left(node):
                            self._left(node)
                        case Heard(node, ("up", Order() as order, facts)):
                            self._up(node, order, facts)
                            if order.role == "head" and node == self._head:
                                await self.look_up(node)
                        case Heard(node, ("down", Order() as order, status, log)):
                            self._down(node, order, status, log)
                            again.create_task(self._again(node, order))
                        case _:
                            pass
                    self._changed.notify_all()

    def _employ(self, node: NodeId) -> None:
        """Give a node what to do, as far as that is known."""
        if self._head is None:
            self._head = node
            self._order(node, "head", "")
        elif self.head and not (node == self._head and self.kit.head_works):
            self._order(node, "worker", self.head["address"])

    def _up(self, node: NodeId, order: Order, facts: Mapping[str, str]) -> None:
        member = self._nodes.get(node)
        if member is None:
            return
        member.failures = 0
        if order.role == "worker":
            member.up = order.head == self.head.get("address")
        elif node == self._head:
            self.head = facts
            member.up = self.kit.head_works
            for each in self._nodes:
                self._employ(each)

    def _down(self, node: NodeId, order: Order, status: int, log: Sequence[str]) -> None:
        member = self._nodes.get(node)
        if member is None:
            return
        self._log = log
        member.failures += 1
        member.up = False
        if member.failures >= TRIES:
            raise self._error(
                f"the {self.kit.name} {order.role} on node {node} ended {TRIES} times, with status {status}"
            )
        if order.role == "head":
            self.head = {}

    async def _again(self, node: NodeId, order: Order) -> None:
        await asyncio.sleep(AGAIN_S)
        if node not in self._nodes:
            return
        if order.role == "head" and node == self._head:
            self._order(node, "head", "")
        elif order.role == "worker" and self.head and order.head == self.head["address"]:
            self._order(node, "worker", order.head)

    def _left(self, node: NodeId) -> None:
        """With the head, all that the cluster knew is gone: another one begins anew."""
        self._nodes.pop(node, None)
        if node != self._head:
            return
        self._head, self.head = None, {}
        for each in self._nodes.values():
            each.up = False
        if self._nodes:
            self._employ(next(iter(self._nodes)))

    def _order(self, node: NodeId, role: Role, head: str) -> None:
        hostname = self._nodes[node].facts.hostname
        sharing = sum(each.facts.hostname == hostname for each in self._nodes.values())
        self.site.tell(node, Order(role, head, sharing))

    def _error(self, what: str) -> BootstrapError:
        tail = "".join(f"\n  {line}" for line in self._log)
        story = f"{what[0].upper()}{what[1:]}{':' if tail else '.'}{tail}"
        return BootstrapError(story, phase="plugins", log=tuple(self._log))


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[None]:
    """Within this the cluster lives; entered when it is up on all nodes that are there.

    Raises:
        BootstrapError
    """
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(cluster.listen())
        await cluster.wait()
        yield
        listening.cancel()


def address_variable(kit: Kit, variable: str) -> dict[str, str]:
    """For tasks: where the head is, if there is one."""
    file = os.environ.get(kit.file_variable)
    with suppress(OSError):
        return {variable: Path(file).read_text()} if file else {}
    return {}


def processors(sharing: int) -> int:
    """A node's part of its computer's."""
    return max(1, len(os.sched_getaffinity(0)) // sharing)
