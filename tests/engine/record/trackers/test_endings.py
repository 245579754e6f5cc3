"""How runs end in the words of trackers, and how long is waited after a failure."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.engine.record.runs.reader import Owned
from outrider.engine.record.trackers.feed import MOST_S, OVER_MOST_S, REFUSED_S, RETRY_AFTER_MOST_S, Backoff, end_of


@pytest.mark.parametrize(
    ("status", "owner", "state"),
    [
        ({"state": "ended", "exit": 0}, "alive", "finished"),
        ({"state": "ended", "exit": 0, "error": "SystemExit"}, "dead", "finished"),
        ({"state": "ended", "exit": 1, "error": "ValueError"}, "dead", "failed"),
        ({"state": "ended", "exit": 137, "error": "BroadcastFailed"}, "dead", "failed"),
        ({"state": "ended", "exit": 130, "error": "KeyboardInterrupt"}, "dead", "killed"),
        ({"state": "ended", "exit": 143, "error": "SystemExit"}, "dead", "killed"),
        ({"state": "ended", "exit": 1, "error": "RunStopped"}, "dead", "killed"),
        ({"state": "running"}, "dead", "killed"),
        ({}, "dead", "killed"),
        ({"state": "running"}, "alive", None),
        ({"state": "running"}, "elsewhere", None),
        ({"state": "running"}, "unknown", None),
    ],
)
def test_how_a_run_has_ended(status: dict[str, Any], owner: Owned, state: str | None) -> None:
    end = end_of(status, owner)
    assert (None if end is None else end.state) == state


def test_pauses_double_up_to_a_minute() -> None:
    backoff = Backoff()
    pauses = [backoff.failed(1.0) for _ in range(2000)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == MOST_S
    backoff.taken()
    assert backoff.failed(0.0) == 0.25


def test_pauses_that_are_others() -> None:
    assert Backoff().failed(0.0, retry_after_s=7.0) == 7.0
    assert Backoff().failed(0.0, retry_after_s=1e9) == RETRY_AFTER_MOST_S
    assert Backoff().failed(0.0, refused=True) == REFUSED_S
    backoff = Backoff()
    backoff.tries = 9
    assert backoff.failed(1.0, over=True) == OVER_MOST_S
