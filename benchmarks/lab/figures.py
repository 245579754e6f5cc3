"""What repeated measurements of one bar come to: median, 99th percentile, and whether the bar held."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """``bar_s``: what the percentile of ``of`` must stay below; None: shown, and not judged."""

    name: str
    seconds: tuple[float, ...]
    bar_s: float | None = None
    of: Literal["all", "median"] = "all"
    facts: dict[str, object] = field(default_factory=dict)  # counts, seeds: for the JSON
    unit: str = "s"

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p99(self) -> float:
        """The least that 99 % do not exceed; of fewer than a hundred, the greatest."""
        ordered = sorted(self.seconds)
        return ordered[-(-99 * len(ordered) // 100) - 1]

    @property
    def holds(self) -> bool | None:
        if self.bar_s is None:
            return None
        return bool(self.seconds) and (self.p50 if self.of == "median" else max(self.seconds)) <= self.bar_s

    def row(self) -> tuple[str, ...]:
        if not self.seconds:
            return (self.name, "0", "", "", "", "", "")
        bar = "" if self.bar_s is None else f"{self.of} <= {self.bar_s:g} {self.unit}"
        verdict = {None: "", True: "[green]yes", False: "[bold red]NO"}[self.holds]
        times = (f"{each:.2f} {self.unit}" for each in (self.p50, self.p99, max(self.seconds)))
        return (self.name, str(len(self.seconds)), *times, bar, verdict)


@dataclass(slots=True)
class Series:
    """Measurements as they come, by name."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.seconds.setdefault(name, []).append(value)

    def figure(
        self, name: str, *, bar_s: float | None = None, of: Literal["all", "median"] = "all", unit: str = "s"
    ) -> Figure:
        return Figure(name, tuple(self.seconds.get(name, ())), bar_s, of, unit=unit)
