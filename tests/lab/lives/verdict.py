"""How a life ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Verdict:
    """``broken``: what the referee says, one text each; ``outcomes``: how the clients ended.

    ``hits``: how often each fault befell it. ``measured``: times in seconds, each by what it is of.
    """

    kind: str
    seed: int
    outcomes: Sequence[str]
    broken: Sequence[str]
    took_s: float
    hits: Mapping[str, int] = field(default_factory=dict)
    measured: Sequence[tuple[str, float]] = ()
