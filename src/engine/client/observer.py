"""The receiver of a pool's events: completes each event, keeps the pool's current state, and passes the event to sinks.

The actors report the events. The sinks show or store them; the core knows sinks only by the protocol in `api/sink.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...actors import events as ev
from ...actors.interfaces import GaveUp, Settled, Verdict
from ...actors.late_nodes import Preparing
from ...actors.seats import Seats
from ..api.printable import all_plain
from ..api.sink import PoolFacts, Spending
from ..api.snapshot import STATES, NodeState, PoolSnapshot
from ..transport.task_output import PrintedLines, TaskLogs
from .job_failures import failures, item_failure

if TYPE_CHECKING:
    from pathlib import Path

    from ...actors.interfaces import Ending
    from ..api.sink import CallTraces, RunRecord, Sink, Sinks
    from ..wire.messages import Failed

KEPT = 10_000  # maximum number of unread events per reader; if there are more, the reader loses the oldest
LOOK_S = 0.02  # seconds between checks whether the reader of stdout has caught up
POOL_STATES: dict[type[ev.Event], str] = {ev.PoolReady: "ready", ev.PoolClosing: "closing", ev.PoolClosed: "closed"}


class Observer:
    """Receives the events of one pool, and passes them on. Implements the interface `actors.events.Observe`.

    ``sinks``: opens the sinks of the pool. ``slots``: the number of tasks that a node runs at the same time.
    """

    def __init__(self, sinks: Sinks, *, slots: int) -> None:
        self.sinks = sinks
        self._sinks: Sequence[Sink] = ()
        self.listener: Callable[[ev.Event], object] = lambda _: None  # called with each event, except events of jobs
        self._record: RunRecord | None = None
        self.traces: CallTraces | None = None  # OpenTelemetry traces of the pool; must be set before `open`
        # the error that ended the pool; it may be set long before the pool's `with` block ends
        self.failure: BaseException | None = None
        self._recorded: dict[int, str] = {}  # running job whose events are recorded -> name of the function
        self._slots_each = slots
        # one queue of events for each subscriber; None in a queue marks the end
        self._readers: list[asyncio.Queue[ev.Event | None]] = []
        self._pool, self._state, self._desired, self._began = "", "starting", 0, time.time()
        self._nodes: dict[int, NodeState] = {}
        self._seats = Seats()
        self._launched: dict[int, float] = {}
        self._numbers: dict[str, int] = {}  # machine -> number of the node on the machine, even if the node has ended
        # node that is being prepared -> (current step, start time of the step, last line of output)
        self._steps: dict[int, tuple[str, float, str]] = {}
        self._names: dict[int, str] = {}
        # job of a broadcast -> the first failed rank, which has already been reported
        self._failed_ranks: dict[int, Settled] = {}
        # job of a broadcast that has waited for long -> the event about the wait
        self._waits: dict[int, ev.BroadcastWaits] = {}
        self.submitted = self.finished = 0
        self.prints = PrintedLines(self._publish, wanted=lambda: bool(self._sinks or self._readers))
        self.logs = TaskLogs(lambda: self._record)
        # whether a sink or reader wants the events of every call; the run's record (folder) gets those of some calls
        self._all = False
        # `tasks`: whether running calls need task events; `jobs`: whether any calls may need job events
        self.tasks = self.jobs = False

    def open(self, record: RunRecord | None = None, spending: Callable[[], Spending] = Spending) -> None:
        """Open the sinks. ``spending``: returns what the pool has cost so far and costs per hour."""
        facts = PoolFacts(spending, record=lambda: self.record_folder, failure=lambda: self.failure)
        self._sinks = self.sinks.shown(facts)
        if self.traces is not None:
            self._sinks = (*self._sinks, self.traces)
        self.logs.newest = next((sink.metrics for sink in self._sinks if sink.metrics is not None), None)
        if record is not None:
            self._record, self._recorded = record, record.calls.names
            record.open(self)
        self._update_tasks()

    async def aclose(
        self, error: BaseException | None = None, *, is_ending: Callable[[], bool] = lambda: False
    ) -> None:
        """Close the run's record (a folder) and the sinks without blocking the event loop.

        Closing the record waits for the disk. Then wait for a slow reader of stdout, as `print` would. Do not wait for
        the reader if the program is ending: because of ``error`` (the error of the pool's `with` block), a
        cancellation, or if ``is_ending`` returns True.
        """
        try:
            if self._record is not None:
                await self._record.aclose(error)
            if not isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                while any(sink.lags() for sink in self._sinks) and not is_ending():  # noqa: ASYNC110 - by a signal
                    await asyncio.sleep(LOOK_S)
        finally:
            self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End all readers of events, and close all sinks. Only `aclose` closes the run's record, too."""
        for reader in self._readers:
            _put(reader, None)
        for sink in self._sinks:
            sink.close(error)

    # --- receiving events -------------------------------------------------------------------------------------------

    def __call__(self, event: ev.Event, /) -> None:
        """Update the pool's state, and pass on the event. Called in the pool actor, so this method never raises."""
        if isinstance(event, ev.JobEvent) and not self._all:
            if self._record is not None:
                self._record(event)
            return
        now = time.time()
        try:
            event = completed(event, now, self._known(event, now))
            self._keep(event)
            self._publish(event)
            self.listener(event)
        except Exception as error:  # noqa: BLE001 - the edge
            logging.getLogger("outrider").debug("could not observe %r: %r", event, error)

    def _known(self, event: ev.Event, now: float) -> dict[str, Any]:
        match event:
            case ev.TaskSubmitted() | ev.BroadcastSubmitted() | ev.BroadcastWaits():
                return {"function": self._names.get(event.job, "")}
            case ev.NodeReady():
                return {"took_s": now - self._launched.pop(event.node, now)}
            case ev.PoolReady():
                return {"took_s": now - self._began}
            case _:
                return {}

    def _keep(self, event: ev.Event) -> None:
        if isinstance(event, ev.NodeEvent):
            self._seats.apply(event)
        match event:
            case ev.NodeDismissed() | ev.NodeFailed() | ev.NodeLost():
                self._nodes.pop(event.node, None)
                self._launched.pop(event.node, None)
                self._steps.pop(event.node, None)
            case ev.NodeLaunching():
                self._launched[event.node] = event.at
                self._numbers[event.machine] = event.node
                self._nodes[event.node] = NodeState(
                    event.node, "launching", machine=event.machine, facts=event.facts or None
                )
            case ev.NodeReady() | ev.NodeStandby():
                self._joined(event)
            case ev.PoolStarting():
                self._pool, self._desired, self._began = event.pool, event.wanted, event.at
            case ev.PoolResized() | ev.PoolScaled():
                self._desired = event.wanted
            case ev.BroadcastWaits():
                self._waits.pop(event.job, None)
                if not event.ended:
                    self._waits[event.job] = event
            case ev.NodeEvent() if type(event) in STATES:
                self._change(event.node, state=STATES[type(event)])
                if isinstance(event, ev.NodePreparing):
                    self._prepares(event)
            case _:
                self._state = POOL_STATES.get(type(event), self._state)

    def _prepares(self, event: ev.NodePreparing) -> None:
        if event.took_s is not None:
            self._steps.pop(event.node, None)
            return
        phase, since, text = self._steps.get(event.node, ("", event.at, ""))
        since = since if phase == event.phase else event.at
        self._steps[event.node] = event.phase, since, event.text or (text if phase == event.phase else "")

    def preparing(self, node: int) -> Preparing | None:
        """Return the current step of preparing a node; None: the node is not being prepared."""
        if (step := self._steps.get(node)) is None:
            return None
        phase, since, text = step
        return Preparing(phase, text, max(0.0, time.time() - since))

    def node_of(self, machine: str) -> int | None:
        """Return the number of the node on a machine, even if the node has ended; None: the machine is not known."""
        return self._numbers.get(machine)

    def wants(self, job: int) -> bool:
        return self._all or job in self._recorded

    def job(self, job: int, name: str) -> None:
        self.submitted += 1
        if self._record is not None and self._record.calls.began(job, name):
            self.tasks = True
        if self._all:
            self._names[job] = name
            if self.traces is not None:
                self.traces.began(job, name)

    def job_over(self, job: int, ending: Ending | Sequence[Ending] | None = None, name: str = "") -> None:
        """Handle the end of a job.

        ``ending``: how the job ended; for a broadcast, one ending per rank; None: the job never started. ``name``: the
        function's name.
        """
        self.finished += 1
        known_name = self._names.pop(job, None) if self._names else None
        if self._recorded and self._recorded.pop(job, None) is not None:
            self.tasks = self._all or bool(self._recorded)
        if known_name is not None and self.traces is not None:
            self.traces.ended(job, known_name, ending)
        if ending is None or (known_name is None and self._record is None):
            return
        if type(ending) is Settled and ending.verdict is Verdict.RETURNED:
            return
        reported = self._failed_ranks.pop(job, None)
        if reported is not None and not isinstance(ending, Settled | GaveUp):
            ending = [each for each in ending if each is not reported]
        for failure in failures(job, known_name or name, ending):
            self(failure)

    def rank_failed(self, job: int, name: str, ending: Ending) -> None:
        """Report the first rank of a broadcast that fails.

        The report comes at once, as other ranks may run for long.
        """
        reported = self._failed_ranks.get(job)
        if not isinstance(ending, Settled) or (reported is not None and reported.generation == ending.generation):
            return
        if job in self._names or self._record is not None:
            self._failed_ranks[job] = ending
            for failure in failures(job, name, [ending]):
                self(failure)

    def item_failed(self, job: int, function: str, item: int, failed: Failed, node: int) -> None:
        if self.jobs:
            self(item_failure(job, function, item, failed, node))

    @property
    def record_folder(self) -> Path | None:
        return None if self._record is None else self._record.folder

    def job_counts(self) -> tuple[int, int]:
        """Return (number of submitted jobs, number of ended jobs)."""
        return self.submitted, self.finished

    def unfinished(self) -> int:
        """The number of jobs that have not ended."""
        return self.submitted - self.finished

    def _joined(self, event: ev.NodeReady | ev.NodeStandby) -> None:
        state = STATES[type(event)]
        self._nodes.setdefault(event.node, NodeState(event.node, state))
        about = {"hostname": event.hostname, "address": event.address, "accelerators": event.accelerators}
        self._change(event.node, state=state, **about)

    def _change(self, node: int, **changes: Any) -> None:
        if node in self._nodes:
            self._nodes[node] = replace(self._nodes[node], **changes)

    def _publish(self, event: ev.Event) -> None:
        if self._record is not None:
            self._record(event)
        for sink in () if type(event) is ev.NodeSampled else self._sinks:
            sink(event)
        for reader in self._readers:
            _put(reader, event)

    def _update_tasks(self) -> None:
        self._all = bool(self._readers) or any(sink.tasks for sink in self._sinks)
        self.jobs = self._all or self._record is not None
        self.tasks = self._all or bool(self._recorded)

    # --- reading the state ------------------------------------------------------------------------------------------

    def slots(self) -> int:
        """The number of tasks that can run at the same time with the nodes that are ready now; at least 1."""
        return max(1, self._slots_each * sum(node.state == "ready" for node in self._nodes.values()))

    def snapshot(self) -> PoolSnapshot:
        ranks, now = self._seats.ranks(), time.time()
        nodes = tuple([replace(node, rank=ranks[at]) if at in ranks else node for at, node in self._nodes.items()])
        waits = tuple(replace(each, waited_s=each.waited_s + max(0.0, now - each.at)) for each in self._waits.values())
        return PoolSnapshot(self._pool, self._state, self._desired, nodes, self.submitted, self.finished, waits)

    def subscribe(self) -> AsyncGenerator[ev.Event, None]:
        """Iterate over the events from now on until the pool is closed."""
        reader: asyncio.Queue[ev.Event | None] = asyncio.Queue()
        self._readers.append(reader)
        self._update_tasks()
        return self._read(reader)

    async def _read(self, reader: asyncio.Queue[ev.Event | None]) -> AsyncGenerator[ev.Event, None]:
        try:
            while (event := await reader.get()) is not None:
                yield event
                if isinstance(event, ev.PoolClosed):
                    return
        finally:
            self._readers.remove(reader)
            self._update_tasks()


def _put(reader: asyncio.Queue[ev.Event | None], event: ev.Event | None) -> None:
    if reader.qsize() == KEPT:
        reader.get_nowait()
    reader.put_nowait(event)


E = TypeVar("E", bound=ev.Event)


def completed(event: E, at: float, known: dict[str, Any]) -> E:
    """Return a copy of the event for users.

    The copy has the event's time and the fields in ``known``, and its texts have no control characters.
    """
    facts = {each.name: getattr(event, each.name) for each in fields(event)} | known | {"at": event.at or at}
    return type(event)(**{name: all_plain(value) for name, value in facts.items()})
