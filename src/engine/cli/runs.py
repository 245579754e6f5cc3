"""`outrider runs`: shows the runs that have records on this computer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from ..api.printable import one_line
from ..api.quantities import count
from ..record.run_tables import COLUMNS, HEAD, cells, use_of
from ..record.runs.lines import EVENTS, events_in
from ..record.runs.names import runs_folder
from ..record.runs.reader import Owned, Run, runs_in
from ..record.runs.retention import remove
from ..record.trackers.state_file import StateFile, trackers_in
from .common import DONE, WRONG, AsJson, Flag, refused
from .pool_table import console_for_tables
from .run_choice import RunWord, chosen_run


def runs(
    *words: RunWord,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None,
    failed: Annotated[bool, Flag] = False,
    as_json: AsJson = False,
) -> int:
    """List the runs recorded on this computer, newest last; or show one run, and how well it used its nodes.

    Example: `outrider runs --json`

    `outrider runs rm RUN` deletes the records of runs that have ended.

    If a run's program was killed, the list says "its owner died", and its cost may lack the last minute. A run's id
    begins with the local time of its start; `outrider logs` takes the id, the beginning of it, or the name. The use of
    nodes is shown if the provider measures it, as some Slurm clusters do.

    Parameters
    ----------
    words:
        A run, to show only this run: its id, the beginning of its id, or its name (the newest run of that name). To
        delete records: rm and the runs.
    limit:
        Only so many of the newest runs.
    failed:
        Only runs that ended with an exit code other than 0, or whose program died.
    as_json:
        Print JSON, for programs.
    """
    if words[:1] == ("rm",) and len(words) > 1:
        if limit is not None or failed or as_json:
            raise refused("runs rm takes runs alone: leave out --limit, --failed and --json")
        return _remove([chosen_run(word) for word in words[1:]])
    if len(words) > 1:
        raise refused(
            f"runs shows one run, or all: leave out {' '.join(words[1:])}. `outrider runs rm RUN` removes runs"
        )
    if limit is not None and limit < 1:
        raise refused(f"--limit takes how many runs are shown, at least 1, not {limit}")
    run = next(iter(words), None)
    chosen = runs_in(runs_folder()) if run is None else [chosen_run(run)]
    owners: list[Owned | None] = [None if each.ended else each.owner for each in chosen]
    kept = [place for place, each in enumerate(chosen) if not failed or has_failed(each, owners[place])]
    kept = kept[-limit:] if limit else kept
    chosen = [chosen[place] for place in kept]
    owners = [owners[place] for place in kept]
    if as_json:
        rows = [
            {**each.status, "id": each.id, "name": each.name, "directory": str(each.directory), "owner": owner}
            for each, owner in zip(chosen, owners, strict=True)
        ]
        if run is not None and rows:
            rows[0]["trackers"] = [facts for facts, _ in _trackers(chosen[0])]
        print(json.dumps(rows, indent=2))
    elif chosen:
        _show_table(chosen, owners)
        if run is not None:
            _show_use(chosen[0])
            for _, sentence in _trackers(chosen[0]):
                print(f"\n{one_line(sentence)}")
    else:
        print(f"No {'failed ' if failed else ''}runs in {runs_folder()}.")
    return DONE


def _show_table(runs: Sequence[Run], owners: Sequence[Owned | None]) -> None:
    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in COLUMNS:
        right = column in ("took", "nodes", "USD")
        shown.add_column(column, justify="right" if right else "left", no_wrap=column != "exit")
    for each, owner in zip(runs, owners, strict=True):
        shown.add_row(*(Text(one_line(cell)) for cell in cells(each, owner, time.time())))
    console_for_tables().print(shown)


def has_failed(run: Run, owner: Owned | None) -> bool:
    """Return whether a run ended with an exit code other than 0, or its owner (its program) died."""
    return bool(run.status.get("exit")) if run.ended else owner == "dead"


def _remove(chosen: Sequence[Run]) -> int:
    """Delete the records of runs that have ended. Return 2 if a record could not be deleted, else 0."""
    code = DONE
    for run in chosen:
        try:
            gone = remove(run.directory)
        except OSError as error:
            print(f"outrider: {run.directory} cannot be removed: {error.strerror}", file=sys.stderr)
            code = WRONG
            continue
        if gone:
            print(f"removed {run.id}")
        else:
            print(
                f"outrider: {run.id} still runs: `outrider stop {run.id}` ends it",
                file=sys.stderr,
            )
            code = WRONG
    return code


def _trackers(run: Run) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield how much of the run each tracker has: as fields for JSON, and as a sentence."""
    for name in trackers_in(run.directory):
        cursor = StateFile(run.directory, name).load()
        facts = {"tracker": name, "points": cursor.points, "rejected": cursor.rejected, "problem": cursor.problem}
        sentence = (
            f"{name} has all of the run" if cursor.ended else f"{name} has {count(cursor.points, 'point')} so far"
        )
        sentence += f", and takes nothing now ({cursor.problem})" if cursor.problem else ""
        if cursor.rejected:
            sentence += f"; it did not take {cursor.rejected} deliveries ({' '.join(cursor.reasons[-1:])})"
        yield {**facts, "complete": cursor.ended}, sentence


def _show_use(run: Run) -> None:
    """Print how much of its nodes' processors and memory a run used, or why that is unknown."""
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
