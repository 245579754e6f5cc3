"""Simulate the scenarios of many seeds on all CPU cores, and collect the outcomes and the broken promises."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import field
from hashlib import blake2b
from multiprocessing import get_context
from typing import NamedTuple

from ...lazy_dataclass import dataclass
from .draw import draw
from .play import play
from .referee import Violation
from .scenario import Scenario
from .storm import storm

CHUNK = 20  # number of seeds that a worker process receives at a time
ENOUGH_S = 300.0  # seconds of CPU time after which a simulated run is aborted as endless
MANY = 10_000  # number of jobs for which `ENOUGH_S` is meant; a run with more jobs gets proportionally more CPU time
TRIED_S = 30.0  # limit of CPU time in seconds for each run in the search for a smaller failing scenario


class Wanted(NamedTuple):
    """The user's settings for all scenarios of a campaign. None: each scenario draws the value at random.

    With ``tasks`` or ``share``, the scenarios come from `storm` instead of `draw`.
    """

    nodes: int | None = None
    span_s: float | None = None
    tasks: int | None = None
    share: float | None = None  # share of the nodes that the cloud takes away in a storm, from 0 to 1

    @property
    def storms(self) -> bool:
        return self.tasks is not None or self.share is not None

    def scenario(self, seed: int) -> Scenario:
        if self.storms:
            return storm(seed, nodes=self.nodes, tasks=self.tasks, share=self.share, span_s=self.span_s)
        return draw(seed, nodes=self.nodes, span_s=self.span_s)

    def __str__(self) -> str:
        """Return the equivalent options of `outrider sim`, each with a space before it."""
        options = {"nodes": self.nodes, "span": self.span_s, "tasks": self.tasks, "storm": self.share}
        return "".join(f" --{name} {value:g}" for name, value in options.items() if value is not None)


class Broken(NamedTuple):
    rule: str
    story: str
    at_s: float


class Outcome(NamedTuple):
    """The outcome of the simulated run of one seed."""

    seed: int
    broken: Broken | None
    digest: str
    simulated_s: float
    wall_s: float
    steps: int
    events: Counter[str]
    endings: Counter[str]
    faults: Counter[str]
    machines: int
    generations: int
    recoveries_s: tuple[float, ...]


@dataclass(slots=True)
class Tally:
    """The totals of a campaign."""

    seeds: int = 0
    simulated_s: float = 0.0
    played_s: float = 0.0  # seconds of real time, summed over all runs and cores
    steps: int = 0
    machines: int = 0
    generations: int = 0
    events: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    recoveries_s: list[float] = field(default_factory=list)
    broken: dict[int, Broken] = field(default_factory=dict)  # seed of a run -> the promise that the run broke
    digests: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.played_s += outcome.wall_s
        self.steps += outcome.steps
        self.machines += outcome.machines
        self.generations += outcome.generations
        self.events += outcome.events
        self.endings += outcome.endings
        self.faults += outcome.faults
        self.recoveries_s += outcome.recoveries_s
        self.digests[outcome.seed] = outcome.digest
        if outcome.broken is not None:
            self.broken[outcome.seed] = outcome.broken

    @property
    def digest(self) -> str:
        """A digest of the runs of all seeds. Two campaigns with the same runs have the same digest."""
        whole = blake2b(digest_size=16)
        for seed in sorted(self.digests):
            whole.update(f"{seed} {self.digests[seed]}\n".encode())
        return whole.hexdigest()


def outcomes(
    seeds: Sequence[int],
    *,
    wanted: Wanted = Wanted(),  # noqa: B008  it is a constant
    processes: int | None = None,
) -> Iterator[Outcome]:
    """Simulate the scenario of every seed, and yield each outcome as soon as it is known.

    Args:
        seeds: The seeds.
        wanted: The user's settings for all scenarios.
        processes: The number of worker processes. Default: one per CPU core.
    """
    count = min(processes or os.cpu_count() or 1, len(seeds))
    if count <= 1:
        for seed in seeds:
            yield _outcome(seed, wanted)
        return
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with _workers(count) as workers:
        for done in as_completed([workers.submit(_outcomes, chunk, wanted) for chunk in chunks]):
            yield from done.result()


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start ``count`` worker processes. When the block ends, cancel all work that has not begun."""
    workers = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)


def enough_s(scenario: Scenario) -> float:
    """Return the seconds of CPU time after which a run of this scenario counts as endless."""
    return ENOUGH_S * max(1.0, len(scenario.jobs) / MANY)


def _outcomes(seeds: Sequence[int], wanted: Wanted) -> list[Outcome]:
    return [_outcome(seed, wanted) for seed in seeds]


def _outcome(seed: int, wanted: Wanted) -> Outcome:
    scenario = wanted.scenario(seed)
    played = play(scenario, keep=0, enough_s=enough_s(scenario))
    return Outcome(
        seed,
        _broken(played.violation),
        played.digest,
        played.simulated_s,
        played.wall_s,
        played.steps,
        played.events,
        played.endings,
        played.faults,
        played.machines,
        played.generations,
        played.recoveries_s,
    )


def _broken(violation: Violation | None) -> Broken | None:
    return None if violation is None else Broken(violation.rule, violation.story, violation.at_s)


def breaks(rule: str) -> Callable[[Scenario], bool]:
    """Return a function for `shrink` that runs a scenario and returns whether the run breaks the promise ``rule``."""

    def does(scenario: Scenario) -> bool:
        violation = play(scenario, keep=0, enough_s=TRIED_S).violation
        return violation is not None and violation.rule == rule

    return does
