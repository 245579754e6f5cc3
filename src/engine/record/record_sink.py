"""The sink that passes a pool's events to the thread that writes the run's record.

`RecordedCalls` chooses the calls whose events are written into the record: the first calls of each function. Further
calls are only counted. `Tracking` starts and ends the process that sends the record to trackers, such as MLflow: the
process starts when the record is open, and ends before the pool's `with` block ends.

CALLS-1: at most `EACH` calls of each function are recorded. CALLS-2: a call is recorded from its beginning to its end,
    or not at all. CALLS-3: every call is counted, recorded or not.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...actors import events as ev
from ...providers.shared.threads import in_thread, uninterrupted
from ..api.secrets import Scrubber
from ..api.sink import Origin, Request, Sink, Spending
from . import program_log
from .program_log import source
from .runs.control import ControlSocket
from .runs.description import program_facts, secrets_of, spec_of
from .runs.files import WholeProgram
from .runs.logged import Batch
from .runs.names import runs_folder, usual_name
from .runs.status import Calls
from .runs.writer import Plan, RunEnd, RunWriter

if TYPE_CHECKING:
    from ..api.settings import Settings
    from ..serialization.payload import Part
    from .trackers.base import Tracker
    from .trackers.process import TrackerProcess


EACH = 333  # most calls of one function that are recorded; each call has three events


class RecordedCalls:
    """The choice of a run's recorded calls.

    ``names``: job -> function, for each recorded call that has not ended.
    """

    def __init__(self, each: int = EACH) -> None:
        self._each = each
        self.names: dict[int, str] = {}
        self.begun: dict[str, int] = {}  # function -> number of its calls
        self.failures: Counter[str] = Counter()
        self.failed_calls = 0

    def began(self, job: int, name: str) -> bool:
        """Count a call that begins.

        Return whether it is recorded. Every call of a pool comes through here, so it must be fast.
        """
        number = self.begun.get(name, 0) + 1
        self.begun[name] = number
        if number > self._each:
            return False
        self.names[job] = name
        return True

    def failed(self, name: str) -> bool:
        """Count a call that failed, recorded or not. Return whether this failure is recorded as an event."""
        self.failures[name] += 1
        self.failed_calls += 1
        return self.failures[name] <= self._each

    def counts(self) -> dict[str, dict[str, int]]:
        """Return, for each function, how many of its calls there were, how many are recorded, and how many failed."""
        return {
            name: {"calls": calls, "recorded": min(calls, self._each), "failed": self.failures[name]}
            for name, calls in sorted(self.begun.items())
        }


class Tracking:
    """Starts and ends the trackers' process. ``flush_s``: how long the end of the pool waits until all data is sent."""

    def __init__(self, trackers: Sequence[object], flush_s: float) -> None:
        self._trackers, self._flush_s = cast("Sequence[Tracker]", trackers), flush_s
        self._process: TrackerProcess | None = None
        self._directory: Path | None = None

    def begin(self, directory: Path) -> None:
        """Start the trackers' process. Called in the record's thread; never raises."""
        try:
            from .trackers.process import TrackerProcess, packed

            self._process, self._directory = TrackerProcess(packed(self._trackers, self._flush_s)), directory
            self._process.start(directory)
        except Exception as error:  # noqa: BLE001  the record continues without trackers
            logging.getLogger("outrider").debug("no trackers of %s: %r", directory, error)

    async def aclose(self, observe: Callable[[ev.Event], Any]) -> None:
        """Wait until all data is sent, but at most `flush_s`. Then end the process, and report data that was not sent.

        Call it after the record has ended. On cancellation: stop sending, but still wait for the process to end.
        """
        if self._process is None or self._directory is None:
            return
        try:
            await in_thread(self._process.close, self._flush_s, abandon=True)
        finally:
            await uninterrupted(self._process.kill)
        from .trackers.selection import behind

        for each in await in_thread(behind, self._directory, self._trackers):
            command = "" if each.whole else each.command(self._directory.name)
            observe(ev.TrackerBehind(each.tracker, each.points, each.problem, command))


_ITEM = r"^item \d+ of "  # `JobFailed` names a map's item "item 3 of f", where f is the function
PROGRESS_S = 1.0  # minimum seconds between two recorded states of a map


def record_name(settings: Settings) -> str:
    return settings.run or settings.name or usual_name()


def recording(
    settings: Settings,
    cost: Callable[[], Spending],
    requests: Mapping[str, Request],
    program: WholeProgram | None = None,
    jobs: Callable[[], tuple[int, int]] = lambda: (0, 0),
) -> RecordSink:
    """Return the sink for a pool's record. It is not open yet.

    Args:
        settings: The pool's settings.
        cost: Returns what the pool has cost so far and costs per hour.
        requests: name -> function that handles this request to the running pool.
        program: Describes a process whose only job is this run; None: the process may have other work.
        jobs: Returns the numbers of submitted and of finished jobs. Must be callable in any thread.
    """
    secrets = secrets_of(settings)
    plan = Plan(
        name=record_name(settings),
        folder=runs_folder(),
        describe=lambda: {**program_facts(), "spec": spec_of(settings)},
        clean=Scrubber(secrets) if secrets else str,
        source=source(),
        files=None if program is None else program.files,
    )
    tracking = Tracking(settings.trackers, settings.flush_s) if settings.trackers else None
    return RecordSink(plan, cost, requests, None if program is None else program.exit_code, tracking, jobs=jobs)


