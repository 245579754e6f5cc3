"""Reduce a scenario that breaks a promise to a small one that still breaks it, with few faults and jobs to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from .scenario import Scenario

T = TypeVar("T")

TRIES = 400  # largest number of simulated runs; a run takes about 20 ms


def shrink(scenario: Scenario, breaks: Callable[[Scenario], bool], *, tries: int = TRIES) -> Scenario:
    """Remove faults, then jobs, from a scenario as long as it still breaks the promise, and return the result.

    The result is minimal unless the tries were used up: if any one of its faults or jobs is removed, the scenario no
    longer breaks the promise.

    Args:
        scenario: A scenario that breaks the promise.
        breaks: Returns whether a scenario still breaks the promise.
        tries: The largest number of scenarios to try. Default: 400.
    """
    left = _Tries(breaks, tries)
    faults = smallest(scenario.faults, lambda some: left.spend(replace(scenario, faults=tuple(some))))
    scenario = replace(scenario, faults=tuple(faults))
    jobs = smallest(scenario.jobs, lambda some: left.spend(replace(scenario, jobs=tuple(some))))
    scenario = replace(scenario, jobs=tuple(jobs))
    again = smallest(scenario.faults, lambda some: left.spend(replace(scenario, faults=tuple(some))))
    return replace(scenario, faults=tuple(again))


def smallest(items: Sequence[T], breaks: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a minimal part of ``items``: ``breaks`` is True for it, but no longer if any item is removed.

    The algorithm is ddmin (delta debugging). The items keep their order.
    """
    kept = list(items)
    if kept and breaks([]):
        return []
    pieces = 2
    while len(kept) > 1:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if breaks(rest):
                kept, pieces = rest, max(2, pieces - 1)
                break
        else:
            if pieces >= len(kept):
                break
            pieces = min(len(kept), 2 * pieces)
    return kept


class _Tries:
    """A predicate with a limited number of calls: further calls return False."""

    def __init__(self, breaks: Callable[[Scenario], bool], tries: int) -> None:
        self._breaks = breaks
        self._left = tries

    def spend(self, scenario: Scenario) -> bool:
        self._left -= 1
        return self._left >= 0 and self._breaks(scenario)
