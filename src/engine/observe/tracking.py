"""The trackers of a pool with a record: their process starts with the record, and ends before the pool's block ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...actors import events as ev
from ...providers.threads import in_thread, uninterrupted

if TYPE_CHECKING:
    from ..trackers.base import Tracker
    from ..trackers.process import TrackerProcess


class Tracking:
    """The trackers' process. ``flush_s``: how long the end of the pool waits until everything is sent."""

    def __init__(self, trackers: Sequence[object], flush_s: float) -> None:
        self._trackers, self._flush_s = cast("Sequence[Tracker]", trackers), flush_s
        self._process: TrackerProcess | None = None
        self._directory: Path | None = None

    def begin(self, directory: Path) -> None:
        """Start the process. Runs in the record's thread, and never raises."""
        try:
            from ..trackers.process import TrackerProcess, packed

            self._process, self._directory = TrackerProcess(packed(self._trackers, self._flush_s)), directory
            self._process.start(directory)
        except Exception as error:  # noqa: BLE001  the record continues without trackers
            logging.getLogger("outrider").debug("no trackers of %s: %r", directory, error)

    async def aclose(self, observe: Callable[[ev.Event], Any]) -> None:
        """Wait until everything is sent, for at most `flush_s`; end the process, and report gaps.

        The record has ended before this call.

        On cancellation: stop flushing, but still reap the process.
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
