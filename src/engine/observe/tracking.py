"""The process that sends a run's record to trackers, such as MLflow.

The process starts when the record is open, and ends before the pool's `with` block ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...actors import events as ev
from ...providers.shared.threads import in_thread, uninterrupted

if TYPE_CHECKING:
    from ..trackers.base import Tracker
    from ..trackers.process import TrackerProcess


class Tracking:
    """Starts and ends the trackers' process. ``flush_s``: how long the end of the pool waits until all data is sent."""

    def __init__(self, trackers: Sequence[object], flush_s: float) -> None:
        self._trackers, self._flush_s = cast("Sequence[Tracker]", trackers), flush_s
        self._process: TrackerProcess | None = None
        self._directory: Path | None = None

    def begin(self, directory: Path) -> None:
        """Start the trackers' process. Called in the record's thread; never raises."""
        try:
            from ..trackers.process import TrackerProcess, packed

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
        from ..trackers.behind import behind

        for each in await in_thread(behind, self._directory, self._trackers):
            command = "" if each.whole else each.command(self._directory.name)
            observe(ev.TrackerBehind(each.tracker, each.points, each.problem, command))
