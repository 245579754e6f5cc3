"""WAIT-1: how long saves wait for copies of states, and what is told of it."""

from __future__ import annotations

import pytest

from outrider.engine.checkpoint.memory_saves import MEASURED_SAVES, WAIT_S, MemoryWaits


def waits(kind: type[MemoryWaits], takes_s: float) -> float:
    """Return how long a training has waited whose states, each of them, are copied after so many seconds."""
    waiting, now, waited_s = kind("run", 1), 0.0, 0.0
    for _ in range(100):
        began = now
        rest_s = waiting.rest_s(began, now)
        now += min(rest_s, takes_s)
        assert waiting.rest_s(began, now) <= max(0.0, rest_s - takes_s), "WAIT-1"
        if takes_s <= rest_s:
            waiting.waited(began, now)
        elif not waiting.is_abandoned:
            assert "within 30 s" in waiting.gave_up()
        waited_s += now - began
        now += 1.0
    return waited_s


def test_saves_wait_until_one_has_waited_for_too_long() -> None:
    assert waits(MemoryWaits, 0.5) == pytest.approx(50)
    assert waits(MemoryWaits, WAIT_S + 1) == pytest.approx(WAIT_S), "WAIT-1"


class WaitsAgain(MemoryWaits):
    def rest_s(self, began: float, now: float) -> float:
        return began + WAIT_S - now


def test_the_invariant_falls_without_its_guard() -> None:
    assert waits(WaitsAgain, WAIT_S + 1) > 2 * WAIT_S, "WAIT-1"


def told(step_s: float, wait_s: float, every: int = 1) -> list[str]:
    waiting, now, said = MemoryWaits("run", every), 0.0, list[str]()
    for _ in range(3 * MEASURED_SAVES):
        said.append(waiting.waited(now, now + wait_s))
        now += wait_s + step_s
    return [each for each in said if each]


def test_the_user_is_told_once_that_copies_make_the_training_slower() -> None:
    assert not told(1.0, 0.0)
    assert not told(1.0, 0.1)
    (said,) = told(1.0, 0.5)
    assert "waited for 25.0 of the last 74.0 s" in said
    assert "as every=1 demands. With every=2 it would hardly wait" in said
    (said,) = told(1.0, 2.1, every=10)
    assert "With every=32" in said
