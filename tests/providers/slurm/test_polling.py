"""How often Slurm is asked about jobs that wait in the queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.slurm import fleet

CALM = st.floats(60.0, 1e6)


def holds(calm_s: float, longer_s: float, lease_s: float) -> None:
    pause_s = fleet.queue_pause_s(calm_s, lease_s=lease_s, least_s=5.0)
    later_s = fleet.queue_pause_s(calm_s + longer_s, lease_s=lease_s, least_s=5.0)
    assert 5.0 <= pause_s <= later_s <= 60.0, "POLL-1"
    assert later_s < (lease_s + fleet.FIRST_LEASE_S) / 2, "POLL-1"


@given(CALM, st.floats(0.0, 1e6), st.floats(1.0, 3600.0))
def test_the_pause_grows_and_a_start_is_heard_of_in_time(calm_s: float, longer_s: float, lease_s: float) -> None:
    """POLL-1."""
    holds(calm_s, longer_s, lease_s)


@pytest.mark.parametrize(("name", "value"), [("MOST_S", 600.0), ("SHARE", -20.0)])
def test_the_rule_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    """POLL-1."""
    monkeypatch.setattr(fleet, name, value)
    with pytest.raises(AssertionError):
        holds(20_000.0, 10_000.0, 3600.0)
        assert fleet.queue_pause_s(1200.0, lease_s=120.0, least_s=5.0) >= 30.0


def test_a_job_that_waits_for_twenty_minutes_is_asked_for_once_a_minute_at_most() -> None:
    assert [fleet.queue_pause_s(calm, lease_s=300.0, least_s=5.0) for calm in (60, 600, 1200, 90_000)] == [
        5,
        30,
        60,
        60,
    ]
