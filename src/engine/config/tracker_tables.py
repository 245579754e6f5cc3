"""Trackers (destinations of runs) in configuration files: tables ``[trackers.NAME]``, and ``trackers = [...]`` of
a pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...providers.shared.option_names import closest
from ..api.checks import refuse, shown
from ..api.secrets import Secret
from ..trackers.base import Tracker
from ..trackers.trackers import KINDS, new_tracker

Tables = Mapping[str, Mapping[str, Any]]


def with_tables(trackers: object, tables: Tables) -> object:
    """Return a pool's ``trackers``. A name for which the file has a table is replaced by that table."""
    if not isinstance(trackers, list):
        return trackers
    return [named_table(each, tables) if isinstance(each, str) and each in tables else each for each in trackers]


def named_table(name: str, tables: Tables) -> Mapping[str, Any]:
    """Return the table of the tracker ``name``. That is also the tracker's name, unless the table gives another one."""
    return {"name": name, **tables[name]}


def trackers_of(value: object) -> list[Tracker]:
    """Create the trackers of a pool, such as ``trackers = ["mlflow", { kind = "webhook", url = ... }]``.

    Raises:
        SpecError
    """
    if isinstance(value, str) or not isinstance(value, list | tuple):
        refuse(f'trackers takes a list, as in trackers = ["mlflow"], not {shown(value)}.')
    return [each if isinstance(each, Tracker) else tracker_of(each) for each in value]


def tracker_of(value: object) -> Tracker:
    """Create a tracker.

    ``value``: the name of its kind, or a table with ``kind`` (or with ``name``, if that is a kind).

    Raises:
        SpecError
    """
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        refuse(f'trackers takes names, or tables as {{ kind = "mlflow", experiment = "digits" }}, not {shown(value)}.')
    kind = table.get("kind", table.get("name"))
    if not isinstance(kind, str) or (kind not in KINDS and ":" not in kind):
        known = ", ".join(map(repr, KINDS))
        meant = closest(kind, KINDS) if isinstance(kind, str) else ""
        hint = f"did you mean {meant!r}?" if meant else "[trackers.NAME] tells it."
        refuse(f"a tracker's kind is one of {known}, or 'module:Class', not {shown(kind)}: {hint}")
    return new_tracker(kind, {key: _value(each) for key, each in table.items() if key != "kind"})


def _value(value: object) -> Any:
    match value:
        case {"secret": str(name), **more} if not more:
            return Secret.env(name)
        case Mapping():
            return {key: _value(each) for key, each in value.items()}
        case _:
            return value
