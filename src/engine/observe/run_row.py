"""A run as a row of a table: its state, duration, cost and so on. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api.quantities import cents, seconds
from ..runs.reader import Owned, Run

DEAD = {"dead": "its owner died", "elsewhere": "of another computer", "unknown": "its lock cannot be read"}
COLUMNS = ("run", "state", "took", "nodes", "USD", "exit")


def cells(run: Run, owner: Owned | None, now: float) -> tuple[str, ...]:
    """Return the cells of a run's row.

    ``owner``: whether the process that owns the run is alive; None: the run has ended.
    """
    status = run.status
    state = DEAD.get(owner or "", str(status.get("state", "unreadable")))
    spent = run.spent_usd(now if owner == "alive" else None)
    until = now if owner == "alive" else status.get("ended") or status.get("written")
    took = seconds(max(0.0, until - status["began"])) if until and "began" in status else ""
    return (
        run.id,
        state,
        took,
        _nodes(status, alive=owner == "alive"),
        "" if spent is None else cents(spent),
        _exit(status),
    )


def _nodes(status: Mapping[str, Any], *, alive: bool) -> str:
    if alive:
        return f"{status.get('nodes', '?')} of {status.get('wanted_nodes', '?')}"
    return str(status.get("most_nodes", ""))


def _exit(status: Mapping[str, Any]) -> str:
    code = status.get("exit")
    return "" if code is None else f"{code} {status.get('error') or ''}".strip()
