"""The rule about the free ports of nodes: SIM-40.

SIM-40: when nothing happens any more, the pool and each ready node agree on the node's ports: the ports that the pool
    may assign to the next generations are exactly the ports that the node offers, and the node reserves no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ....actors.fleet_controller import NodePhase

if TYPE_CHECKING:
    from ....actors.messages import NodeState
    from ..machines import Sim


class PortRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim

    def rested(self, nodes: Iterable[NodeState]) -> None:
        for node in nodes:
            daemon = self._sim.hosts[node.machine.id].daemon
            if daemon is None or node.away or node.phase not in {NodePhase.READY, NodePhase.SPARE}:
                continue
            book = daemon.ports
            pool, there = (node.ports_taken, node.ports_free), (book.taken, len(book.offered))
            if pool != there or book.awaiting or book.kept:
                counts = f"the pool has taken {pool[0]} ports and may take {pool[1]}"
                kept = f"it has given {there[0]}, offers {there[1]}, and keeps {[*book.awaiting, *book.kept.values()]}"
                self._sim.broken("SIM-40", f"node {node.node}: {counts}; {kept}")
