"""The sinks (receivers of events) that a pool opens: for the log, the console or notebook, and the run's record.

The module of each sink is imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ...actors.events import TrackerBehind
from ..api.sink import PoolFacts
from .surroundings import VARIABLE, in_notebook, leaves_record, surroundings

if TYPE_CHECKING:
    from ..api.settings import ConsoleOption, Settings
    from ..api.sink import CallTraces, Request, Sink, Spending
    from .record_sink import RecordSink
    from .runs.files import WholeProgram


class PoolSinks:
    """Opens the sinks (receivers of events) of one pool. Implements the protocol `Sinks` of `api/sink.py`.

    Args:
        console: The pool's option ``console``.
        settings: The pool's settings; None: the pool leaves no record.
        program: Describes a process whose only job is this pool's run; None: the process may have other work.
    """

    def __init__(
        self, console: ConsoleOption, settings: Settings | None = None, program: WholeProgram | None = None
    ) -> None:
        self._console: ConsoleOption = console
        self._settings, self._program = settings, program

    def shown(self, facts: PoolFacts) -> Sequence[Sink]:
        """Return the sinks for the log, and for the console or notebook."""
        return sinks(self._console, facts)

    def record(
        self,
        spending: Callable[[], Spending],
        requests: Callable[[], Mapping[str, Request]],
        jobs: Callable[[], tuple[int, int]],
    ) -> RecordSink | None:
        """Return the pool's record, which is not open yet; None: this pool leaves no record.

        Args:
            spending: Returns what the pool has cost so far and costs per hour.
            requests: Returns the functions that handle requests of commands such as `outrider stop`, by name.
            jobs: Returns the numbers of submitted and of finished jobs. Must be callable in any thread.
        """
        settings = self._settings
        if settings is None or not leaves_record(settings.run, tracked=bool(settings.trackers)):
            return None
        from .record_sink import recording

        return recording(settings, spending, requests(), self._program, jobs)

    def untracked(self) -> Iterator[TrackerBehind]:
        """Yield an event for each tracker that receives no data because the pool leaves no record.

        This happens if an environment variable switches records off.
        """
        for tracker in () if self._settings is None else self._settings.trackers:
            why = f"there is no record to send, as {VARIABLE}=0 is in the environment"
            yield TrackerBehind(str(getattr(tracker, "name", tracker)), 0, why, "")

    def traces(self) -> CallTraces:
        """Return the OpenTelemetry traces of a pool that is being opened, as children of the current span."""
        from importlib.metadata import version

        from .traces import Traces

        return Traces(version("outrider"))


def sinks(console: ConsoleOption, facts: PoolFacts | None = None) -> Sequence[Sink]:
    """Return a sink for the log, and a sink for ``console``.

    If a live table is already shown on the terminal, a second pool prints lines above that table. In a notebook, each
    pool has its own table.
    """
    from .display.log import LogSink

    shown = automatic() if console == "auto" else console
    if shown == "silent":
        return [LogSink()]
    if shown == "rich":
        if in_notebook():
            from .display.notebook import NotebookSink

            return [LogSink(), NotebookSink(facts or PoolFacts())]
        from .display.live import RichSink

        if table := RichSink.claim(facts):
            return [LogSink(), table]
    from .display.plain import PlainSink, PrintsSink

    return [LogSink(), PrintsSink(facts) if shown == "prints" else PlainSink(facts)]


def automatic() -> Literal["rich", "plain", "prints"]:
    """Return the kind of console for ``console="auto"``.

    "rich" on a terminal and in a notebook. "prints", which shows only the output of tasks, in applications that have
    set up logging. "plain" elsewhere.
    """
    match surroundings():
        case "terminal" | "notebook":
            return "rich"
        case "pipe":
            return "plain"
        case "application":
            return "prints"
