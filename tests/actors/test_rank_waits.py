"""RANKS-1: a rank is overdue when it has been missed for so long on end, and not before."""

from __future__ import annotations

import pytest

from outrider.actors.rank_waits import RankWaits


def test_a_rank_is_overdue_when_it_has_been_missed_on_end():
    waits = RankWaits(600.0)
    assert waits.wake_at() is None
    waits.missed([3], 100.0)
    waits.missed([0, 3], 400.0)
    assert (waits.overdue(699.0), waits.wake_at()) == ([], 700.0)
    assert (waits.overdue(700.0), waits.wake_at()) == ([3], 1000.0)


def test_one_that_was_there_meanwhile_is_waited_for_anew():
    waits = RankWaits(600.0)
    waits.missed([1], 0.0)
    waits.missed([], 500.0)
    assert waits.wake_at() is None
    waits.missed([1], 550.0)
    assert waits.overdue(600.0) == []
    assert waits.overdue(1150.0) == [1]


def test_who_misses_it_after_that_waits_as_long_again():
    waits = RankWaits(600.0)
    waits.missed([0], 0.0)
    assert waits.overdue(600.0) == [0]
    waits.missed([0], 600.0)
    assert waits.wake_at() == 1200.0


class CountsAnew(RankWaits):
    def missed(self, ranks, now):
        super().missed([], now)
        super().missed(ranks, now)


class ForgetsNobody(RankWaits):
    def missed(self, ranks, now):
        super().missed({*ranks, *self._due_at}, now)


@pytest.mark.parametrize("broken", [CountsAnew, ForgetsNobody])
def test_the_invariant_falls_without_its_guard(broken, monkeypatch):
    """RANKS-1"""
    monkeypatch.setitem(globals(), "RankWaits", broken)
    with pytest.raises(AssertionError):
        test_a_rank_is_overdue_when_it_has_been_missed_on_end()
        test_one_that_was_there_meanwhile_is_waited_for_anew()