class RecordSink(Sink):
    """A sink that stores events in the run's record.

    `show` takes 1 us per event; the writer's thread does the writing.
    """

    def __init__(
        self,
        plan: Plan,
        cost: Callable[[], Spending],
        requests: Mapping[str, Request] | None = None,
        exit_code: Callable[[BaseException], int] | None = None,
        tracking: Tracking | None = None,
        *,
        jobs: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._tracking = tracking
        self._cost, self._requests, self._exit_code = cost, requests or {}, exit_code
        self._control: ControlSocket | None = None
        self._closing = False
        self.calls = RecordedCalls()
        self._reported_at: dict[int, float] = {}  # job of a map -> time when its progress was last recorded
        # called once if the record fails; None: it has been called
        self._observe: Callable[[ev.Event], object] | None = None
        # called with the trackers' events, even if the record has failed
        self._observe_end: Callable[[ev.Event], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer = RunWriter(plan, self._failed, opened=self._opened)
        self._writer.calls = lambda: Calls(*jobs(), self.calls.failed_calls)

    @property
    def folder(self) -> Path | None:
        """The record's folder; None: it does not exist yet."""
        return self._writer.directory

    def open(self, observe: Callable[[ev.Event], object]) -> None:
        """Open the record.

        If recording fails, ``observe`` gets an event about that, on the event loop of the caller.
        """
        self._observe = self._observe_end = observe
        self._loop = asyncio.get_running_loop()
        self._writer.start()
        program_log.opened(self._writer)

    async def aclose(self, error: BaseException | None = None) -> None:
        """Close the record. ``error``: the error that ended the pool's `with` block."""
        self._closing = True
        program_log.closed(self._writer)
        try:
            if self._control is not None:
                await self._control.close()
        finally:
            self._writer.spending = self._cost()
            code = None if error is None or self._exit_code is None else self._exit_code(error)
            end = RunEnd(error, self.calls.counts(), code)
            try:
                await in_thread(self._writer.close, end)
            except RuntimeError:  # no further thread can be started
                self._writer.close(end)
            self._tell_failure()
            if self._tracking is not None and self._observe_end is not None:
                await self._tracking.aclose(self._observe_end)

    def show(self, event: ev.Event) -> None:
        """Record an event if its kind is recorded. A missing time or function name is added to the record."""
        function: str | None = None
        if isinstance(event, ev.JobEvent):
            function = self.calls.names.get(event.job)
            if (function is None or isinstance(event, ev.JobFailed)) and not self._worth_it(event):
                return
        elif isinstance(event, ev.UploadProgress) and not event.ended:
            return
        elif not isinstance(event, ev.TaskOutput | ev.UnfinishedLine):
            self._writer.spending = self._cost()
        self._writer.put(event, time.time(), function or "")

    @property
    def failed(self) -> bool:
        """Return whether recording has stopped because of an error."""
        return bool(self._writer.failure)

    def logged(self, origin: Origin, records: bytes, dropped: int) -> None:
        """Store the log records of a task in the run's record."""
        if not self._writer.failure:
            self._writer.log.put(Batch(origin, records, dropped, time.time()))

    def artifact(self, origin: Origin, records: bytes, content: Part) -> None:
        """Store an artifact in the run's record. Waits for the disk, so call it in a thread."""
        if not self._writer.failure:
            with memoryview(content) as view:
                self._writer.log.put_artifact(Batch(origin, records, 0, time.time()), view)

    def lost(self, origin: Origin, why: str) -> None:
        self._writer.log.lose(origin, why, time.time())

    def _worth_it(self, event: ev.JobEvent) -> bool:
        """Return whether to record an event of a call that is not recorded in full.

        Only the progress of maps, and failures, are recorded for such a call.
        """
        match event:
            case ev.JobFailed():
                return self.calls.failed(re.sub(_ITEM, "", event.function))
            case ev.MapProgress():
                return self._news_of_map(event)
            case ev.GenerationLost():
                return True
            case ev.GenerationStarted() if event.generation > 1:
                return True
            case _:
                return False

    def _news_of_map(self, event: ev.MapProgress) -> bool:
        if event.ended:
            self._reported_at.pop(event.job, None)
            return True
        now = time.monotonic()
        if now - self._reported_at.get(event.job, -PROGRESS_S) < PROGRESS_S:
            return False
        self._reported_at[event.job] = now
        return True

    def _opened(self) -> None:
        """Start the trackers and the control socket, as the record is now open. Called in the writer's thread."""
        if self._tracking is not None and self._writer.directory is not None:
            self._tracking.begin(self._writer.directory)
        if self._loop is not None:
            with suppress(RuntimeError):  # raised if the loop is closed
                self._loop.call_soon_threadsafe(self._take_requests)

    def _take_requests(self) -> None:
        if self._closing or self._writer.directory is None:
            return
        try:
            self._control = ControlSocket(self._writer.directory, self._requests)
        except OSError as error:  # the run continues, and takes no requests
            logging.getLogger("outrider").debug("%s takes no requests: %r", self._writer.directory, error)

    def _failed(self) -> None:
        """Notify the event loop that the record has failed. Called in the writer's thread, if there is one."""
        if self._loop is not None:
            with suppress(RuntimeError):  # raised if the loop is closed: then nobody needs the event
                self._loop.call_soon_threadsafe(self._tell_failure)

    def _tell_failure(self) -> None:
        if self._writer.failure and (observe := self._observe) is not None:
            self._observe = None
            observe(ev.RecordFailed(self._writer.failure))
