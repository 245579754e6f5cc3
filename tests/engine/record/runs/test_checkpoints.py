"""Checkpoints that were saved are found among the events of a record, whatever else stands there."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.runs.lines import SavedCheckpoint, saved_checkpoints

LINE: dict[str, Any] = {
    "event": "checkpoint_saved", "at": 7.5, "function": "train", "job": 1, "rank": 0, "node": 2, "generation": 1,
    "name": "run-7", "step": 100, "size_bytes": 4096,
}  # fmt: skip
SAVED = SavedCheckpoint(7.5, "run-7", 100, 4096, 1, 2, 0)


def lines(*said: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in said)


def test_they_are_found_among_other_events() -> None:
    other = {"event": "job_failed", "error": 'no "checkpoint_saved" is here'}
    content = lines({"event": "node_lost"}, LINE, other, {**LINE, "rank": None, "at": 8}) + lines(LINE)[:-1]
    assert list(saved_checkpoints(content)) == [SAVED, SAVED._replace(rank=None, at=8.0)]


@given(st.sampled_from([name for name in LINE if name not in ("function", "generation")]), st.data())
def test_a_line_that_was_changed_is_left_out(name: str, data: st.DataObject) -> None:
    wrong = data.draw(st.sampled_from([[], {}, True, "x" if name != "name" else 7, float("nan"), "checkpoint_saved"]))
    changed = {**LINE, name: wrong}
    if name not in ("event", "name") or wrong != "checkpoint_saved":
        assert list(saved_checkpoints(lines(changed, LINE, ["checkpoint_saved"]))) == [SAVED]


@given(st.data())
def test_a_line_that_is_cut_is_left_out(data: st.DataObject) -> None:
    line = lines(LINE)
    cut = line[: data.draw(st.integers(0, len(line) - 2))] + b"\n"
    assert list(saved_checkpoints(cut + line)) == [SAVED]
