"""The page with the list of all runs that have a record on this computer. It is updated while a browser shows it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ..observe.run_row import cells
from ..runs.reader import runs_in
from .documents import runs_document, runs_section
from .updates import Updates

LOOK_S = 1.0


class RunsPage:
    """The list of the runs in ``folder``. Only one thread at a time may use it."""

    over = False

    def __init__(self, folder: Path, name: str) -> None:
        """Read the records. ``name``: the name of the page's stream of updates."""
        self.updates = Updates(name)
        self._folder = folder
        self._shown = self._rows()

    def look(self) -> bool:
        rows = self._rows()
        if rows == self._shown:
            return False
        self._shown = rows
        self.updates.add(self.whole())
        return True

    def html(self) -> str:
        return runs_document(self._shown, self.updates.newest)

    def whole(self) -> bytes:
        return json.dumps({"sections": {"runs": self._shown}}).encode()

    def _rows(self) -> str:
        """Return the list of runs as HTML. A folder that cannot be read looks like a folder without runs."""
        try:
            runs = runs_in(self._folder)[::-1]
        except OSError:
            runs = []
        now = time.time()
        return runs_section([cells(run, None if run.ended else run.owner, now) for run in runs], str(self._folder))
