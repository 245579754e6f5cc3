"""A run that does not end is broken off wherever it spins, and nothing else is said of it."""

from __future__ import annotations

import signal

import pytest

from outrider.actors.pool import PoolActor
from outrider.testing.simulator import campaign
from outrider.testing.simulator.campaign import Outcome, breaks, outcomes
from outrider.testing.simulator.draw import draw
from outrider.testing.simulator.fault_schedule import FaultSchedule
from outrider.testing.simulator.limit import cpu_limit
from outrider.testing.simulator.play import play
from outrider.testing.simulator.referee import Referee

ENOUGH_S = 0.1
Patch = pytest.MonkeyPatch


def spins(*_: object) -> None:
    """For ever, whatever is raised in it that is an error."""
    while True:
        try:
            while True:
                pass
        except Exception:  # noqa: BLE001
            continue


def outcome(seed: int) -> Outcome:
    (only,) = outcomes([seed])
    return only


@pytest.mark.parametrize(
    ("where", "what"),
    [
        pytest.param(PoolActor, "receive", id="an actor"),
        pytest.param(FaultSchedule, "_do", id="a callback"),
        pytest.param(Referee, "at_rest", id="the loop itself"),
    ],
)
def test_what_spins_waits_for_ever_and_breaks_no_other_promise(where: type, what: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(campaign, "ENOUGH_S", ENOUGH_S)
    monkeypatch.setattr(where, what, spins)
    broken = outcome(3).broken
    assert broken is not None
    assert (broken.rule, broken.story) == ("SIM-9", "it has not ended after 0.1 s of CPU time")


def test_what_is_tried_for_a_smaller_one_is_too(monkeypatch: Patch) -> None:
    monkeypatch.setattr(campaign, "TRIED_S", ENOUGH_S)
    monkeypatch.setattr(PoolActor, "receive", spins)
    assert breaks("SIM-9")(draw(3))
    assert not breaks("SIM-20")(draw(3))


def test_what_was_broken_off_and_begins_anew_is_broken_off_again() -> None:
    told: list[int] = []

    def again(times: int) -> None:
        try:
            spins()
        finally:
            if times:
                again(times - 1)

    with cpu_limit(ENOUGH_S, lambda: told.append(1)):
        again(1)
    assert told == [1, 1]


def test_a_run_that_ends_leaves_no_limit_behind() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    played = play(draw(3), enough_s=300.0)
    assert played.violation is None
    assert played.digest == play(draw(3)).digest
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) == before
