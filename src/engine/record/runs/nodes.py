"""The present nodes of a run, and the node of each rank, computed from the events of its record. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from ....actors.seats import UNSEATING, Seats
from ....lazy_dataclass import dataclass

_NAMES = ("machine", "hostname", "address")
_LEFT = frozenset({"node_lost", "node_failed", "node_dismissed"})
_UNSEATING = frozenset(kind.name for kind in UNSEATING)


@dataclass(frozen=True, slots=True)
class LivingNode:
    """A node that was launched and is still in the pool. ``rank``: None: the node takes part in no new broadcast."""

    number: int
    machine: str = ""  # the name that the provider uses for the machine
    rank: int | None = None
    ready: bool = False
    hostname: str = ""
    address: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def is_known_as(self, name: str) -> bool:
        """Return whether the pool's program uses ``name`` for this node: as its machine, or as its host or address."""
        short = self.machine.rpartition("/")[2]
        host = short.rpartition("@")[2]
        host = host.partition(":")[0] if host.count(":") == 1 else host.rpartition("]:")[0].lstrip("[") or host
        return name in (self.machine, short, host) and name != ""

    def calls_itself(self, name: str) -> bool:
        """Return whether the node itself reports ``name`` as its host name or address.

        Several nodes may report the same name.
        """
        return name in (self.hostname, self.address) and name != ""


@dataclass(frozen=True, slots=True)
class RunNodes:
    """The present nodes of a run.

    ``nodes``: number -> node. ``ranks``: rank -> node, in the newest broadcast; without a broadcast, as a new broadcast
    would have them.
    """

    nodes: Mapping[int, LivingNode]
    ranks: Mapping[int, int]


def nodes_now(events: Iterable[Mapping[str, Any]]) -> RunNodes:
    """Return the nodes after ``events``. Malformed events are skipped, as another program may have written them."""
    nodes: dict[int, LivingNode] = {}
    ranks: dict[int, int] = {}
    seats = Seats()
    job: object = None
    for event in events:
        kind, number = event.get("event"), event.get("node")
        if kind == "generation_started":
            if event.get("job") != job:
                job = event.get("job")
                ranks.clear()
            ranks |= _placed(event)
        elif not isinstance(number, int) or not isinstance(kind, str):
            continue
        elif kind == "node_launching":
            facts = event.get("facts")
            known = {str(name): str(each) for name, each in facts.items()} if isinstance(facts, dict) else {}
            nodes[number] = LivingNode(number, str(event.get("machine", "")), facts=known)
        elif kind in ("node_ready", "node_standby"):
            seat = event["rank"] if event.get("seat") is None and "rank" in event else event.get("seat")
            if kind == "node_ready" and isinstance(seat, int):
                seats.take(number, seat)
            more: dict[str, Any] = {name: str(event[name]) for name in _NAMES if event.get(name)}
            nodes[number] = replace(
                nodes.get(number, LivingNode(number)),
                ready=True,
                **more,
            )
        elif kind in _LEFT:
            nodes.pop(number, None)
        if kind in _UNSEATING and isinstance(number, int):
            seats.leave(number)
    own = {node: rank for node, rank in seats.ranks().items() if node in nodes}
    living = {number: replace(node, rank=own.get(number)) for number, node in nodes.items()}
    placed = {rank: node for rank, node in ranks.items() if node in nodes}
    return RunNodes(living, placed or {rank: node for node, rank in own.items()})


def _placed(event: Mapping[str, Any]) -> dict[int, int]:
    """Return the node of each rank that a broadcast has started or restarted.

    Each node has the same number of consecutive ranks.
    """
    nodes, ranks = event.get("nodes"), event.get("ranks")
    if not isinstance(nodes, list) or not isinstance(ranks, list) or not nodes or len(ranks) % len(nodes):
        return {}
    each = len(ranks) // len(nodes)
    placed = {at: nodes[at // each] for at in range(len(ranks))}
    return {rank: placed[at] for at, rank in enumerate(ranks) if isinstance(rank, int) and isinstance(placed[at], int)}
