"""The membership of a pool: its nodes, the ready ones by rank (the roster), and ranks without a node. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import field
from heapq import heappop, heappush
from typing import Generic, TypeVar

from ..lazy_dataclass import dataclass
from ..providers.base import Machine, MachineId
from .amounts import NOTHING, Amounts
from .interfaces import AttemptId, Link, NodeFacts, NodeId, PortsFree, Unfit
from .offered_ports import OfferedPorts

K = TypeVar("K")
SMALL = 32  # number of nodes up to which every node gets every change at once
# number of nodes up to which all nodes get each other's facts; in a larger pool only nodes of one broadcast do
# (decision 81)
NAMED_MOST = 1024
VIEW_DELAY_LIMIT_S = 10.0
SOURCES_KEPT = 16  # largest number of sources of a node's notices; there are seven kinds


@dataclass(slots=True, eq=False)
class Member:
    """A node from the launch of its machine until its connection is closed."""

    id: NodeId
    machine: Machine
    link: Link | None = None
    facts: NodeFacts | None = None
    ports: OfferedPorts = field(default_factory=OfferedPorts)
    notices: dict[str, None] = field(default_factory=dict)  # the sources of the notices that are valid
    away_since: float | None = None  # since when its connection is lost while the pool tries to reconnect
    dropped_by: str = ""  # why its connection was last lost
    unfit: Unfit | None = None  # why its executor is about to end
    ended: bool = False  # failed, lost or dismissed
    terminated: bool = False  # whether its machine is gone, or its termination was requested

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """Return the fields of a connected node for its events: machine, hostname, address, number of accelerators."""
        facts = self.facts
        assert facts is not None, "the node has been reached"
        return self.machine.id, facts.hostname, facts.address, len(facts.accelerators)

    @property
    def amounts(self) -> Amounts:
        """Return the amounts that the tasks of a connected node may hold."""
        return NOTHING if self.facts is None else self.facts.amounts


class Membership:
    """All nodes, and for each connected node the view of the ready nodes that it has."""

    def __init__(self) -> None:
        self.members: dict[NodeId, Member] = {}
        self.links: dict[NodeId, Link] = {}
        self.roster = Roster()
        self.outdated = False  # whether some node has an old view
        self.untold: set[NodeId] = set()  # nodes that have joined and have not been sent a view since
        self._accelerators = 0  # number of accelerators of the ready nodes
        self._named = -1  # version of the roster whose node list the links got last
        self._by_machine: dict[MachineId, Member] = {}
        self._next = 0
        self._ranked: tuple[tuple[NodeId, NodeFacts], ...] = ()
        self._ranked_from: tuple[NodeId, ...] = ()

    def add(self, machine: Machine) -> Member:
        """Add a launched machine. If the provider orders its machines, a seat is kept for this machine's node."""
        member = Member(NodeId(self._next), machine)
        if machine.ordered:
            self.roster.keep(member.id)
        self._next += 1
        self.members[member.id] = member
        self._by_machine[machine.id] = member
        return member

    def remove(self, node: NodeId) -> None:
        member = self.members.pop(node, None)
        self.links.pop(node, None)
        self.untold.discard(node)
        if member is not None:
            self._by_machine.pop(member.machine.id, None)

    def of(self, machine: MachineId) -> Member | None:
        return self._by_machine.get(machine)

    def ports_free(self, node: NodeId, free: PortsFree) -> None:
        member = self.members.get(node)
        if member is not None:
            member.ports.offer(free.first, free.ports)

    def is_sent(self, node: NodeId, attempt: AttemptId) -> bool:
        """Return whether an attempt was sent to a node; True for a lost node, as its loss is handled separately."""
        return node not in self.links or self.links[node].is_sent(attempt)

    def compare_ports(self, node: NodeId) -> None:
        """Send a node the number of its ports that were taken; the node then sends all its free ports."""
        if node in self.links:
            self.links[node].compare_ports(self.members[node].ports.taken)

    def joined(self, member: Member) -> None:
        """Give a node that is ready for new work a rank. The node gets its view together with all other nodes, or
        before its first task: sending a view for each node that joins would double the cost.
        """
        if member.id not in self.roster:
            self.roster.join(member.id)
            self._accelerators += _accelerators(member)
        self.outdated = True
        if len(self.roster) > NAMED_MOST:
            self._place(member)
        elif member.link is not None:
            self.untold.add(member.id)

    def left(self, member: Member) -> None:
        if member.id in self.roster:
            self.roster.leave(member.id)
            self.untold.discard(member.id)
            self._accelerators -= _accelerators(member)
            self.outdated = True

    def ranked(self) -> Sequence[tuple[NodeId, NodeFacts]]:
        """Return the ready nodes by rank: the same tuple object until a node joins or leaves."""
        ranked = self.roster.ranked
        if ranked is not self._ranked_from:
            members = self.members
            self._ranked = tuple([(node, of) for node in ranked if (of := members[node].facts) is not None])
            self._ranked_from = ranked
        return self._ranked

    def tell(self, node: NodeId) -> None:
        """Send a node its first view of the ready nodes, before its first task."""
        if node in self.untold:
            self.untold.discard(node)
            self.links[node].view(self.ranked())

    def send_views(self, *, named: bool = False) -> None:
        """Send all nodes the changed view. In a large pool, this is only the number of ready nodes and the node's own
        rank.
        ``named``: a generation begins, so pass the links the list of nodes, which they send to the generation's ranks.
        """
        changed, self.outdated = self.outdated, False
        self.untold.clear()
        large = len(self.roster) > NAMED_MOST
        if (named and self._named != self.roster.version) if large else changed:
            self._named, ranked = self.roster.version, self.ranked()
            for link in self.links.values():
                link.view(ranked)
        elif changed:
            for node in self.links:
                self._place(self.members[node])

    def _place(self, member: Member) -> None:
        rank = self.roster.rank(member.id)
        if member.link is not None and member.facts is not None and rank is not None:
            member.link.place(rank, member.facts, nodes=len(self.roster), accelerators=self._accelerators)

    def view_delay_s(self) -> float:
        """Return for how many seconds changes are collected: sending n nodes a view of all n costs n * n."""
        n = len(self.roster)
        return 0.0 if n <= SMALL else min(VIEW_DELAY_LIMIT_S, n / 100)


