"""What a measurement comes to: medians of interleaved rounds, a ratio per round, and a bar it has to clear."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Ours = Callable[[], Awaitable[float]]
Theirs = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Bar:
    """``value`` of the named number (ours or the ratio) must not be missed; ``goal`` is what we would like."""

    of: Literal["ours", "ratio"]
    must_be: Literal["at most", "at least"]
    value: float
    goal: float | None = None

    def holds(self, number: float) -> bool:
        return number <= self.value if self.must_be == "at most" else number >= self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. ``ratio`` is the median of the rounds' ratios, not the ratio of the medians."""

    key: str
    name: str
    unit: str
    ours: float
    ours_range: tuple[float, float]
    theirs: float | None = None
    ratio: float | None = None
    ratio_range: tuple[float, float] | None = None
    bar: Bar | None = None
    rounds: int = 1

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        number = self.ours if self.bar.of == "ours" else self.ratio
        return number is not None and self.bar.holds(number)


def summarize(
    key: str,
    name: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float] = (),
    *,
    ratio: Literal["ours/theirs", "theirs/ours"] = "ours/theirs",
    bar: Bar | None = None,
) -> Figure:
    ratios = [a / b if ratio == "ours/theirs" else b / a for a, b in zip(ours, theirs, strict=True)] if theirs else []
    return Figure(
        key,
        name,
        unit,
        ours=statistics.median(ours),
        ours_range=(min(ours), max(ours)),
        theirs=statistics.median(theirs) if theirs else None,
        ratio=statistics.median(ratios) if ratios else None,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        bar=bar,
        rounds=len(ours),
    )


async def interleaved(rounds: int, ours: Ours, theirs: Theirs) -> tuple[list[float], list[float]]:
    """Both, one round after the other, taking turns to go first; a round more at the start is thrown away."""
    a: list[float] = []
    b: list[float] = []
    for number in range(rounds + 1):
        if number % 2:
            a.append(await ours())
            b.append(theirs())
        else:
            b.append(theirs())
            a.append(await ours())
    return a[1:], b[1:]
