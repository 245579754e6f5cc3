"""The rule about the cost of a pool: SIM-26.

SIM-26: every machine that costs money counts towards the pool's limit `max_cost`, from its launch until the pool knows
    of its end. This holds even if the answer to the launch call was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cloud import HOURLY_USD

if TYPE_CHECKING:
    from ....engine.client.budget import Budget
    from ..machines import Sim

CENT_USD = 0.01


class CostRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self.budget: Budget | None = None  # the costs as the pool counts them; set when the pool opens
        self.changed = False  # whether the pool's count of paid machines changed since the last check

    def change(self) -> None:
        """Note that the pool's count of paid machines has changed."""
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
