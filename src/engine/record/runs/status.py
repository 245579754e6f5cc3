"""The present state of a run, computed from its events, for the file `status.json`. No clock, no I/O."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ....lazy_named_tuple import NamedTuple

_LEFT = (ev.NodeLost, ev.NodeFailed, ev.NodeDismissed, ev.NodeStandby)


class Calls(NamedTuple):
    """The numbers of a run's calls. A broadcast is one call; each task of a map is one call, with several items.

    Each failed item of a map counts as a failure.
    """

    submitted: int = 0
    finished: int = 0
    failed: int = 0


@dataclass(slots=True)
class RunStatus:
    """The state of a run.

    ``state``: "starting", "running", "closing" or "ended". ``changed``: unix time of the last event, except output and
    samples.
    """

    id: str
    name: str
    began: float
    pool: str = ""
    provider: str = ""
    state: str = "starting"
    ready: set[int] = field(default_factory=set)
    most: int = 0  # highest number of nodes that were ready at the same time
    wanted: int = 0
    generation: int = 0  # number of the newest generation (one try of a broadcast)
    changed: float = 0.0
    ended: float | None = None
    exit: int | None = None
    error: str = ""

    def apply(self, event: ev.Event, at: float) -> None:
        match event:
            case ev.TaskOutput() | ev.UnfinishedLine() | ev.NodeSampled():
                return
            case ev.GenerationStarted():
                self.generation = event.generation
            case ev.JobEvent():
                pass
            case ev.PoolStarting():
                self.pool, self.provider, self.wanted = event.pool, event.provider, event.wanted
            case ev.PoolReady():
                self.state, self.wanted = "running", event.wanted
            case ev.NodeReady():
                self.ready.add(event.node)
                self.most = max(self.most, len(self.ready))
                self.wanted = event.wanted
            case ev.PoolClosing():
                self.state = "closing"
            case ev.NodeEvent() if isinstance(event, _LEFT):
                self.ready.discard(event.node)
            case ev.PoolResized() | ev.PoolScaled():
                self.wanted = event.wanted
            case _:
                pass
        self.changed = max(self.changed, at)

    def end(self, at: float, exit_code: int, error: str) -> None:
        self.state, self.ended, self.exit, self.error = "ended", at, exit_code, error
        self.ready.clear()
        self.changed = max(self.changed, at)

    def facts(self, at: float, spent: float, hourly: float, calls: Calls | None = None) -> dict[str, Any]:
        """Return the content of `status.json`.

        Args:
            at: The unix time at which the file is written.
            spent: The cost so far, in USD.
            hourly: The cost per hour from now on, in USD.
            calls: The numbers of calls; None: no calls yet.
        """
        calls = calls or Calls()
        return {
            "id": self.id,
            "name": self.name,
            "pool": self.pool,
            "provider": self.provider,
            "state": self.state,
            "nodes": len(self.ready),
            "most_nodes": self.most,
            "wanted_nodes": self.wanted,
            "generation": self.generation,
            "spent_usd": round(spent, 6),
            "hourly_usd": round(hourly, 6) if self.ended is None else 0.0,
            "calls": calls.submitted,
            "finished_calls": calls.finished,
            "failed_calls": calls.failed,
            "began": self.began,
            "changed": self.changed,
            "written": at,
            "ended": self.ended,
            "exit": self.exit,
            "error": self.error,
        }
