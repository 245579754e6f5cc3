"""`outrider runs`: show the runs that have left a record on this computer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from ..api.printable import one_line
from ..observe.descriptions import count
from ..observe.run_row import COLUMNS, cells
from ..observe.use import HEAD, use_of
from ..runs.event_reading import events_in
from ..runs.lines import EVENTS
from ..runs.names import runs_folder
from ..runs.reader import Owned, Run, runs_in
from ..trackers.state_file import StateFile, trackers_in
from .exit_codes import DONE
from .flags import AsJson
from .pool_table import console_for_tables
from .run_choice import RunWord, chosen_run


def runs(run: RunWord | None = None, /, *, as_json: AsJson = False) -> int:
    """Show the runs that have left a record here, the newest last; or one, with how well its nodes were used.

    Example: `outrider runs --json`

    A run whose program was killed says "its owner died", and what it had cost a minute before that or later. The id of
    a run begins with its local time; `outrider logs` takes the id, the beginning of it, or the name. How well nodes
    were used is known where the provider keeps account of it, as a Slurm cluster may.

    Parameters
    ----------
    run:
        This one alone. The run's id, the beginning of it, or its name: the newest of that name.
    as_json:
        Print JSON, for programs.
    """
    found = runs_in(runs_folder()) if run is None else [chosen_run(run)]
    owners: list[Owned | None] = [None if each.ended else each.owner for each in found]
    if as_json:
        rows = [
            {**each.status, "id": each.id, "name": each.name, "directory": str(each.directory), "owner": owner}
            for each, owner in zip(found, owners, strict=True)
        ]
        if run is not None:
            rows[0]["trackers"] = [facts for facts, _ in _trackers(found[0])]
        print(json.dumps(rows, indent=2))
    elif found:
        shown = Table(box=None, padding=(0, 1), header_style="dim")
        for column in COLUMNS:
            right = column in ("took", "nodes", "USD")
            shown.add_column(column, justify="right" if right else "left", no_wrap=column != "exit")
        for each, owner in zip(found, owners, strict=True):
            shown.add_row(*(Text(one_line(cell)) for cell in cells(each, owner, time.time())))
        console_for_tables().print(shown)
        if run is not None:
            _show_use(found[0])
            for _, sentence in _trackers(found[0]):
                print(f"\n{one_line(sentence)}")
    else:
        print(f"No runs in {runs_folder()}.")
    return DONE


def _trackers(run: Run) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield how far each tracker is that the record has a state of: for programs, and as a sentence."""
    for name in trackers_in(run.directory):
        cursor = StateFile(run.directory, name).load()
        facts = {"tracker": name, "points": cursor.points, "rejected": cursor.rejected, "problem": cursor.problem}
        said = f"{name} has all of the run" if cursor.ended else f"{name} has {count(cursor.points, 'point')} so far"
        said += f", and takes nothing now ({cursor.problem})" if cursor.problem else ""
        if cursor.rejected:
            said += f"; it did not take {cursor.rejected} deliveries ({' '.join(cursor.reasons[-1:])})"
        yield {**facts, "complete": cursor.ended}, said


def _show_use(run: Run) -> None:
    """Print how well the nodes of a run were used, where that is known, or why it is not."""
    try:
        content = (run.directory / EVENTS).read_bytes()
    except OSError:
        return
    use = use_of(events_in(content))
    for sentence in use.sentences:
        print(f"\n{one_line(sentence)}")
    if use.rows:
        shown = Table(box=None, padding=(0, 1), header_style="dim")
        for column in HEAD:
            shown.add_column(column, no_wrap=True)
        for row in use.rows:
            shown.add_row(*(Text(one_line(cell)) for cell in row))
        console_for_tables().print(shown)
