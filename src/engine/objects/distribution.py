"""The routes of one large object to the nodes that need it: which node receives it from which. No I/O, no clock.

Nodes forward an object while they receive it, so that it leaves the client's computer only once. Nodes that need it at
the same time form a chain, or a tree if there are many, as a tree is less deep.

CHAIN-1: from each receiving node, the chain of sources ends at the client or at a node that has the object.
CHAIN-2: a node does not get the object from the client if another node could forward it, until `TRIES` hops to the node
    have broken.
CHAIN-3: a node forwards an object to one node at a time, or to two if more than `CHAIN_NODES` nodes take part. Nodes
    that bypass a broken hop are not counted.
CHAIN-4: a broken hop is not tried again for that object. A hop whose nodes could not connect is not tried again for any
    object.
CHAIN-5: if `APART` hops could not connect and none ever did, the pool's nodes cannot reach each other: each node gets
    every object from the client.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId

CHAIN_NODES = 16
TRIES = 3
APART = 3
_LAST = 1 << 30  # heap position of nodes whose hop to a receiver has broken: behind all others


class Reach:
    """A record of which nodes of a pool could not connect to each other."""

    def __init__(self) -> None:
        self._failed: set[tuple[NodeId, NodeId]] = set()
        self._proven = False

    @property
    def apart(self) -> bool:
        return not self._proven and len(self._failed) >= APART

    def allows(self, node: NodeId, source: NodeId) -> bool:
        return not self.apart and (node, source) not in self._failed

    def connected(self) -> None:
        self._proven = True

    def failed(self, node: NodeId, source: NodeId) -> None:
        self._failed.add((node, source))


@dataclass(slots=True, eq=False)
class _Member:
    depth: int = 0  # hops from the client, or from a node that had the object, when the transfer began
    source: NodeId | None = None  # None: the client sends the object, or the node has it already
    whole: bool = False
    gone: bool = False
    receivers: set[NodeId] = field(default_factory=set)
    broken: set[NodeId] = field(default_factory=set)  # sources whose hop to this node has broken
    suspect: bool = False  # whether a hop from this node has broken


class Distribution:
    """All nodes that have, receive or received one object."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._members: dict[NodeId, _Member] = {}
        # a heap of nodes that may have room for a receiver, least deep first
        self._places: list[tuple[int, int, NodeId]] = []
        self._turn = self._here = 0
        self._each = 1  # largest number of nodes to which one node forwards the object at the same time

    @property
    def empty(self) -> bool:
        return not self._here

    def source_of(self, node: NodeId) -> NodeId | None:
        return self._members[node].source

    def wants(self, node: NodeId) -> NodeId | None:
        """Return the node that will forward the object to ``node``; None: the client sends it."""
        self._join(node)
        return self._take(node, self._free(node, self._members[node]))

    def has(self, node: NodeId) -> None:
        """Note that a node has the object, or has just received it."""
        member = self._members.get(node)
        if member is None or member.gone:
            self._join(node)
            member = self._members[node]
        self._let_go(member, node)
        member.source, member.depth, member.whole, member.suspect = None, 0, True, False
        self._offer(node)

    def broke(self, node: NodeId, *, more: bool = True) -> NodeId | None:
        """Note that the source of a node has stopped sending. Return the node's next source; None: the client.

        ``more`` False: the next source must be the client. Otherwise the broken source's own source is tried first.
        """
        member = self._members[node]
        broken = member.source
        assert broken is not None, "what the client sends breaks with the node's connection"
        self._let_go(member, node)
        member.source = None
        member.broken.add(broken)
        before = self._members[broken]
        before.suspect = True
        if not more or len(member.broken) >= TRIES:
            return None
        if before.source is not None and self._may(node, member, before.source):
            return self._take(node, before.source)
        return self._take(node, self._free(node, member))

    def left(self, node: NodeId) -> None:
        """Note that a node is lost, has dropped the object, or no longer needs it."""
        member = self._members.get(node)
        if member is not None and not member.gone:
            self._let_go(member, node)
            member.gone, member.whole = True, False
            self._here -= 1

    def _join(self, node: NodeId) -> None:
        receivers = self._members[node].receivers if node in self._members else set()
        self._members[node] = _Member(receivers=receivers)
        self._here += 1
        if self._here > CHAIN_NODES and self._each == 1:
            self._each = 2
            for each in self._members:
                if each != node:
                    self._offer(each)

    def _take(self, node: NodeId, source: NodeId | None) -> NodeId | None:
        member = self._members[node]
        member.source = source
        member.depth = 1
        if source is not None:
            giver = self._members[source]
            giver.receivers.add(node)
            member.depth += giver.depth
        self._offer(node)
        return source

    def _let_go(self, member: _Member, node: NodeId) -> None:
        if member.source is not None:
            self._members[member.source].receivers.discard(node)
            self._offer(member.source)

    def _offer(self, node: NodeId) -> None:
        """Note that a node may have room for a receiver."""
        member = self._members[node]
        self._turn += 1
        heapq.heappush(self._places, (_LAST if member.suspect else member.depth, self._turn, node))

    def _free(self, node: NodeId, member: _Member) -> NodeId | None:
        """Return the least deep node that has room and may forward the object to ``node``."""
        passed: list[tuple[int, int, NodeId]] = []
        source: NodeId | None = None
        while self._places and source is None:
            place = heapq.heappop(self._places)
            candidate = self._members[place[2]]
            if candidate.gone or len(candidate.receivers) >= self._each:
                continue
            passed.append(place)
            if self._may(node, member, place[2]):
                source = place[2]
        for place in passed:
            if place[2] != source or len(self._members[place[2]].receivers) + 1 < self._each:
                heapq.heappush(self._places, place)
        return source

    def _may(self, node: NodeId, member: _Member, source: NodeId) -> bool:
        candidate = self._members[source]
        if candidate.gone or source == node or source in member.broken or not self._reach.allows(node, source):
            return False
        return node not in self._way(source)

    def _way(self, node: NodeId) -> Iterator[NodeId]:
        """Yield the node and its chain of sources, up to the first node that has the object or is gone."""
        at: NodeId | None = node
        while at is not None:
            yield at
            member = self._members[at]
            at = None if member.whole or member.gone else member.source