def _accelerators(member: Member) -> int:
    return 0 if member.facts is None else len(member.facts.accelerators)


class Roster:
    """The ready nodes by rank. Nodes sit on ordered seats; an empty seat has no rank, and is the first to be filled.

    So a replacement takes the seat of the node that it replaces, and the other ranks stay the same.

    Until the pool is ready, seats are kept for nodes that are not ready yet: ranks then follow the provider's order of
    the nodes, in which neighbours are near each other, and not the order in which the nodes become ready.

    ROSTER-1: ranks are 0..n-1, each node has one, and a node keeps its place before every node that sat behind it.
    ROSTER-2: a node that joins takes the seat that is kept for it, or else the lowest empty seat.
    ROSTER-3: once the pool is ready no seat is kept any more, and seats that were kept in vain are never filled: a late
        node does not change the rank of any working node.
    """

    def __init__(self) -> None:
        self._seats: list[NodeId | None] = []
        self._where: dict[NodeId, int] = {}
        self._empty: list[int] = []  # seats that may be filled now, as a heap
        self._holes: list[int] = []  # all seats without a node, in ascending order
        self._kept: dict[NodeId, int] | None = {}  # kept seats by node; None: the pool is, or was, ready
        self._ranked: tuple[NodeId, ...] | None = ()
        self.version = 0  # version of the membership: it changes with each change

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, node: NodeId) -> bool:
        return node in self._where

    def keep(self, node: NodeId) -> None:
        """Keep a seat behind all others for a node that joins later, unless a seat is empty or the pool is ready."""
        if self._kept is None or self._empty or node in self._kept or node in self._where:
            return
        self._kept[node] = len(self._seats)
        self._holes.append(len(self._seats))
        self._seats.append(None)

    def opened(self) -> None:
        """Note that the pool is ready."""
        self._kept = None

    def join(self, node: NodeId) -> None:
        if node in self._where:
            return
        if self._kept is not None and (kept := self._kept.pop(node, None)) is not None:
            seat = kept
            self._sit(node, seat)
        elif self._empty:
            seat = heappop(self._empty)
            self._sit(node, seat)
        else:
            seat = len(self._seats)
            self._seats.append(node)
        self._where[node] = seat
        self._ranked = None
        self.version += 1

    def _sit(self, node: NodeId, seat: int) -> None:
        self._seats[seat] = node
        del self._holes[bisect_left(self._holes, seat)]

    def leave(self, node: NodeId) -> None:
        seat = self._where.pop(node, None)
        if seat is not None:
            self._seats[seat] = None
            heappush(self._empty, seat)
            insort(self._holes, seat)
            self._ranked = None
            self.version += 1

    @property
    def ranked(self) -> tuple[NodeId, ...]:
        """Return the nodes by rank: the same tuple object until the membership changes; O(nodes) after a change."""
        if self._ranked is None:
            self._ranked = tuple([node for node in self._seats if node is not None])
        return self._ranked

    def seat(self, node: NodeId) -> int | None:
        """Return the node's seat, which does not change until the node leaves."""
        return self._where.get(node)

    def rank(self, node: NodeId) -> int | None:
        seat = self._where.get(node)
        return None if seat is None else seat - bisect_left(self._holes, seat)

    def at(self, rank: int) -> NodeId | None:
        if not 0 <= rank < len(self._where):
            return None
        holes = self._holes
        # number of holes before the seat of ``rank``
        before = bisect_right(range(len(holes)), rank, key=lambda place: holes[place] - place)
        return self._seats[rank + before]


class Waits(Generic[K]):
    """The time for which each rank that tasks wait for has had no node; or each kind of node that tasks need.

    RANKS-1: a rank is overdue when it has been missed for ``patience_s`` without a break, and not before.
    RANKS-2: time during which a machine waits in its provider's queue does not count; the time starts again after it.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._due_at: dict[K, float] = {}

    def missed(self, ranks: Iterable[K], now: float, *, queued: bool = False) -> None:
        """Record that these ranks, and no others, are missed now. ``queued``: a machine waits in a queue (RANKS-2)."""
        due_at = now + self._patience_s
        self._due_at = {rank: due_at if queued else self._due_at.get(rank, due_at) for rank in ranks}

    def overdue(self, now: float) -> list[K]:
        """Return and remove the ranks missed for too long; a later wait for such a rank starts from zero."""
        overdue = [rank for rank, at in self._due_at.items() if at <= now]
        for rank in overdue:
            del self._due_at[rank]
        return overdue

    def wake_at(self) -> float | None:
        return min(self._due_at.values(), default=None)
