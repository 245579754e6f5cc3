"""The rule about the cost of a pool: SIM-26.

SIM-26: every machine that costs money counts for `max_cost` from its launch, even if the answer to that launch was
    lost, until its end is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cloud import HOURLY_USD

if TYPE_CHECKING:
    from ....client.budget import Budget
    from ..simulation import Simulation

CENT_USD = 0.01


class CostRules:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.budget: Budget | None = None  # the pool's budget, once the pool is open
        self.changed = False  # whether the set of counted machines has changed since the last rest

    def change(self) -> None:
        """Handle that the pool counts one machine more, or one less."""
        self.changed = True

    def at_rest(self) -> None:
        cloud, budget = self._sim.cloud, self.budget
        if budget is None or not (self.changed or cloud.changed) or self._sim.referee.nodes.closing:
            return
        self.changed = cloud.changed = False
        counted = budget.cost(self._sim.loop.now).hourly / HOURLY_USD
        running = len(cloud.running)
        if counted < running:
            self._sim.broken("SIM-26", f"{running} machines cost money, and {counted:g} count for max_cost")

    def rested(self) -> None:
        assert self.budget is not None, "the pool is open"
        counted, cost = self.budget.cost(self._sim.loop.now).spent, self._sim.cloud.bill()
        if counted < cost - CENT_USD:
            self._sim.broken("SIM-26", f"{counted:.2f} USD count for max_cost, and the machines have cost {cost:.2f}")
