"""Lines of `events.jsonl` are the events again that they were."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.actors import events as ev
from outrider.engine.record.runs.lines import event_in, event_line, events_in

EVENTS: list[ev.Event] = [
    ev.PoolStarting("p1", "local", 2, 2, at=1.0),
    ev.PoolClosed(at=1.0),
    ev.LaunchFailed("no capacity", 3, None, at=1.0),
    ev.LaunchFailed("no capacity", 3, 2.5, at=1.0),
    ev.NodeLaunching(3, "i-1", 0.5, {"zone": "a"}, at=1.0),
    ev.NodeLost(3, "killed", noticed=True, at=1.0),
    ev.VersionsDiffer(1, (("torch", "2.1", "2.2"),), "a table", at=1.0),
    ev.TerminateFailed(("i-1", "i-2"), "no", at=1.0),
    ev.JobFailed(1, "f", "ValueError: bad luck", 0, (1, 2), at=1.0),
    ev.MapProgress(1, "f", 3, None, at=1.0),
    ev.TaskFinished(1, 2, 3, 1, "returned", 0.25, at=1.0),
    ev.GenerationStarted(1, 2, (0, 2), (0, 1), 0, 2400, at=1.0),
    ev.BroadcastFinished(1, 2, ("returned", "raised"), at=1.0),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda each: each.name)
def test_an_event_comes_back(event: ev.Event) -> None:
    line = event_line(event, 9.0, "", str)
    assert list(events_in(line)) == [event]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"event": "from_a_later_version", "at": 1.0},
        {"event": "node_lost", "at": 1.0},
        {"event": "node_lost", "at": 1.0, "node": "3"},
        {"event": "node_lost", "at": 1.0, "node": True},
        {"event": "node_lost", "at": "soon", "node": 3},
        {"event": "generation_started", "at": 1.0, "job": 1, "generation": 1, "nodes": ["a"], "ranks": []},
        {"event": "generation_started", "at": 1.0, "job": 1, "generation": 1, "nodes": 3, "ranks": []},
        {"event": "node_launching", "at": 1.0, "node": 1, "facts": []},
    ],
)
def test_what_is_no_event_is_left_out(said: dict[str, Any]) -> None:
    assert event_in(said) is None


def test_fields_that_are_not_known_here_are_left_out() -> None:
    assert event_in({"event": "pool_resized", "at": 1.0, "wanted": 3, "mood": "good"}) == ev.PoolResized(3, at=1.0)


def test_damaged_lines_are_skipped() -> None:
    good = json.dumps({"event": "pool_resized", "at": 1.0, "wanted": 3}).encode()
    assert list(events_in(b'{"event": "pool_re\n[]\n\xff\n' + good + b"\n" + good)) == [ev.PoolResized(3, at=1.0)]
