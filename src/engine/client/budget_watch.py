"""The budget of one open pool, watched: it ends the pool at its limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from ...actors.events import BudgetMostlySpent, Observe
from ...providers.base import Fleet
from ..api.errors import BudgetExceeded
from ..api.money import cents
from .budget import Budget, Cost, Exceeded, Metered, clock

LOOK_AGAIN_S = 60.0  # a timer stands still while this computer sleeps


class BudgetWatch:
    def __init__(self, max_cost: float | None, max_lifetime_s: float | None, observe: Observe) -> None:
        self._budget = Budget(max_cost, max_lifetime_s, clock())
        self._limited = max_cost is not None or max_lifetime_s is not None
        self._since = time.time()
        self._changed = asyncio.Event()
        self._observe = observe

    @property
    def cost(self) -> Cost:
        return self._budget.cost(clock())

    def around(self, fleet: Fleet) -> Fleet:
        return Metered(fleet, self._budget, self._changed.set)

    def close(self) -> None:
        """The provider's context has ended. What it could not end is counted no further."""
        self._budget.close(clock())

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Callable[[], object]]:
        """Cancel the block at a limit, and raise the error when the block has ended. Call the value it yields to stop
        that.

        Raises:
            BudgetExceeded: from what else went wrong meanwhile.
        """
        if not self._limited:
            yield lambda: None
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(), name="outrider-budget")
                try:
                    yield watch.cancel
                finally:
                    watch.cancel()
        except BaseExceptionGroup as group:
            exceeded, rest = group.split(BudgetExceeded)
            if exceeded is None:
                raise
            raise exceeded.exceptions[0] from rest

    async def _watch(self) -> None:
        told = False
        while (exceeded := self._budget.exceeded(clock())) is None:
            if not told and self._budget.mostly_spent(clock()):
                told, cost = True, self.cost
                self._observe(BudgetMostlySpent(cost.spent, self._budget.max_cost or 0.0, cost.hourly))
            next_s = self._budget.next_s(clock())
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S if next_s is None else min(next_s + 0.01, LOOK_AGAIN_S)):
                    await self._changed.wait()
        raise self._error(exceeded)

    def _error(self, exceeded: Exceeded) -> BudgetExceeded:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(self._since))
        if exceeded.what == "max_cost":
            reached = (
                f"has cost {cents(exceeded.spent)} USD since {began}, and may cost {cents(exceeded.limit)} (max_cost)"
            )
        else:
            reached = f"has been open since {began}, {exceeded.limit:g} s, which is its max_lifetime"
        return BudgetExceeded(
            f"The pool {reached}: it was ended. Allow it more, or find out what took so long.",
            what=exceeded.what,
            limit=exceeded.limit,
            spent=exceeded.spent,
            since=self._since,
        )
