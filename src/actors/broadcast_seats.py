"""The seats of one broadcast, which are slots kept for its ranks, and the world: the ranks, nodes and ports that the
ranks see.

These are pure decisions. `generations` decides when seats are claimed, taken and freed, and what happens then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .broadcast_effects import Effect, NeedPorts
from .fencing import Gap, Gaps, RankAttempts
from .interfaces import AttemptId, BroadcastSpec, NodeFacts, NodeId, World
from .placement import Claim, ReleaseSeat


class BroadcastSeats:
    """The part of a broadcast that concerns its seats; the subclass `Gang` adds the generations."""

    def __init__(self, spec: BroadcastSpec, *, minimum: int, wanted: int, attempts: Iterator[int]) -> None:
        self.spec = spec
        self.minimum = minimum  # number of nodes without which the pool is not ready
        self.wanted = wanted  # number of nodes that the pool should have in the end
        self.generation = 0
        self.seats: set[NodeId] = set()
        self.effects: list[Effect] = []
        # facts of the nodes that were ready when seats were last granted, in the order of ranks
        self._facts: dict[NodeId, NodeFacts] = {}
        # nodes that take no new work; True: because of a preemption notice, False: because the pool drains the node
        self._leaving: dict[NodeId, bool] = {}
        self._needed = max(1, minimum)  # number of nodes that the next generation needs
        self._chosen: tuple[NodeId, ...] = ()  # nodes of the next generation while it waits for free ports
        self._each = 1  # number of ranks on each node of the next generation
        self._port_requests: list[NeedPorts] = []  # requests for ports that are not fulfilled yet
        self._attempts = RankAttempts(attempts)
        self._gaps = Gaps()
        self._world = World(0, (), 1, "", 0)

    def size(self) -> int:
        """Return how many nodes the next generation should have: as many as the last generation, but no more than the
        pool should have.
        """
        return max(1, min(self.wanted, len(self._world.nodes)) if self.generation else self.minimum)

    # --- state of the broadcast -----------------------------------------------------------------------------------

    @property
    def running(self) -> Mapping[AttemptId, tuple[int, NodeId]]:
        """The attempts of this broadcast that may be running, each with its rank and node."""
        return self._attempts.running

    @property
    def has_gaps(self) -> bool:
        """Return whether ranks of lost nodes still wait to run again, while the other ranks continue."""
        return bool(self._port_requests or self._gaps.waiting)

    @property
    def port_requests(self) -> Sequence[NeedPorts]:
        """The requests for ports that are not fulfilled yet."""
        return tuple(self._port_requests)

    def listens_on(self, node: NodeId) -> bool:
        """Return whether a rank of the current generation listens on a port of ``node``."""
        world = self._world
        return node in world.nodes and (bool(world.ports) or node == world.head)

    def lacking_nodes(self, ready: int) -> str:
        """Return, as text for people, what the next generation still needs: ready nodes, or free slots. ``ready``:
        number of ready nodes.
        """
        needed = self._needed
        if ready < needed:
            return f"{needed - ready} of {needed} nodes to be ready"
        return f"a free slot on {max(1, needed - len(self.seats))} of {needed} nodes"

    # --- claims of seats ------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Claim the seats that the next generation needs; the first generation claims a seat on every node of the
        pool.
        """
        least, again = max(0, self._needed - len(self.seats)), self.generation > 0
        claim = Claim(self.spec.job, least=least, every=not again, again=again, besides=frozenset(self.seats))
        self.effects.append(claim)

    def _reserve(self) -> None:
        """Claim in advance the seats that the next generation will lack, while the current generation still runs or is
        being ended.
        """
        if (missing := self.size() - len(self.seats.difference(self._leaving))) > 0:
            claim = Claim(self.spec.job, least=1, most=missing, again=True, besides=frozenset(self.seats))
            self.effects.append(claim)

    def _claim_beside(self, count: int) -> None:
        """Claim ``count`` replacements for lost nodes; the current generation continues on its other nodes."""
        besides = self.seats.union(self._world.nodes)
        self.effects.append(Claim(self.spec.job, least=1, most=count, again=True, besides=frozenset(besides)))

    def _release(self, *nodes: NodeId) -> None:
        for node in nodes:
            if node in self.seats:
                self.seats.discard(node)
                self.effects.append(ReleaseSeat(node))

    # --- the nodes of a generation, their ports and their world ---------------------------------------------------

    def _choose_nodes(self) -> bool:
        """Choose each ready node on which the broadcast has a seat; return whether there are enough such nodes."""
        self._release(*sorted(self.seats - self._facts.keys()))
        self._chosen = tuple([node for node in self._facts if node in self.seats])  # in the order of ranks
        if len(self._chosen) < self._needed:
            return False
        self._each = max(1, min(self.spec.ranks_per_node(self._facts[node]) for node in self._chosen))
        return True

    def _ports_of_chosen(self) -> tuple[tuple[NodeId, int], ...]:
        """Return pairs of a node and the number of ports that the next generation needs on it: one port on the head
        (the node of rank 0), or one port for each rank.
        """
        if self.spec.every_rank_listens:
            return tuple((node, self._each) for node in self._chosen)
        return ((self._chosen[0], 1),)

    def _ports_in_place_of(self, lost: NodeId) -> int:
        """Return how many free ports the ranks of the node ``lost`` need on the node where they run again."""
        return self._world.ranks_per_node if self.spec.every_rank_listens else int(lost == self._world.head)

    def _lacking_ports(self, of: tuple[tuple[NodeId, int], ...]) -> str:
        """Return, as text for people, which node can never offer as many ports as ``of`` requests; empty: each node can
        (GANG-11).
        """
        for node, count in of:
            facts = self._facts[node]
            if count > facts.ports_at_once:
                has = f"node {node} ({facts.hostname}) keeps {facts.ports_at_once} free at a time"
                return f"{count} ranks of a node need a port each, and {has}"
        return ""

    def _make_world(self, ports_by_node: Sequence[tuple[int, ...]]) -> None:
        """Make the world of the next generation: its nodes, ranks and ports. ``ports_by_node``: one tuple of ports for
        each node.
        """
        self.generation += 1
        ports = tuple(port for of_node in ports_by_node for port in of_node) if self.spec.every_rank_listens else ()
        address = self._facts[self._chosen[0]].address
        self._world = World(self.generation, self._chosen, self._each, address, ports_by_node[0][0], ports)

    def _replace_in_world(self, gap: Gap, node: NodeId, ports: tuple[int, ...]) -> None:
        """Update the world: the ranks of ``gap``, whose node was lost, run again on ``node``."""
        self.generation += 1
        self._world = self._world.with_replaced(gap.lost, node, self._facts[node].address, ports, self.generation)
