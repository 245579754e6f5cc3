"""The members of a pool: its nodes, its ready nodes in the order of ranks (the roster), and their free ports. Pure.

`OfferedPorts` counts the free ports that one node offers; on the node, `engine.node.freeports` counts them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

from ..lazy_dataclass import dataclass
from ..providers.base import Machine, MachineId
from .amounts import NOTHING, Amounts
from .interfaces import AttemptId, Link, NodeFacts, NodeId, PortsFree, Unfit

PORTS_MOST = 64  # the pool remembers at most this number of free ports of a node; a node offers 32 at a time


class OfferedPorts:
    """The ports of one node that no generation has taken yet, in the order in which the node numbers them.

    OFFER-1: a port is taken once; an offer that arrives twice, or after a later offer, changes nothing.
    OFFER-2: after an offer, the pool has all ports of that offer except those that were already taken.
    """

    def __init__(self) -> None:
        # number of ports taken so far; as ports are numbered from 0 and taken in order, also the number of the first
        # free port
        self.taken = 0
        self._free: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._free)

    def offer(self, first: int, ports: Sequence[int]) -> None:
        """Add the ports of an offer that are new. ``first``: the node's number for the first port in ``ports``."""
        end = self.taken + len(self._free)
        # ignore the offer of a node with a defect: a correct node never names a port twice
        if len(set(ports)) < len(ports):
            return
        # the node counts more ports as taken than the pool does: forget the free ports with lower numbers
        if first > end:
            self._free.clear()
            self.taken = end = first
        self._free.extend(islice(ports, end - first, max(end - first, self.taken + PORTS_MOST - first)))

    def take(self, count: int) -> tuple[int, ...]:
        """Take the first ``count`` free ports; there must be as many."""
        self.taken += count
        return tuple(self._free.popleft() for _ in range(count))

    def first(self, count: int) -> tuple[int, ...]:
        """Return the first ``count`` free ports without taking them."""
        return tuple(islice(self._free, count))


K = TypeVar("K")
SMALL = 32  # up to this number of nodes, each node is sent each change of the list of ready nodes at once
# up to this number of nodes, each node gets the facts of all others; in a larger pool, only nodes of the same broadcast
# get each other's facts (docs/decisions, number 81)
NAMED_MOST = 1024
VIEW_DELAY_LIMIT_S = 10.0
# for each node, notices of at most this number of sources are kept; Outrider itself has seven sources
SOURCES_KEPT = 16


@dataclass(slots=True, eq=False)
class Member:
    """A node from the launch of its machine until its connection is closed."""

    id: NodeId
    machine: Machine
    link: Link | None = None
    facts: NodeFacts | None = None
    ports: OfferedPorts = field(default_factory=OfferedPorts)
    # the sources of preemption notices that are valid; the values have no meaning
    notices: dict[str, None] = field(default_factory=dict)
    away_since: float | None = None  # when the node's connection was lost, while the pool tries to reconnect
    dropped_by: str = ""  # why the node's connection was last lost
    unfit: Unfit | None = None  # the report that the node's executor is about to end, with the reason
    ended: bool = False  # whether the node has failed, was lost or was dismissed
    terminated: bool = False  # whether the node's machine is gone, or its termination was requested

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """Return the fields that events of a connected node have: machine, hostname, address, number of
        accelerators.
        """
        facts = self.facts
        assert facts is not None, "the node has been reached"
        return self.machine.id, facts.hostname, facts.address, len(facts.accelerators)

    @property
    def amounts(self) -> Amounts:
        """Return how much of processors, memory and accelerators a connected node has for its tasks."""
        return NOTHING if self.facts is None else self.facts.amounts


