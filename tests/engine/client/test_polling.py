"""When the answer to a lone call is polled for, on a clock that the tests turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from outrider.engine.client.polling import EARNS, MOST_NEEDED, POLL_S, PROMPT_S, SLOW_COSTS, AnswerPolling

PROMPT, SLOW = POLL_S / 2, PROMPT_S * 20


class Loop:
    """What is to be called soon is called by `turn`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.soon.append((callback, args))

    def turn(self) -> bool:
        """Return whether anything was to be done."""
        due, self.soon = self.soon, []
        for callback, args in due:
            callback(*args)
        return bool(due)


class Calls:
    def __init__(self, real: asyncio.AbstractEventLoop) -> None:
        self._real, self.loop = real, Loop()
        self.unanswered = 1
        self.polling = AnswerPolling(cast("asyncio.AbstractEventLoop", self.loop), lambda: self.unanswered)

    def begin(self) -> tuple[asyncio.Future[str], Iterator[Any]]:
        answer = self._real.create_future()
        waiting = self.polling.wait(answer)
        assert next(waiting) is answer
        return answer, waiting

    def call(self, took_s: float) -> bool:
        """Make a call that takes so long; return whether its answer was polled for."""
        answer, waiting = self.begin()
        polled = bool(self.loop.soon)
        self.loop.now += took_s
        answer.set_result("value")
        with pytest.raises(StopIteration) as stop:
            next(waiting)
        assert stop.value.value == "value"
        self.loop.turn()
        assert not self.loop.soon, "it looks no more when the answer is there"
        return polled


@pytest.fixture
def calls() -> Iterator[Calls]:
    real = asyncio.new_event_loop()
    yield Calls(real)
    real.close()


def test_a_lone_call_is_polled_for_after_a_prompt_answer(calls: Calls) -> None:
    assert [calls.call(PROMPT) for _ in range(4)] == [False, True, True, True]


def test_calls_that_take_longer_are_never_polled_for(calls: Calls) -> None:
    assert not any(calls.call(SLOW) for _ in range(50))


def test_a_poll_ends_when_its_time_is_up(calls: Calls) -> None:
    calls.call(PROMPT)
    calls.begin()
    assert calls.loop.turn()
    calls.loop.now += POLL_S
    assert calls.loop.turn()
    assert not calls.loop.turn()


def test_a_poll_ends_with_another_job(calls: Calls) -> None:
    calls.call(PROMPT)
    calls.begin()
    assert calls.loop.turn()
    calls.unanswered = 2
    assert calls.loop.turn()
    assert not calls.loop.turn()


def test_a_call_beside_others_is_not_polled_for_and_says_nothing_about_lone_ones(calls: Calls) -> None:
    calls.call(PROMPT)
    calls.unanswered = 2
    assert not calls.call(SLOW)
    calls.unanswered = 1
    assert calls.call(PROMPT)


def fail(calls: Calls) -> int:
    """Return how many prompt answers it takes until a call is polled for, which then fails."""
    needed = 0
    while not calls.call(PROMPT):
        needed += 1
    assert calls.call(SLOW)
    return needed


def test_each_failed_poll_doubles_the_prompt_answers_that_the_next_one_takes(calls: Calls) -> None:
    assert [fail(calls) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, MOST_NEEDED, MOST_NEEDED]


def test_polls_that_succeed_in_a_row_earn_that_back(calls: Calls) -> None:
    for _ in range(10):
        fail(calls)
    succeeded = sum(calls.call(PROMPT) for _ in range(MOST_NEEDED + 3 * EARNS))
    assert succeeded == 3 * EARNS
    assert calls.call(SLOW), "it is polled for, and fails"
    assert fail(calls) == MOST_NEEDED // 2**3


def test_a_poll_that_fails_now_and_then_costs_the_next_call_alone(calls: Calls) -> None:
    calls.call(PROMPT)
    for _ in range(20):
        assert all(calls.call(PROMPT) for _ in range(EARNS))
        assert calls.call(SLOW)
        assert not calls.call(PROMPT)


def test_a_slow_answer_takes_prompt_ones_back(calls: Calls) -> None:
    for _ in range(10):
        fail(calls)
    assert not any(calls.call(PROMPT) for _ in range(MOST_NEEDED - 1))
    assert not calls.call(SLOW)
    assert [calls.call(PROMPT) for _ in range(SLOW_COSTS + 2)] == [False] * (SLOW_COSTS + 1) + [True]


def test_calls_that_are_prompt_and_slow_in_turn_are_soon_not_polled_for(calls: Calls) -> None:
    polled = [calls.call(each) for _ in range(20) for each in (PROMPT, SLOW)]
    assert sum(polled) == 1


def test_a_wait_that_is_cancelled_leaves_no_look_behind(calls: Calls) -> None:
    calls.call(PROMPT)
    answer, waiting = calls.begin()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        cast("Any", waiting).throw(asyncio.CancelledError())
    calls.loop.turn()
    assert not calls.loop.soon
