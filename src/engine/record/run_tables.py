"""A recorded run as rows of tables: its state, duration and cost, and the used share of its nodes. No I/O.

The used share comes from the provider's accounting in the run's record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...actors import events as ev
from ...lazy_named_tuple import NamedTuple
from ..api.quantities import cents, percent, seconds, size
from .display.descriptions import pool_use
from .runs.reader import Owned, Run

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


HEAD = ("node", "machine", "CPU efficiency", "memory efficiency", "for")


class Use(NamedTuple):
    """The used share of the nodes.

    ``sentences``: about all nodes together. ``rows``: one per node, with the columns of `HEAD`. Both are empty if
    unknown.
    """

    sentences: Sequence[str]
    rows: Sequence[tuple[str, ...]]


def use_of(events: Iterable[ev.Event]) -> Use:
    """Return how much of the nodes was used, from the events of a record.

    Empty if the provider has no accounting, or the run has not ended.
    """
    used = [event for event in events if isinstance(event, ev.NodeUsed | ev.PoolUsed)]
    rows = [_row(event) for event in used if isinstance(event, ev.NodeUsed)]
    return Use([each for event in used if isinstance(event, ev.PoolUsed) for each in _sentences(event)], rows)


def _sentences(event: ev.PoolUsed) -> Iterator[str]:
    if event.nodes:
        yield f"{pool_use(event)}."
    else:
        yield f"How well the nodes were used is not known: {event.unknown}."


def _row(event: ev.NodeUsed) -> tuple[str, ...]:
    core_s = event.seconds * event.cpus
    cpu = f"{percent(event.cpu_s / core_s)} of {event.cpus:g}" if core_s else "not known"
    return str(event.node), event.machine, cpu, _memory(event), seconds(event.seconds)


def _memory(event: ev.NodeUsed) -> str:
    if event.memory_bytes is None:
        return "not known"
    if not event.memory_total_bytes:
        return f"{size(event.memory_bytes)}, without a limit"
    part = event.memory_bytes / event.memory_total_bytes
    return f"{percent(part)}: {size(event.memory_bytes)} of {size(event.memory_total_bytes)}"