class Membership:
    """All nodes of a pool, and which connected nodes lack the present view: the list of ready nodes."""

    def __init__(self) -> None:
        self.members: dict[NodeId, Member] = {}
        self.links: dict[NodeId, Link] = {}
        self.roster = Roster()
        self.outdated = False  # whether the ready nodes have changed since the list of them was last sent to the nodes
        self.untold: set[NodeId] = set()  # nodes that have joined and were not sent the list of ready nodes yet
        self._accelerators = 0  # number of accelerators of the ready nodes
        # version of the roster (the ready nodes in the order of ranks) that was last passed to each node's `Link`
        self._named = -1
        self._by_machine: dict[MachineId, Member] = {}
        self._next = 0
        self._ranked: tuple[tuple[NodeId, NodeFacts], ...] = ()
        self._ranked_from: tuple[NodeId, ...] = ()

    def add(self, machine: Machine) -> Member:
        """Add a launched machine. If the provider puts its machines in an order, keep a seat in the roster for this
        machine's node.
        """
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
        """Return whether an attempt was sent to ``node``; True if the node is lost, as its loss is handled
        separately.
        """
        return node not in self.links or self.links[node].is_sent(attempt)

    def compare_ports(self, node: NodeId) -> None:
        """Send a node the number of its ports that the pool has used; the node replies with all its free ports."""
        if node in self.links:
            self.links[node].compare_ports(self.members[node].ports.taken)

    def joined(self, member: Member) -> None:
        """Give a rank to a node that is ready for new work.

        The node gets its view (the list of ready nodes) together with all other nodes, or before its first task: to
        send a view for each node that joins would double the cost.
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
        """Return the ready nodes in the order of ranks. Until a node joins or leaves, this is the same tuple object."""
        ranked = self.roster.ranked
        if ranked is not self._ranked_from:
            members = self.members
            self._ranked = tuple([(node, of) for node in ranked if (of := members[node].facts) is not None])
            self._ranked_from = ranked
        return self._ranked

    def tell(self, node: NodeId) -> None:
        """Send a node its first view, the list of ready nodes, before its first task."""
        if node in self.untold:
            self.untold.discard(node)
            self.links[node].view(self.ranked())

    def send_views(self, *, named: bool = False) -> None:
        """Send all nodes the changed view: the list of ready nodes or, in a large pool, only their number and each
        node's rank.

        ``named``: a generation begins, so pass the list of nodes to the links, which send it to the generation's ranks.
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
        """Return for how many seconds changes are collected before views are sent: a view of n nodes for each of n
        nodes costs n * n.
        """
        n = len(self.roster)
        return 0.0 if n <= SMALL else min(VIEW_DELAY_LIMIT_S, n / 100)


def _accelerators(member: Member) -> int:
    return 0 if member.facts is None else len(member.facts.accelerators)


class Roster:
    """The ready nodes in the order of ranks. Nodes sit on numbered seats; an empty seat has no rank, and is filled
    first.

    So a replacement takes the seat of the node that it replaces, and the other nodes keep their ranks.

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
        self._empty: list[int] = []  # heap of the seats that the next nodes to join may take
        self._holes: list[int] = []  # all seats without a node, also seats kept for a certain node, in ascending order
        # by node, the seat that is kept for it; None: the pool is or was ready, so no seat is kept
        self._kept: dict[NodeId, int] | None = {}
        self._ranked: tuple[NodeId, ...] | None = ()
        self.version = 0  # number that grows when a node joins or leaves

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, node: NodeId) -> bool:
        return node in self._where

    def keep(self, node: NodeId) -> None:
        """Keep a seat behind all other seats for a node that joins later, unless a seat is empty or the pool is
        ready.
        """
        if self._kept is None or self._empty or node in self._kept or node in self._where:
            return
        self._kept[node] = len(self._seats)
        self._holes.append(len(self._seats))
        self._seats.append(None)

    def opened(self) -> None:
        """Handle that the pool is ready: keep no seats any more."""
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
        """Return the nodes in the order of ranks: the same tuple object until a node joins or leaves. After such a
        change, this takes O(nodes).
        """
        if self._ranked is None:
            self._ranked = tuple([node for node in self._seats if node is not None])
        return self._ranked

    def seat(self, node: NodeId) -> int | None:
        """Return the number of the node's seat, which stays the same until the node leaves."""
        return self._where.get(node)

    def rank(self, node: NodeId) -> int | None:
        seat = self._where.get(node)
        return None if seat is None else seat - bisect_left(self._holes, seat)

    def at(self, rank: int) -> NodeId | None:
        if not 0 <= rank < len(self._where):
            return None
        holes = self._holes
        # number of seats without a node before the seat of ``rank``
        before = bisect_right(range(len(holes)), rank, key=lambda place: holes[place] - place)
        return self._seats[rank + before]


class Waits(Generic[K]):
    """The time for which each rank has had no node while tasks wait for it; also used for kinds of nodes that tasks
    need.

    RANKS-1: a rank is overdue when it has been missed for ``patience_s`` without a break, and not before.
    RANKS-2: time during which a machine waits in its provider's queue does not count; after that wait, the time starts
        again.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._due_at: dict[K, float] = {}

    def missed(self, ranks: Iterable[K], now: float, *, queued: bool = False) -> None:
        """Record that ``ranks``, and no others, are missed now. ``queued``: whether a machine waits in its provider's
        queue (RANKS-2).
        """
        due_at = now + self._patience_s
        self._due_at = {rank: due_at if queued else self._due_at.get(rank, due_at) for rank in ranks}

    def overdue(self, now: float) -> list[K]:
        """Return the ranks that were missed for too long, and forget them; a later wait for such a rank starts from
        zero.
        """
        overdue = [rank for rank, at in self._due_at.items() if at <= now]
        for rank in overdue:
            del self._due_at[rank]
        return overdue

    def wake_at(self) -> float | None:
        return min(self._due_at.values(), default=None)
