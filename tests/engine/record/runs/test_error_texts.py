"""What a record says of the error that a run ended with."""

from __future__ import annotations

import pytest

from outrider.engine.api.errors import BroadcastFailed, Outcome, RemoteTraceback
from outrider.engine.record.runs.description import ERROR_CHARS, error_texts


@pytest.fixture
def failed() -> BroadcastFailed:
    """Rank 2 failed first; rank 0 lost it as its peer."""
    bad = ValueError("bad luck")
    bad.__cause__ = RemoteTraceback("raised in train", "Traceback there\nValueError: bad luck")
    outcomes = [Outcome(0, 5, ConnectionError("closed by peer")), Outcome(1, 6, None), Outcome(2, 7, bad)]
    return BroadcastFailed("train failed", [bad], outcomes, outcomes[2])


def test_the_rank_that_failed_first_has_its_own_traceback(failed: BroadcastFailed) -> None:
    said = error_texts(failed, str)
    assert said["type"] == "BroadcastFailed"
    assert said["first"] == {
        "rank": 2,
        "node": 7,
        "type": "ValueError",
        "message": "bad luck",
        "traceback": "Traceback there\nValueError: bad luck",
    }


def test_it_is_found_in_a_task_group_of_one(failed: BroadcastFailed) -> None:
    assert error_texts(ExceptionGroup("tasks", [failed]), str)["first"]["rank"] == 2
    assert "first" not in error_texts(ExceptionGroup("tasks", [failed, OSError()]), str)
    assert "first" not in error_texts(ValueError("alone"), str)


def test_secrets_are_cleaned_out_of_every_text(failed: BroadcastFailed) -> None:
    said = error_texts(failed, lambda text: text.replace("bad luck", "****"))
    assert "bad luck" not in str(said)
    assert "****" in said["first"]["message"]
    assert "****" in said["first"]["traceback"]


def test_an_error_that_cannot_be_printed_is_told_by_its_type() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    said = error_texts(Odd(), str)
    assert said["type"] == "Odd"
    assert said["message"] == ""


def test_a_long_traceback_keeps_its_end() -> None:
    said = error_texts(ValueError("x" * 2 * ERROR_CHARS + "end"), str)
    assert len(said["traceback"]) < ERROR_CHARS + 10
    assert said["traceback"].rstrip().endswith("xend")
