"""The used share of a run's nodes, as text, from the provider's accounting in the run's record. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...actors import events as ev
from ...lazy_named_tuple import NamedTuple
from ..api.quantities import percent, seconds, size
from .descriptions import pool_use

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
