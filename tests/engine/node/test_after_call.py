"""AFTER-1: locals of a rank's function end after its answer, and a destructor that hangs ends with its process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial, wraps
from typing import Any

import pytest

from outrider.engine.node import after_call

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="with a tracer locals end with their function")


class Noted:
    def __init__(self, freed: list[str]) -> None:
        self._freed = freed

    def __del__(self) -> None:
        self._freed.append("freed")


def function(freed: list[str], value: object) -> object:
    noted = Noted(freed)
    assert noted
    if isinstance(value, Exception):
        raise value
    return value


@wraps(function)
def wrapped(*args: Any) -> object:
    return function(*args)


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    after_call.free()


@pytest.mark.parametrize("called", [function, wrapped])
def test_locals_of_a_rank_outlive_its_function_until_they_are_freed(called: Any) -> None:
    freed: list[str] = []
    assert after_call.keeping(called, partial(called, freed, 7)) == 7
    assert freed == [], "AFTER-1"
    assert sys.gettrace() is None
    after_call.free()
    assert freed == ["freed"]
    after_call.free()


def test_tracing_ends_where_the_function_is_not_among_the_first_calls() -> None:
    traced: list[bool] = []

    def other() -> None:
        traced.append(sys.gettrace() is not None)

    after_call.keeping(function, lambda: [other() for _ in range(after_call.FIRST_CALLS + 1)])
    assert traced[0]
    assert not traced[-1]


def test_the_answer_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """AFTER-1"""
    monkeypatch.setattr(after_call, "_kept", deque(maxlen=0))
    with pytest.raises(AssertionError, match="AFTER-1"):
        test_locals_of_a_rank_outlive_its_function_until_they_are_freed(function)


def test_locals_end_before_a_group_that_is_left_to_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_call, "_has_group", lambda: True)
    freed: list[str] = []
    after_call.keeping(function, partial(function, freed, 7))
    assert freed == ["freed"]


def test_errors_and_what_is_no_plain_function_pass_through() -> None:
    freed: list[str] = []
    with pytest.raises(LookupError):
        after_call.keeping(function, partial(function, freed, LookupError()))
    assert after_call._kept == [], "the error has the frames"
    assert after_call.keeping(len, partial(len, [1])) == 1
    assert after_call.keeping(None, lambda: 3) == 3

    async def later() -> int:
        return 4

    assert asyncio.run(after_call.keeping(later, later)) == 4
    assert sys.gettrace() is None


def test_a_function_that_calls_itself_keeps_its_outermost_locals() -> None:
    freed: list[str] = []

    def again(times: int) -> int:
        noted = Noted(freed)
        assert noted
        return times if not times else again(times - 1)

    assert after_call.keeping(again, partial(again, 3)) == 0
    assert freed == ["freed"] * 3
    after_call.free()
    assert freed == ["freed"] * 4


def test_a_timer_and_a_handler_of_the_task_survive() -> None:
    handler, mask = signal.signal(signal.SIGALRM, lambda *_: None), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        own = signal.getsignal(signal.SIGALRM)
        signal.setitimer(signal.ITIMER_REAL, 500.0)
        after_call.keeping(function, partial(function, [], 7))
        after_call.free()
        assert signal.getsignal(signal.SIGALRM) is own
        assert 0 < signal.setitimer(signal.ITIMER_REAL, 0.0)[0] <= 500
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)


def test_a_destructor_that_hangs_ends_with_its_process() -> None:
    """Though it holds the interpreter, and SIGALRM is blocked."""
    code = """
import ctypes, signal
from outrider.engine.node import after_call
after_call.FREE_S = 0.05
class Hangs:
    def __del__(self):
        ctypes.PyDLL(None).pause()
def function():
    hangs = Hangs()
    return 7
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
print(after_call.keeping(function, function), flush=True)
after_call.free()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, "7\n"), done.stderr


@pytest.mark.parametrize(
    ("status", "idle", "is_told"),
    [
        (signal.SIGALRM, True, True),
        (signal.SIGALRM, False, False),
        (signal.SIGKILL, True, False),
        (0, True, False),
        (-1, True, False),
    ],
)
def test_only_a_worker_that_is_killed_at_rest_is_told_of(status: int, idle: bool, is_told: bool) -> None:
    assert bool(after_call.story(status, idle=idle)) is is_told


def test_locals_are_not_freed_by_threads_of_the_function() -> None:
    freed: list[str] = []

    def starts() -> threading.Thread:
        thread = threading.Thread(target=function, args=(freed, os.getpid()))
        thread.start()
        return thread

    after_call.keeping(starts, starts).join(60)
    after_call.free()
    assert freed == ["freed"]
