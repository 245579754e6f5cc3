"""The seats of one broadcast: the nodes of its next generation, and the world that the ranks see there.

These are pure decisions. `generations` decides when seats are claimed, taken and freed, and what happens then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .broadcast_effects import Effect, NeedPorts
from .fencing import Gap, Gaps, RankAttempts
from .interfaces import AttemptId, BroadcastSpec, NodeFacts, NodeId, World
from .placement import Claim, ReleaseSeat


class BroadcastSeats:
    """The base of `Gang`, which adds the generations."""

    def __init__(self, spec: BroadcastSpec, *, minimum: int, wanted: int, attempts: Iterator[int]) -> None:
        self.spec = spec
        self.minimum = minimum  # number of nodes that the pool must have
        self.wanted = wanted  # number of nodes that the pool should have
        self.generation = 0
        self.seats: set[NodeId] = set()
        self.effects: list[Effect] = []
        self._facts: dict[NodeId, NodeFacts] = {}  # facts of the nodes that were ready at the last grant, by rank
        self._leaving: dict[NodeId, bool] = {}  # True: noticed; False: being drained
        self._needed = max(1, minimum)  # number of nodes for the next generation
        self._chosen: tuple[NodeId, ...] = ()  # nodes for the generation that waits for its ports
        self._each = 1  # number of ranks on each chosen node
        self._port_requests: list[NeedPorts] = []  # requests for ports that have no answer yet
        self._attempts = RankAttempts(attempts)
        self._gaps = Gaps()
        self._world = World(0, (), 1, "", 0)

    def size(self) -> int:
        """Return how many nodes the next generation should have: as many as the last, but not more than wanted."""
        return max(1, min(self.wanted, len(self._world.nodes)) if self.generation else self.minimum)

    # --- what it waits for ----------------------------------------------------------------------------------------

    @property
    def running(self) -> Mapping[AttemptId, tuple[int, NodeId]]:
        """The attempts of this broadcast that may be running, each with its rank and node."""
        return self._attempts.running

    @property
    def has_gaps(self) -> bool:
        """Return whether ranks of lost nodes still wait to run again alone."""
        return bool(self._port_requests or self._gaps.waiting)

    @property
    def port_requests(self) -> Sequence[NeedPorts]:
        """The requests for ports that have no answer yet."""
        return tuple(self._port_requests)

    def listens_on(self, node: NodeId) -> bool:
        """Return whether a rank of the current generation has a port of ``node``."""
        world = self._world
        return node in world.nodes and (bool(world.ports) or node == world.head)

    def lacking_nodes(self, ready: int) -> str:
        """Return, as text for people, which nodes the next generation lacks. ``ready``: number of ready nodes."""
        needed = self._needed
        if ready < needed:
            return f"{needed - ready} of {needed} nodes to be ready"
        return f"a free slot on {max(1, needed - len(self.seats))} of {needed} nodes"

    # --- claims ---------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Claim the seats that the next generation needs; the first generation takes every node of the pool."""
        least, again = max(0, self._needed - len(self.seats)), self.generation > 0
        claim = Claim(self.spec.job, least=least, every=not again, again=again, besides=frozenset(self.seats))
        self.effects.append(claim)

    def _reserve(self) -> None:
        """Claim the seats that the next generation will lack, while the current one still runs or is being ended."""
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
        """Choose all nodes that are ready and on which the broadcast has a seat; return whether they are enough."""
        self._release(*sorted(self.seats - self._facts.keys()))
        self._chosen = tuple([node for node in self._facts if node in self.seats])  # by rank
        if len(self._chosen) < self._needed:
            return False
        self._each = max(1, min(self.spec.ranks_per_node(self._facts[node]) for node in self._chosen))
        return True

    def _ports_of_chosen(self) -> tuple[tuple[NodeId, int], ...]:
        """Return (node, number of ports that the next generation needs there): one port for its head, or one for each
        rank.
        """
        if self.spec.every_rank_listens:
            return tuple((node, self._each) for node in self._chosen)
        return ((self._chosen[0], 1),)

    def _ports_in_place_of(self, lost: NodeId) -> int:
        """Return how many free ports the ranks of ``lost`` need when they run again alone on another node."""
        return self._world.ranks_per_node if self.spec.every_rank_listens else int(lost == self._world.head)

    def _lacking_ports(self, of: tuple[tuple[NodeId, int], ...]) -> str:
        """Return, as text for people, which node can never offer that many ports; empty: all nodes can (GANG-11)."""
        for node, count in of:
            facts = self._facts[node]
            if count > facts.ports_at_once:
                has = f"node {node} ({facts.hostname}) keeps {facts.ports_at_once} free at a time"
                return f"{count} ranks of a node need a port each, and {has}"
        return ""

    def _make_world(self, ports_by_node: Sequence[tuple[int, ...]]) -> None:
        """Make the world of the next generation. ``ports_by_node``: its ports, node by node."""
        self.generation += 1
        ports = tuple(port for of_node in ports_by_node for port in of_node) if self.spec.every_rank_listens else ()
        address = self._facts[self._chosen[0]].address
        self._world = World(self.generation, self._chosen, self._each, address, ports_by_node[0][0], ports)

    def _replace_in_world(self, gap: Gap, node: NodeId, ports: tuple[int, ...]) -> None:
        """Make the world in which the ranks of ``gap`` run again on ``node``."""
        self.generation += 1
        self._world = self._world.with_replaced(gap.lost, node, self._facts[node].address, ports, self.generation)
