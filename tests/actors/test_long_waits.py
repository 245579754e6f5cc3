"""What broadcasts wait for, and when people read of it."""

from __future__ import annotations

import pytest

from outrider.actors.broadcasts import LONG_S, LongWaits
from outrider.actors.interfaces import JobId

JOB = JobId(1)


def reported(waits: LongWaits, until: float) -> list[float]:
    """Return when a wait of `JOB` is reported, which is looked at whenever it is due."""
    times = list[float]()
    while (now := waits.wake_at()) is not None and now <= until:
        for job in waits.due(now):
            if waits.report(job, "ports", now) is not None:
                times.append(now)
    return times


def check_reports() -> None:
    waits = LongWaits()
    waits.see(JOB, "ports", 0.0)
    waits.see(JOB, "ports", 5.0)
    assert reported(waits, 100.0) == [10.0, 20.0, 40.0, 80.0], "WAITS-2"
    ended = waits.see(JOB, None, 101.0)
    assert ended is not None, "WAITS-2"
    assert (ended.text, ended.since) == ("ports", 0.0)


def check_due() -> None:
    waits = LongWaits()
    waits.see(JOB, "ports", 0.0)
    waits.see(JobId(2), "ports", 3.0)
    assert waits.due(LONG_S - 0.1) == []
    assert waits.due(LONG_S) == [JOB], "WAITS-1"
    assert waits.due(LONG_S + 3.0) == [JobId(2)], "WAITS-1"
    assert waits.due(2 * LONG_S) == [JOB], "WAITS-1"


def test_long_wait_is_reported_when_it_has_doubled_and_at_its_end() -> None:
    check_reports()


def test_long_wait_is_due_every_ten_seconds() -> None:
    check_due()


def test_another_wait_begins_anew() -> None:
    waits = LongWaits()
    waits.see(JOB, "seats", 0.0)
    assert waits.see(JOB, "ports", 9.0) is None
    assert waits.wake_at() == 9.0 + LONG_S
    assert waits.see(JOB, None, 12.0) is None
    assert waits.wake_at() is None


def _reports_every_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongWaits, "report", lambda self, job, text, now: now - self.waits[job].since)


def _is_due_once(patch: pytest.MonkeyPatch) -> None:
    due = LongWaits.due

    def once(self: LongWaits, now: float) -> list[JobId]:
        jobs = due(self, now)
        for job in jobs:
            self.waits[job].due_at = float("inf")
        return jobs

    patch.setattr(LongWaits, "due", once)


@pytest.mark.parametrize(("number", "without"), [("WAITS-1", _is_due_once), ("WAITS-2", _reports_every_time)])
def test_an_invariant_falls_without_its_guard(number: str, without: object, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError, match=number):
        check_due() if number == "WAITS-1" else check_reports()
