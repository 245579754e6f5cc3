"""The pool's nodes: the facts about each, the ready ones by rank, and what they have been told of each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TypedDict

from ..providers.base import Machine, MachineId
from .lifecycle import Lifecycle, State
from .ports import Link, NodeFacts, NodeId, Unfit
from .roster import Roster

SMALL = 32  # nodes; up to so many are told of every change at once
VIEW_DELAY_LIMIT_S = 10.0
PORTS_KEPT = 64  # of one node; it has 32
SOURCES_KEPT = 16  # sources of a node's notices; there are seven kinds


class Identity(TypedDict):
    """The description of a reached node by itself and its provider, as events have it."""

    machine: str
    hostname: str
    address: str
    accelerators: int


class Member:
    """A node from the launch of its machine until its connection is closed."""

    __slots__ = (
        *("dropped_by", "facts", "id", "life"),
        *("link", "machine", "notices", "ports", "terminated", "unfit"),
    )

    def __init__(self, node: NodeId, machine: Machine) -> None:
        self.id = node
        self.machine = machine
        self.life = Lifecycle()
        self.link: Link | None = None
        self.facts: NodeFacts | None = None
        self.ports: deque[int] = deque()  # free there
        self.notices: set[str] = set()  # the sources of the notices that stand
        self.dropped_by = ""  # why its connection was last lost
        self.unfit: Unfit | None = None  # why its executor ends by itself
        self.terminated = False  # whether its machine is gone, or its termination was asked for

    @property
    def noticed(self) -> bool:
        return bool(self.notices)

    @property
    def booting(self) -> bool:
        return self.life.state in {State.LAUNCHED, State.REACHING}

    @property
    def identity(self) -> Identity:
        facts = self.facts
        assert facts is not None, "the node has been reached"
        accelerators = len(facts.accelerators)
        machine, hostname, address = self.machine.id, facts.hostname, facts.address
        return Identity(machine=machine, hostname=hostname, address=address, accelerators=accelerators)


class Membership:
    def __init__(self) -> None:
        self.members: dict[NodeId, Member] = {}
        self.links: dict[NodeId, Link] = {}
        self.roster = Roster()
        self.outdated = False  # some node has an old view
        self._by_machine: dict[MachineId, Member] = {}
        self._next = 0
        self._ranked: tuple[tuple[NodeId, NodeFacts], ...] = ()
        self._ranked_from: tuple[NodeId, ...] = ()

    def add(self, machine: Machine) -> Member:
        member = Member(NodeId(self._next), machine)
        self._next += 1
        self.members[member.id] = member
        self._by_machine[machine.id] = member
        return member

    def remove(self, node: NodeId) -> None:
        member = self.members.pop(node, None)
        self.links.pop(node, None)
        if member is not None:
            self._by_machine.pop(member.machine.id, None)

    def of(self, machine: MachineId) -> Member | None:
        return self._by_machine.get(machine)

    def ports_free(self, node: NodeId, ports: Sequence[int]) -> None:
        member = self.members.get(node)
        if member is not None:
            new = dict.fromkeys(port for port in ports if port not in member.ports)
            member.ports.extend(islice(new, max(0, PORTS_KEPT - len(member.ports))))

    def joined(self, member: Member) -> None:
        """Give a node that is ready for new work a rank, and send it the ready nodes before anything else."""
        self.roster.join(member.id)
        self.outdated = True
        if member.link is not None:
            member.link.view(self.ranked())

    def left(self, member: Member) -> None:
        if member.id in self.roster:
            self.roster.leave(member.id)
            self.outdated = True

    def ranked(self) -> Sequence[tuple[NodeId, NodeFacts]]:
        """Return the ready nodes by rank: the same tuple object until one joins or leaves."""
        ranked = self.roster.ranked
        if ranked is not self._ranked_from:
            members = self.members
            self._ranked = tuple([(node, of) for node in ranked if (of := members[node].facts) is not None])
            self._ranked_from = ranked
        return self._ranked

    def send_views(self) -> None:
        """Send every connected node the list of ready nodes, if that has changed."""
        if self.outdated:
            self.outdated = False
            ranked = self.ranked()
            for link in self.links.values():
                link.view(ranked)

    def view_delay_s(self) -> float:
        """Return for how many seconds changes may gather: sending n nodes a view of all n costs n * n."""
        n = len(self.roster)
        return 0.0 if n <= SMALL else min(VIEW_DELAY_LIMIT_S, n / 100)
