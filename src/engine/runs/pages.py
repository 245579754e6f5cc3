"""The text that each event adds to a record's files, and the change of the run's status. No I/O.

The writer's thread appends the text.
"""

from __future__ import annotations

from collections.abc import Callable

from ...actors import events as ev
from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..api.printable import lines, one_line
from ..api.quantities import compact_time
from .events_limit import EventsLimit
from .lines import EVENTS, LOGS, OURS, STACKS, dropped_line, event_line, left_out_line, log_line
from .samples import SYSTEM, sample_line
from .status import RunStatus


class Happened(NamedTuple):
    """An event to record. ``at``: its unix time. ``function``: the function of its call, used if the event has none."""

    event: ev.Event
    at: float
    function: str = ""


@dataclass(slots=True)
class _Broadcast:
    function: str
    size: int = 0  # number of ranks


class Pages:
    """The text that must be appended to the record's files. Keys are paths within the record."""

    def __init__(self, status: RunStatus, clean: Callable[[str], str] = str, limit: EventsLimit | None = None) -> None:
        """Create an object without text.

        ``clean``: hides secrets in a text. ``limit``: the limit for the events of the record, shared with other
        writers.
        """
        self.status = status
        self._limit = limit or EventsLimit()
        self._reported_left_out = 0
        self._clean = clean
        self._text: dict[str, list[bytes]] = {}
        self._broadcasts: dict[int, _Broadcast] = {}  # job of a broadcast that runs -> its state

    def add(self, happened: Happened) -> None:
        event, at, function = happened
        self.status.apply(event, event.at or at)
        match event:
            case ev.UnfinishedLine():
                return  # the complete line follows as a TaskOutput
            case ev.TaskOutput():
                self._printed(event, event.at or at)
                return
            case ev.NodeSampled():
                self._append(SYSTEM, sample_line(event, at))
                return
            case ev.StackTaken():
                self._append(stack_path(event, event.at or at), self._clean(_stack_text(event)).encode())
                return
            case ev.BroadcastSubmitted():
                self._broadcasts[event.job] = _Broadcast(one_line(event.function or function))
            case ev.GenerationStarted():
                self._generation(event, event.at or at)
            case ev.BroadcastFinished():
                self._broadcasts.pop(event.job, None)
            case _:
                pass
        line = event_line(event, at, function, self._clean)
        if self._limit.takes(line, event):
            self._append(EVENTS, line)

    def dropped(self, count: int, at: float) -> None:
        line = dropped_line(count, at)
        if self._limit.takes(line):
            self._append(EVENTS, line)

    def left_out(self, at: float, *, last: bool = False) -> None:
        """Add a line to the record that events are left out, the first time and at the end of the run.

        ``last``: True: the run has ended; the line then has the final number of such events.
        """
        count = self._limit.left_out
        if count > self._reported_left_out and (last or not self._reported_left_out):
            self._reported_left_out = count
            self._append(EVENTS, left_out_line(count, at))

    def taken(self) -> dict[str, bytes]:
        """Return the text that was added since the last call of this method."""
        text, self._text = self._text, {}
        return {path: b"".join(parts) for path, parts in text.items()}

    def _printed(self, event: ev.TaskOutput, at: float) -> None:
        of_rank = event.ranks > 1 or event.job in self._broadcasts
        path = log_path(rank=event.rank) if of_rank else log_path(node=event.node)
        if event.dropped:
            self._append(path, log_line(at, OURS, f"{event.dropped:,} bytes were lost here"))
        of = "" if of_rank or not event.job else f"[{one_line(event.function) or 'task'} #{event.job}] "
        for line in lines(event.text):
            self._append(path, log_line(at, event.stream, self._clean(f"{of}{line}")))

    def _generation(self, event: ev.GenerationStarted, at: float) -> None:
        """Add a line to the log of each rank where a generation begins. All its nodes have equally many ranks."""
        broadcast = self._broadcasts.setdefault(event.job, _Broadcast(""))
        # a later generation may start fewer ranks; the first generation starts all
        broadcast.size = max(broadcast.size, len(event.ranks))
        name, each = broadcast.function or f"broadcast {event.job}", broadcast.size // max(1, len(event.nodes))
        for rank in event.ranks:
            node = event.nodes[min(rank // max(1, each), len(event.nodes) - 1)]
            mark = f"{name}: generation {event.generation} begins, rank {rank} on node {node}"
            self._append(log_path(rank=rank), log_line(at, OURS, mark))

    def _append(self, path: str, line: bytes) -> None:
        self._text.setdefault(path, []).append(line)


def log_path(*, rank: int | None = None, node: int | None = None) -> str:
    """Return the path of the log of a broadcast's rank, or of the tasks of a node that are no ranks."""
    return f"{LOGS}/rank-{rank:03}.log" if rank is not None else f"{LOGS}/node-{node:03}.log"


def stack_path(event: ev.StackTaken, at: float) -> str:
    """Return the path of the file with the stacks of a broadcast's rank, or of another task."""
    whose = f"rank-{event.rank:03}" if event.generation else f"node-{event.node:03}-job-{event.job}"
    return f"{STACKS}/{compact_time(at)}-{whose}.txt"


def _stack_text(event: ev.StackTaken) -> str:
    whose = (
        f"rank {event.rank} of {event.ranks}, generation {event.generation}" if event.generation else f"#{event.job}"
    )
    return f"{one_line(event.function)}: {whose}, node {event.node}\n{event.text}\n\n"
