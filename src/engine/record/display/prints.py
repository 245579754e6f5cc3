"""Lines that tasks have printed, with their origin, and lines that tasks have begun and not finished. No I/O."""

from __future__ import annotations

from threading import Lock

from ....actors import events as ev
from ...api.printable import lines, one_line

Printed = ev.TaskOutput | ev.UnfinishedLine


class UnfinishedLines:
    """The newest state of each line that a task has begun and not finished, such as a progress bar."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int, int, str], _Unfinished] = {}
        # held by the event loop while it changes lines, and by the thread that draws or prints while it reads lines
        self._lock = Lock()

    def apply(self, event: Printed) -> None:
        key = event.job, event.node, event.rank, event.stream
        with self._lock:
            if isinstance(event, ev.TaskOutput):
                self._lines.pop(key, None)
            elif (line := self._lines.get(key)) is None:
                self._lines[key] = _Unfinished(event, event.at)
            else:
                line.newest = event

    def newest(self) -> list[ev.UnfinishedLine]:
        """Return the newest state of each unfinished line, sorted by rank and node."""
        with self._lock:
            events = [line.newest for line in self._lines.values() if line.newest.text.strip()]
        return sorted(events, key=lambda event: (event.rank, event.node, event.job))

    def due(self, now: float, every_s: float) -> list[ev.UnfinishedLine]:
        """Return the unfinished lines that have changed since they were last returned.

        Only lines that were last returned, or began, at least ``every_s`` seconds ago are returned.
        """
        due: list[ev.UnfinishedLine] = []
        with self._lock:
            for line in self._lines.values():
                if line.newest is not line.reported and now - line.reported_at >= every_s and line.newest.text.strip():
                    line.reported, line.reported_at = line.newest, now
                    due.append(line.newest)
        return due


class _Unfinished:
    """An unfinished line, its last returned state, and the time of that return (at first: of the line's beginning)."""

    __slots__ = ("newest", "reported", "reported_at")

    def __init__(self, newest: ev.UnfinishedLine, began_at: float) -> None:
        self.newest, self.reported_at = newest, began_at
        self.reported: ev.UnfinishedLine | None = None


def marked(event: Printed) -> str:
    """Return the output of a task as text, with the origin at the beginning of each line."""
    mark = f"[{origin(event)}] "
    dropped = event.dropped if isinstance(event, ev.TaskOutput) else 0
    gap = f"{mark}... {dropped:,} bytes were lost here\n" if dropped else ""
    return gap + "".join(f"{mark}{line}\n" for line in lines(event.text))


def origin(event: Printed) -> str:
    """Return the origin of a line: ``rank 3 · train`` in a broadcast, else ``node 2 · f #17``, where 17 is the job."""
    name = one_line(event.function)
    if event.ranks > 1:
        return f"rank {event.rank} · {name or event.job}"
    if not event.job:  # the call is not known, as the attempt that printed the line was already over
        return f"node {event.node}"
    return f"node {event.node} · {name or 'task'} #{event.job}"
