"""Whatever a file of lines is cut off at, all whole lines of it are read."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.actors import events as ev
from outrider.engine.api.quantities import time_text
from outrider.engine.record.runs.lines import (
    dropped_line,
    event_line,
    log_line,
    parsed_events,
    parsed_log,
    unix_time,
    whole_lines,
)

TEXTS = st.text(max_size=20)
EVENTS = st.one_of(
    st.builds(ev.NodeLost, st.integers(0, 9), TEXTS, st.booleans()),
    st.builds(ev.NodeLaunching, st.integers(0, 9), TEXTS, st.floats(), st.dictionaries(TEXTS, TEXTS, max_size=2)),
    st.builds(ev.TerminateFailed, st.lists(TEXTS, max_size=3).map(tuple), TEXTS),
    st.builds(ev.VersionsDiffer, st.just(1), st.just((("numpy", "1", "2"),)), TEXTS),
)


@given(st.integers(0, 4_000_000_000_000))
def test_times_are_read_as_they_are_written(at_ms: int) -> None:
    assert unix_time(time_text(at_ms / 1000)) == pytest.approx(at_ms / 1000, abs=0.0011)
    assert unix_time("yesterday") is None


@given(st.lists(EVENTS, max_size=6), st.data())
def test_events_cut_at_any_byte_give_all_whole_lines(events: list[ev.Event], data: st.DataObject) -> None:
    lines = [event_line(event, float(at), "", str) for at, event in enumerate(events, 1)]
    content = b"".join(lines)
    cut = content[: data.draw(st.integers(0, len(content)))]
    whole = sum(len(b"".join(lines[: n + 1])) <= len(cut) for n in range(len(lines)))
    read = list(parsed_events(cut))
    assert [each["at"] for each in read] == list(range(1, whole + 1))
    assert [each["event"] for each in read] == [event.name for event in events[:whole]]


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=6), st.data())
def test_logs_cut_at_any_byte_give_all_whole_lines(texts: list[str], data: st.DataObject) -> None:
    lines = [log_line(float(at), "stdout", text) for at, text in enumerate(texts)]
    content = b"".join(lines)
    cut = content[: data.draw(st.integers(0, len(content)))]
    whole = sum(len(b"".join(lines[: n + 1])) <= len(cut) for n in range(len(lines)))
    read = [parsed_log(line) for line in whole_lines(cut)]
    assert [each and each.text for each in read] == texts[:whole]


def test_lines_that_are_no_json_are_passed_over() -> None:
    content = dropped_line(3, 1.0) + b'{"event":"node_l\n\0\0\0\n7\n' + dropped_line(4, 2.0)
    assert [each["count"] for each in parsed_events(content)] == [3, 4]
    assert parsed_log(b"garbage") is None


def test_json_is_strict_whatever_an_event_has() -> None:
    line = event_line(ev.NodeReady(1, 2, 3, 4, took_s=math.inf), 5.0, "", str)
    assert json.loads(line, parse_constant=lambda name: 1 / 0)["took_s"] == "inf"
    assert line.isascii()


def test_an_event_says_what_it_is_when_it_was_and_of_which_function() -> None:
    assert list(parsed_events(event_line(ev.TaskSubmitted(1, 2), 5.0, "train", str))) == [
        {"event": "task_submitted", "at": 5.0, "job": 1, "task": 2, "function": "train"}
    ]
    assert next(parsed_events(event_line(ev.TaskSubmitted(1, 2, "f", at=4.0), 5.0, "", str)))["function"] == "f"
    hidden = event_line(ev.NodeLost(1, "no login for hunter2"), 5.0, "", lambda text: text.replace("hunter2", "****"))
    assert next(parsed_events(hidden))["cause"] == "no login for ****"


def test_times_of_logs_sort_as_texts() -> None:
    assert time_text(0.0) == "1970-01-01T00:00:00.000Z"
    assert time_text(1.9996) == "1970-01-01T00:00:01.999Z"
    assert parsed_log(log_line(1.5, "stderr", "a b ")[:-1]) == ("1970-01-01T00:00:01.500Z", "stderr", "a b ")
