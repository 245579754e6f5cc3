"""The report of a fault injection: as numbers, JSON or a picture.

It covers every fault, every node, and every generation (run of a broadcast on a fixed set of nodes).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ...actors import events as ev
from ...engine.api.chaos import ChaosPlan
from ...engine.api.errors import SpecError
from ...lazy_dataclass import dataclass
from .faults import KINDS

if TYPE_CHECKING:
    from ...engine.api.snapshot import NodeState

LEFT_OUT = (
    ev.JobFailed,
    ev.MapProgress,
    ev.TaskOutput,
    ev.UnfinishedLine,
    ev.UploadProgress,
    ev.TaskSubmitted,
    ev.TaskStarted,
    ev.TaskFinished,
    ev.NodePreparing,
)


@dataclass(slots=True)
class Strike:
    """A fault that was injected. Times are seconds since the epoch.

    Attributes:
        number: The number in the plan; below 1 for a fault at a step.
        kind: The kind of the fault.
        fault: The fault as a user would write it.
        node: The number of the node.
        rank: The rank of the node among the ready nodes; for a fault at a step, the rank of the task.
        at: The time of the fault.
        noticed_at: The time at which the node got its preemption notice. None: it got no notice.
        over_at: The time at which the fault was undone or the node was ended. None: the fault still lasts.
        step: The step of the task at which the fault was injected. None: a fault without ``at_step``.
    """

    number: int  # number in the plan; below 1 for a fault at a step
    kind: str
    fault: str  # as a user would write it
    node: int
    rank: int  # rank of the node among the ready nodes; for a fault at a step, rank of the task
    at: float
    noticed_at: float | None = None  # when the node received its preemption notice
    over_at: float | None = None  # when the fault was undone or the node was ended
    step: int | None = None

    @property
    def taken_at(self) -> float:
        """The earliest time at which this fault can cause the node's loss: for a preemption, the end of its notice."""
        return self.over_at if self.kind == "preempt" and self.over_at is not None else self.at

    @property
    def takes_node(self) -> bool:
        """Return whether the fault causes the loss of its target node."""
        return KINDS[self.kind].takes == "node"


@dataclass(slots=True)
class InitialNode:
    """A node that existed when fault injection began."""

    node: int
    state: str
    rank: int | None


@dataclass(slots=True)
class StepCount:
    """The number of steps that an attempt made before it ended."""

    job: int
    generation: int
    rank: int
    steps: int


