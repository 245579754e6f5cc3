"""Decide which events a record has room for, as its readers read all of them, and a run may last for months. Pure.

EVENTS-1: the lines have at most `most_bytes`; those that say which nodes there are, and how the run ends, go on until
          all have twice as many.
EVENTS-2: each line that is left out is counted.
"""

from __future__ import annotations

from ...actors import events as ev

MOST_BYTES = 64 * 2**20  # some 300,000 events
NEEDED = (  # by whoever asks for the run's nodes and ranks, or for its end
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
    """``left_out``: how many lines there was no room for."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._size_bytes = most_bytes, 0
        self.left_out = 0

    def takes(self, line: bytes, event: ev.Event | None = None) -> bool:
        """Return whether a line is written. ``event``: what it tells of; None: something else."""
        most = 2 * self._most_bytes if isinstance(event, NEEDED) else self._most_bytes
        if self._size_bytes + len(line) > most:
            self.left_out += 1
            return False
        self._size_bytes += len(line)
        return True
