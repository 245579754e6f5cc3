"""The sink protocol: the way by which a pool's events, output and log records leave the core.

The core (the code that runs a pool) knows only the classes of this module. The package `engine.record` implements
them: `Sink` for displays and the log, `RunRecord` for the run's record (its folder), `CallTraces` for OpenTelemetry.
`Sinks` opens the sinks of one pool; the code that puts a pool together (`engine/pool_life.py`) passes an implementation
of `Sinks` to the pool.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from ...actors.events import Event
    from ...actors.interfaces import Ending

HOUR_S = 3600.0
# a function that handles a request of a command, such as `outrider stop`: takes and returns values of JSON
Request = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class Refused(Exception):
    """An error by which a function of type `Request` refuses its request; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Spending:
    """The cost of a run: ``spent`` USD until the time ``at``, and ``hourly`` USD per hour after that.

    ``at``: seconds of any clock, but the same clock in all calls.
    """

    spent: float = 0.0
    hourly: float = 0.0
    at: float = 0.0

    def until(self, now: float) -> float:
        return self.spent + self.hourly * max(0.0, now - self.at) / HOUR_S


class Origin(NamedTuple):
    """The task that wrote a log record.

    Empty fields: the pool's program wrote it. ``rank``: None outside of broadcasts.
    """

    function: str = ""
    job: int = 0
    rank: int | None = None
    node: int | None = None
    generation: int = 1


class NewestLogged(Protocol):
    """Receives the log records of tasks for a display that shows the newest metrics."""

    def add(self, origin: Origin, records: bytes) -> None: ...


class Sink(ABC):
    """A receiver of a pool's events. It is called on the event loop, so it must return quickly.

    Errors that a sink raises are logged and otherwise ignored.
    """

    tasks = False  # whether the sink wants events of every task; these cost time in the code that runs most often
    metrics: NewestLogged | None = None  # receives the log records of tasks, if they are recorded

    def __call__(self, event: Event) -> None:
        try:
            self.show(event)
        except Exception as error:  # noqa: BLE001 - a failing display must not fail the pool
            logging.getLogger("outrider").debug("%s could not show %r: %r", type(self).__name__, event, error)

    @abstractmethod
    def show(self, event: Event) -> None: ...

    def lags(self) -> bool:
        """Return whether output waits for a slow reader.

        The end of the pool should wait for that reader, as `print` would.
        """
        return False

    def close(self, error: BaseException | None = None) -> None:  # noqa: B027 - most sinks hold nothing back
        """Show output that is still waiting, within a limited time. Called after the last event; may be called again.

        ``error``: the error that ended the pool's `with` block.
        """


class CallTraces(Sink):
    """A sink that creates a span for each call. ``packed``: the span of the call that was last packed for sending."""

    packed: Any

    @abstractmethod
    def packing(self, name: str) -> AbstractContextManager[Mapping[str, str]]:
        """Start the span of a call that is being packed. Yield the trace headers for the call's task."""

    @abstractmethod
    def began(self, job: int, name: str) -> None:
        """Record that the attribute `packed` is the span of this job's call."""

    @abstractmethod
    def ended(self, job: int, name: str, ending: Ending | Sequence[Ending] | None) -> None:
        """End the span of a call. ``ending``: None if the call never started."""


class CallChoice(Protocol):
    """The choice of the calls whose events are recorded. ``names``: job -> function, for each running recorded call."""

    names: dict[int, str]

    def began(self, job: int, name: str) -> bool:
        """Count a call that begins. Return whether it is recorded."""
        ...


class RunRecord(Protocol):
    """A run's record: stores the events of a pool, and the log records and artifacts of its tasks."""

    @property
    def calls(self) -> CallChoice: ...

    @property
    def folder(self) -> Path | None:
        """The record's folder; None: it does not exist yet."""
        ...

    @property
    def failed(self) -> bool:
        """Return whether recording has stopped because of an error."""
        ...

    def open(self, observe: Callable[[Event], object], /) -> None:
        """Open the record. If recording fails, ``observe`` gets an event about that."""
        ...

    def __call__(self, event: Event, /) -> None: ...

    def logged(self, origin: Origin, records: bytes, dropped: int) -> None: ...

    def artifact(self, origin: Origin, records: bytes, content: bytes | bytearray | memoryview | mmap.mmap) -> None:
        """Store an artifact. Waits for the disk, so call it in a thread."""
        ...

    def lost(self, origin: Origin, why: str) -> None: ...

    async def aclose(self, error: BaseException | None = None) -> None: ...


class PoolFacts(NamedTuple):
    """Functions that a sink calls for the facts that it shows.

    ``spending`` must be called on the event loop; the other functions may be called in any thread.
    """

    spending: Callable[[], Spending] = Spending
    record: Callable[[], Path | None] = lambda: None
    # returns the error that ended the pool, if the pool's `with` block has not ended yet
    failure: Callable[[], BaseException | None] = lambda: None


class Sinks(Protocol):
    """Opens the sinks of one pool."""

    def shown(self, facts: PoolFacts) -> Sequence[Sink]:
        """Return the sinks for the log, and for the console or notebook."""
        ...

    def record(
        self,
        spending: Callable[[], Spending],
        requests: Callable[[], Mapping[str, Request]],
        jobs: Callable[[], tuple[int, int]],
    ) -> RunRecord | None:
        """Return the pool's record, which is not open yet; None: this pool leaves no record.

        Args:
            spending: Returns what the pool has cost so far and costs per hour.
            requests: Returns the functions that handle requests of commands such as `outrider stop`, by name.
            jobs: Returns the numbers of submitted and of finished jobs. Must be callable in any thread.
        """
        ...

    def untracked(self) -> Iterable[Event]:
        """Return an event for each tracker that receives no data because the pool leaves no record."""
        ...

    def traces(self) -> CallTraces:
        """Return the OpenTelemetry traces of a pool that is being opened, as children of the current span."""
        ...
