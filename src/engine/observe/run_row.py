"""A run in a row of a table: how it is, how long it took, and what it cost. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..runs.reader import Owned, Run
from .descriptions import cents, seconds

DEAD = {"dead": "its owner died", "elsewhere": "of another computer", "unknown": "its lock cannot be read"}
COLUMNS = ("run", "state", "took", "nodes", "USD", "exit")


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
