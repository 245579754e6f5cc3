"""`outrider runs`: show the runs that have left a record on this computer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from ..api.printable import one_line
from ..observe.descriptions import cents, seconds
from ..runs.names import runs_folder
from ..runs.reader import Owned, Run, found_runs
from .exit_codes import DONE
from .flags import AsJson
from .pool_table import console_for_tables

DEAD = {"dead": "its owner died", "elsewhere": "of another computer", "unknown": "its lock cannot be read"}
COLUMNS = ("run", "state", "took", "nodes", "USD", "exit")


def runs(*, as_json: AsJson = False) -> int:
    """Show the runs that have left a record here, the newest last.

    Example: `outrider runs --json`

    A run whose program was killed says "its owner died", and what it had cost a minute before that or later. The id of
    a run begins with its local time; `outrider logs` takes the id, the beginning of it, or the name.

    Parameters
    ----------
    as_json:
        Print JSON, for programs.
    """
    found = found_runs(runs_folder())
    owners: list[Owned | None] = [None if run.ended else run.owner for run in found]
    if as_json:
        rows = [
            {**run.status, "id": run.id, "name": run.name, "directory": str(run.directory), "owner": owner}
            for run, owner in zip(found, owners, strict=True)
        ]
        print(json.dumps(rows, indent=2))
    elif found:
        shown = Table(box=None, padding=(0, 1), header_style="dim")
        for column in COLUMNS:
            right = column in ("took", "nodes", "USD")
            shown.add_column(column, justify="right" if right else "left", no_wrap=column != "exit")
        for run, owner in zip(found, owners, strict=True):
            shown.add_row(*(Text(one_line(cell)) for cell in cells(run, owner, time.time())))
        console_for_tables().print(shown)
    else:
        print(f"No runs in {runs_folder()}.")
    return DONE


def cells(run: Run, owner: Owned | None, now: float) -> tuple[str, ...]:
    """Return a run's row. ``owner``: of a run that has not ended."""
    said = run.status
    state = DEAD.get(owner or "", str(said.get("state", "unreadable")))
    spent = run.spent_usd(now if owner == "alive" else None)
    until = now if owner == "alive" else said.get("ended") or said.get("written")
    took = seconds(max(0.0, until - said["began"])) if until and "began" in said else ""
    return (
        run.id,
        state,
        took,
        _nodes(said, alive=owner == "alive"),
        "" if spent is None else cents(spent),
        _exit(said),
    )


def _nodes(said: Mapping[str, Any], *, alive: bool) -> str:
    if alive:
        return f"{said.get('nodes', '?')} of {said.get('wanted_nodes', '?')}"
    return str(said.get("most_nodes", ""))


def _exit(said: Mapping[str, Any]) -> str:
    code = said.get("exit")
    return "" if code is None else f"{code} {said.get('error') or ''}".strip()
