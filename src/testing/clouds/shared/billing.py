"""The costs of machines, and the machines' time without a living owner. No clock: callers pass the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ....lazy_dataclass import dataclass

Interval = tuple[float, float | None]  # (begin, end); None as the end: the interval is still open


@dataclass(frozen=True, slots=True)
class Bill:
    """One instance's bill, from its launch until it is terminated. Times are seconds since 1970."""

    id: str
    type: str
    zone: str
    market: str
    hourly_usd: float
    launched: float
    terminated: float | None = None

    def seconds(self, now: float) -> float:
        return max(0.0, (now if self.terminated is None else self.terminated) - self.launched)

    def unowned_seconds(self, owned: Iterable[Interval], now: float) -> float:
        """Return the seconds of the machine that no interval in ``owned`` covers. Intervals may overlap."""
        end = now if self.terminated is None else self.terminated
        covered, at = 0.0, self.launched
        for since, until in sorted((since, now if until is None else until) for since, until in owned):
            start, stop = max(since, at), min(until, end)
            if stop > start:
                covered, at = covered + stop - start, stop
        return self.seconds(now) - covered


class Ledger:
    """The bills of all machines that a test cloud has had."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._bills: dict[str, Bill] = {}

    def open(self, bill: Bill) -> None:
        self._bills[bill.id] = bill

    def close(self, instance_id: str) -> None:
        bill = self._bills[instance_id]
        if bill.terminated is None:
            self._bills[instance_id] = replace(bill, terminated=self._now())

    @property
    def bills(self) -> list[Bill]:
        """Return the bills in the order of the launches."""
        return list(self._bills.values())

    def seconds(self) -> float:
        return sum(bill.seconds(self._now()) for bill in self.bills)

    def cost_usd(self) -> float:
        return sum(bill.seconds(self._now()) * bill.hourly_usd / 3600.0 for bill in self.bills)

    def unowned_seconds(self, alive: Iterable[Interval], *, instances: Iterable[str] | None = None) -> float:
        """Return the sum of the seconds in which machines ran while their owner was dead.

        ``alive``: the intervals in which the owner lived; (start, None): the owner still lives. ``instances``: count
        only these machines.
        """
        owned, chosen, now = list(alive), None if instances is None else set(instances), self._now()
        return sum(bill.unowned_seconds(owned, now) for bill in self.bills if chosen is None or bill.id in chosen)
