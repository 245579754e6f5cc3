"""A record has room for so many events; of those that are left out the number is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.actors import events as ev
from outrider.engine.record.runs import writer
from outrider.engine.record.runs.lines import parsed_events
from outrider.engine.record.runs.logged import EventsLimit
from outrider.engine.record.runs.nodes import nodes_now
from outrider.engine.record.runs.writer import Plan, RunEnd, RunWriter

MOST = 100
NEEDED, OTHER = ev.NodeLost(1, "x"), ev.ProviderWarned("x")
LINES = st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=12)


def check(kind: type[EventsLimit], lines: list[tuple[int, bool]]) -> None:
    limit, size, taken = kind(MOST), 0, 0
    for length, needed in lines:
        fits = size + length <= (2 * MOST if needed else MOST)
        took = limit.takes(b"x" * length, NEEDED if needed else OTHER)
        assert took == fits, "EVENTS-1"
        size += length * took
        taken += took
    assert limit.left_out == len(lines) - taken, "EVENTS-2"


@given(LINES)
def test_lines_have_their_limit_and_what_is_needed_has_another(lines: list[tuple[int, bool]]) -> None:
    check(EventsLimit, lines)


class Greedy(EventsLimit):
    def takes(self, line: bytes, event: ev.Event | None = None) -> bool:
        return super().takes(line, NEEDED)


class Uncounted(EventsLimit):
    def takes(self, line: bytes, event: ev.Event | None = None) -> bool:
        taken = super().takes(line, event)
        self.left_out = 0
        return taken


@pytest.mark.parametrize(("broken", "rule"), [(Greedy, "EVENTS-1"), (Uncounted, "EVENTS-2")])
def test_it_falls_without_its_guard(broken: type[EventsLimit], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check(broken, [(60, False)] * 3)


def test_a_record_says_that_events_are_left_out_and_still_knows_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "EventsLimit", lambda: EventsLimit(2000))
    run = RunWriter(Plan(name="train", folder=tmp_path / "runs"))
    run.start()
    run.put(ev.NodeLaunching(0, "machine-0"), 1.0)
    for number in range(100):
        run.put(ev.ProviderWarned(f"warning {number}"), 2.0)
    run.put(ev.NodeLost(0, "gone"), 3.0)
    run.put(ev.NodeLaunching(1, "machine-1"), 4.0)
    run.close(RunEnd(None), 60.0)
    assert run.directory is not None
    content = (run.directory / "events.jsonl").read_bytes()
    events = list(parsed_events(content))
    warned = sum(event["event"] == "provider_warned" for event in events)
    told = [event["count"] for event in events if event["event"] == "events_left_out"]
    assert 0 < warned < 40
    assert told[-1] == 100 - warned
    assert len(told) <= 2
    assert len(content) < 2000 + 1000
    assert list(nodes_now(json.loads(line) for line in content.splitlines()).nodes) == [1]
