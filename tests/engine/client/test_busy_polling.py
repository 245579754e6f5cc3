"""When the answer to a lone call is polled for, on a clock that the tests turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from outrider.engine.client.jobs import GAIN, POLL_S, SHORT_S, TRIAL, TRIALS, AnswerPolling

PROMPT, SLOW = POLL_S / 2, SHORT_S * 20


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
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.polling = AnswerPolling(loop, lambda: self.unanswered, self.loop.time)

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


def trial(calls: Calls, took_s: float) -> bool:
    """Make one trial's calls, which are all waited for in one way; return whether by polling."""
    (polled,) = {calls.call(took_s) for _ in range(TRIAL)}
    return polled


def play(calls: Calls, *, plain_s: float, polled_s: float, trials: int) -> list[bool]:
    """Make calls that take ``plain_s``, or where they are polled for ``polled_s``; return which trials were polled."""
    return [trial(calls, polled_s if calls.polling._polls else plain_s) for _ in range(trials)]


def test_calls_that_polling_shortens_are_polled_for_but_for_a_trial_now_and_then(calls: Calls) -> None:
    polled = play(calls, plain_s=PROMPT, polled_s=0.8 * GAIN * PROMPT, trials=3 * TRIALS)
    assert polled == [number % TRIALS != 0 for number in range(3 * TRIALS)]


def test_calls_that_polling_does_not_shorten_are_polled_for_in_a_trial_now_and_then(calls: Calls) -> None:
    polled = play(calls, plain_s=PROMPT, polled_s=PROMPT, trials=3 * TRIALS)
    assert polled == [number == 1 or (number > 0 and number % TRIALS == 0) for number in range(3 * TRIALS)]


def test_calls_that_take_longer_are_never_polled_for(calls: Calls) -> None:
    assert not any(play(calls, plain_s=SLOW, polled_s=PROMPT, trials=3 * TRIALS))


def test_calls_that_become_slow_are_polled_for_to_the_end_of_a_trial(calls: Calls) -> None:
    play(calls, plain_s=PROMPT, polled_s=PROMPT / 2, trials=2)
    assert trial(calls, SLOW)
    assert not any(play(calls, plain_s=SLOW, polled_s=PROMPT, trials=2 * TRIALS))


def test_a_few_slow_answers_say_nothing(calls: Calls) -> None:
    play(calls, plain_s=PROMPT, polled_s=PROMPT / 2, trials=2)
    for number in range(TRIAL):
        assert calls.call(SLOW if number % 3 == 0 else PROMPT / 2)
    assert trial(calls, PROMPT / 2)


def until_polled(calls: Calls) -> None:
    """From here calls are polled for."""
    play(calls, plain_s=PROMPT, polled_s=PROMPT / 2, trials=2)


def test_a_poll_ends_when_its_time_is_up(calls: Calls) -> None:
    until_polled(calls)
    calls.begin()
    assert calls.loop.turn()
    calls.loop.now += POLL_S
    assert calls.loop.turn()
    assert not calls.loop.turn()


def test_a_poll_ends_with_another_job(calls: Calls) -> None:
    until_polled(calls)
    calls.begin()
    assert calls.loop.turn()
    calls.unanswered = 2
    assert calls.loop.turn()
    assert not calls.loop.turn()


def test_a_call_beside_others_is_not_polled_for_and_says_nothing_about_lone_ones(calls: Calls) -> None:
    until_polled(calls)
    calls.unanswered = 2
    assert not any(calls.call(SLOW) for _ in range(TRIAL))
    calls.unanswered = 1
    assert calls.call(PROMPT / 2)


def test_a_wait_that_is_cancelled_leaves_no_look_behind(calls: Calls) -> None:
    until_polled(calls)
    answer, waiting = calls.begin()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        cast("Any", waiting).throw(asyncio.CancelledError())
    calls.loop.turn()
    assert not calls.loop.soon
