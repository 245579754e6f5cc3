"""Figures of how much of a pool's nodes was used.

The provider reports them when the pool ends; they are printed, and written to the run's record.
"""

from __future__ import annotations

from collections.abc import Callable

from ...actors import events as ev
from ...providers.base import MachineUsage, UsageUnknown


class UsageIntake:
    """Collects the provider's figures of machines; `close` reports them by node.

    ``node_of`` returns a machine's node, or None.
    """

    def __init__(self, observe: ev.Observe, node_of: Callable[[str], int | None]) -> None:
        self._observe, self._node_of = observe, node_of
        self._used: list[MachineUsage] = []
        self._unknown: list[str] = []

    def add(self, figures: MachineUsage | UsageUnknown) -> None:
        if isinstance(figures, UsageUnknown):
            self._unknown.append(figures.why)
        else:
            self._used.append(figures)

    def close(self) -> None:
        """Report the figures of each node, and of all nodes together.

        Nothing is reported if the provider has no figures.
        """
        known = [(node, each) for each in self._used if (node := self._node_of(each.id)) is not None]
        for node, each in sorted(known, key=lambda one: one[0]):
            amounts = (each.seconds, each.cpus, each.cpu_s, each.memory_bytes, each.memory_total_bytes)
            self._observe(ev.NodeUsed(node, each.id, *amounts))
        if known or self._unknown:
            self._observe(pool_used([each for _, each in known], self._unknown))


def pool_used(used: list[MachineUsage], unknown: list[str]) -> ev.PoolUsed:
    """Return the figures of all nodes together, weighted by their processor time and their memory."""
    core_s = sum(each.seconds * each.cpus for each in used)
    memory = [
        (each.memory_bytes, each.memory_total_bytes)
        for each in used
        if each.memory_bytes is not None and each.memory_total_bytes
    ]
    cpu = sum(each.cpu_s for each in used) / core_s if core_s else None
    peak = sum(most for most, _ in memory) / sum(total for _, total in memory) if memory else None
    return ev.PoolUsed(len(used), cpu, peak, "; ".join(dict.fromkeys(unknown)))
