"""The rule about amounts (CPUs that tasks reserve): SIM-30.

SIM-30: all running attempts on a machine together never hold more processors than the machine has. An attempt holds its
    processors from its beginning until it has ended.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....actors.interfaces import Order
    from ..machines import Host, Sim


class AmountRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        # number of a machine -> number of processors that its running attempts hold
        self._held: Counter[int] = Counter()

    def began(self, host: Host, order: Order) -> None:
        job = self._sim.jobs[order.task.job]
        self._held[host.number] += job.cpus
        if job.cpus and self._held[host.number] > host.cpus:
            held = self._held[host.number]
            self._sim.broken("SIM-30", f"{held} processors of machine {host.number} are held, and it has {host.cpus}")

    def ended(self, host: Host, order: Order) -> None:
        self._held[host.number] -= self._sim.jobs[order.task.job].cpus
