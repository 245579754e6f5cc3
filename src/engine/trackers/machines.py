"""The machines of a run, as trackers show them: their places, and their names at the provider. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...actors import events as ev
from ..runs.nodes import nodes_now

READY = ev.PoolReady.name
MOST = 20  # most values of one fact in a tag; a pool of 1,000 nodes has 1,000 instance ids, for example
MACHINES = "machines"  # name of the tag that has the machines' ids
_OF_PROCESSES = frozenset({"pid", "group", "directory"})  # facts of local nodes that mean nothing on another computer
_PLACES = frozenset(  # options of providers that decide where machines are launched
    {
        "account",
        "data_centers",
        "environments",
        "instance_types",
        "partition",
        "project",
        "qos",
        "region",
        "regions",
        "zones",
    }
)

Machine = Mapping[str, Any]


def machines_of(events: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Return the machines that exist after ``events`` of a run, sorted by node, as JSON values."""
    return [
        {
            "node": number,
            "machine": node.machine,
            "hostname": node.hostname,
            "rank": node.rank,
            "ready": node.ready,
            "facts": {name: value for name, value in node.facts.items() if name not in _OF_PROCESSES},
        }
        for number, node in sorted(nodes_now(events).nodes.items())
    ]


def placement_of(provider: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a provider that decide where its machines are. ``provider``: as in `run.json`."""
    return {name: value for name, value in provider.items() if name in _PLACES and value not in (None, [], "")}


def values_of(machines: Sequence[Machine]) -> dict[str, list[str]]:
    """Return fact -> its distinct values, in the order of the nodes. The key `MACHINES` has the machines' ids."""
    values: dict[str, dict[str, None]] = {MACHINES: {}}
    for machine in machines:
        if machine.get("machine"):
            values[MACHINES][machine["machine"]] = None
        for name, value in machine.get("facts", {}).items():
            values.setdefault(name, {})[value] = None
    return {name: list(distinct) for name, distinct in values.items() if distinct}


def joined(values: Sequence[str]) -> str:
    """Join values to the text of one tag."""
    more = len(values) - MOST
    return ", ".join(values[:MOST]) + (f" and {more} more" if more > 0 else "")
