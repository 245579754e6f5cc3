"""The rule about amounts: SIM-30.

SIM-30: the processors that the running attempts on a machine hold together, from their beginning until they have ended,
    are never more than the machine has.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .....actors.interfaces import Order
    from ..host import Host
    from ..simulation import Simulation


class AmountRules:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._held: Counter[int] = Counter()  # number of held processors, by machine

    def began(self, host: Host, order: Order) -> None:
        job = self._sim.jobs[order.task.job]
        self._held[host.number] += job.cpus
        if job.cpus and self._held[host.number] > host.cpus:
            held = self._held[host.number]
            self._sim.broken("SIM-30", f"{held} processors of machine {host.number} are held, and it has {host.cpus}")

    def ended(self, host: Host, order: Order) -> None:
        self._held[host.number] -= self._sim.jobs[order.task.job].cpus
