"""A limit for the size of the events in a record. No I/O.

A run may last for months, and programs that read the record read all its events.

EVENTS-1: the lines take at most `most_bytes`; events about nodes, ranks and the run's end are written until all lines
          take twice as many bytes.
EVENTS-2: each line that is left out is counted.
"""

from __future__ import annotations

from ...actors import events as ev

MOST_BYTES = 64 * 2**20  # enough for some 300,000 events
NEEDED = (  # events from which readers know the run's nodes and ranks, and its end
    ev.NodeLaunching,
    ev.NodeReady,
    ev.NodeStandby,
    ev.NodeNoticed,
    ev.NodeDraining,
    ev.NodeLost,
    ev.NodeFailed,
    ev.NodeDismissed,
    ev.GenerationStarted,
    ev.NodeUsed,
    ev.PoolUsed,
    ev.PoolClosing,
    ev.PoolClosed,
)


class EventsLimit:
    """The limit for the events of one record.

    ``left_out``: how many lines were not written, because the limit was reached.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._size_bytes = most_bytes, 0
        self.left_out = 0

    def takes(self, line: bytes, event: ev.Event | None = None) -> bool:
        """Return whether to write a line of events. ``event``: the event in the line; None: a line of another kind."""
        most = 2 * self._most_bytes if isinstance(event, NEEDED) else self._most_bytes
        if self._size_bytes + len(line) > most:
            self.left_out += 1
            return False
        self._size_bytes += len(line)
        return True