@dataclass(slots=True)
class Report:
    """The record of one fault injection. It grows while faults are injected, and is complete at the end.

    Attributes:
        chaos: The plan.
        began_at: The time of the beginning, in seconds since the epoch.
        ended_at: The time of the end, in seconds since the epoch.
        initial_nodes: The nodes that existed at the beginning.
        strikes: The injected faults.
        events: The pool's events from the beginning of the injection to its end, without frequent kinds (`LEFT_OUT`).
        step_counts: The steps of each attempt that has ended.
        began: (job, generation) -> time of its first step. A generation is a broadcast's run on a fixed set of nodes.
    """

    chaos: ChaosPlan | None = None
    began_at: float | None = None  # seconds since the epoch
    ended_at: float | None = None
    initial_nodes: list[InitialNode] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    events: list[ev.Event] = field(default_factory=list)
    step_counts: list[StepCount] = field(default_factory=list)
    began: dict[tuple[int, int], float] = field(default_factory=dict)  # time of the first step, by (job, generation)

    def begin(self, nodes: Iterable[NodeState]) -> None:
        """Record the beginning of the injection: the time, and the nodes that exist."""
        self.began_at = time.time()
        self.initial_nodes = [InitialNode(node.node, node.state, node.rank) for node in nodes]

    def end(self) -> None:
        """Record the time at which the injection ends."""
        self.ended_at = time.time()

    def add(self, event: ev.Event) -> None:
        """Add an event of the pool, except frequent events that the report does not need."""
        if not isinstance(event, LEFT_OUT):
            self.events.append(event)

    # --- statistics -------------------------------------------------------------------------------------------------

    def of(self, *kinds: type[Any]) -> list[Any]:
        """Return the recorded events of the types ``kinds``."""
        return [event for event in self.events if isinstance(event, kinds)]

    @property
    def losses(self) -> list[ev.NodeLost]:
        """The events that report the loss of a node."""
        return self.of(ev.NodeLost)

    @property
    def generations(self) -> int:
        """The number of generations (runs on a fixed set of nodes) of all broadcasts together."""
        return len(self.of(ev.GenerationStarted))

    @property
    def seen_s(self) -> list[float]:
        """For each lost node, the seconds from the node's last fault until the pool noticed the loss."""
        taking = [strike for strike in self.strikes if strike.takes_node]
        seconds = []
        for lost in self.losses:
            before = [strike for strike in taking if strike.node == lost.node and strike.at <= lost.at]
            if before:
                seconds.append(max(0.0, lost.at - max(before, key=lambda strike: strike.at).taken_at))
        return seconds

    @property
    def recoveries_s(self) -> list[float]:
        """For each lost generation of a broadcast, the seconds from its loss to the start of the next generation.

        A generation is the broadcast's run on a fixed set of nodes.
        """
        starts = self.of(ev.GenerationStarted)
        seconds = []
        for lost_at, job, generation in self._lost():
            seconds.append(min(e.at for e in starts if e.job == job and e.generation > generation) - lost_at)
        return seconds

    @property
    def working_s(self) -> list[float]:
        """For each lost generation, the seconds from its loss to the first step that a later generation made.

        A generation is a broadcast's run on a fixed set of nodes.
        Functions that count no steps (see `outrider.testing.step`) add nothing.
        """
        seconds = []
        for lost_at, job, generation in self._lost():
            later = [at for (of, number), at in self.began.items() if of == job and number > generation]
            if later:
                seconds.append(min(later) - lost_at)
        return seconds

    def _lost(self) -> list[tuple[float, int, int]]:
        """Return (time of the loss, job, generation) for each lost generation that a later generation replaced."""
        last = {event.job: event.generation for event in self.of(ev.GenerationStarted)}
        losses = []
        for event in self.of(ev.GenerationLost):
            at = [lost.at for lost in self.losses if lost.node in event.nodes]
            if event.generation < last.get(event.job, 0):
                losses.append((min([event.at, *at]), event.job, event.generation))
        return losses

    def summary(self) -> str:
        """Return the statistics as one line of text for the user."""
        faults = _counted(len(self.strikes), "fault")
        text = f"{faults}, {_counted(len(self.losses), 'node')} lost, {_counted(self.generations, 'generation')}"
        if self.recoveries_s:
            text += f"; the next one was started {median(self.recoveries_s):.2f} s after a loss"
        if self.working_s:
            text += f" and made its first step after {median(self.working_s):.1f} s (medians)"
        return text

    # --- output -----------------------------------------------------------------------------------------------------

    def properties(self) -> list[tuple[str, object]]:
        """Return the statistics as (name, value) pairs for the properties of a test in a JUnit report."""
        figures: list[tuple[str, object]] = [
            ("outrider.faults", "; ".join(f"{s.fault} on rank {s.rank}" for s in self.strikes)),
            ("outrider.nodes_lost", len(self.losses)),
            ("outrider.generations", self.generations),
        ]
        if self.recoveries_s:
            figures.append(("outrider.recovery_s", round(max(self.recoveries_s), 3)))
        if self.working_s:
            figures.append(("outrider.working_s", round(max(self.working_s), 3)))
        if self.chaos is not None:
            figures.append(("outrider.seed", self.chaos.seed))
        return figures

    def as_dict(self) -> dict[str, Any]:
        """Return the whole report as a dict that can be written as JSON."""
        chaos = self.chaos
        return {
            "chaos": None
            if chaos is None
            else {"mtbf": chaos.mtbf, "seed": chaos.seed, "faults": [str(fault) for fault in chaos.faults]},
            "began_at": self.began_at,
            "ended_at": self.ended_at,
            "found": [asdict(each) for each in self.initial_nodes],
            "faults": [asdict(strike) for strike in self.strikes],
            "nodes_lost": len(self.losses),
            "generations": self.generations,
            "seen_s": self.seen_s,
            "recoveries_s": self.recoveries_s,
            "working_s": self.working_s,
            "made": [asdict(each) for each in self.step_counts],
            "events": [{"event": event.name, **asdict(event)} for event in self.events],
        }

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to ``path``: a ``.json``, ``.html``, ``.png`` or ``.svg`` file.

        The last two need matplotlib.

        Raises:
            SpecError: The suffix is none of these four, or matplotlib is not installed.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        match path.suffix:
            case ".json":
                path.write_text(json.dumps(self.as_dict(), indent=1))
            case ".html":
                from .html import page

                path.write_text(page(self))
            case ".png" | ".svg":
                from .picture import draw

                draw([self], path)
            case other:
                raise SpecError(f"A report is written to .json, .html, .png or .svg, not {other!r}.")
        return path


def missed(wanted: Iterable[Any], injected: Sequence[Strike]) -> list[Any]:
    """Return those of the planned faults ``wanted`` that were not injected."""
    happened = {strike.number for strike in injected}
    return [planned for planned in wanted if planned.number not in happened]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
