"""The event loop of a pool without async: nothing but `stop` ends it, and an interrupt may come at any moment."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any

import pytest

from outrider import PoolClosed
from outrider.engine.client import loop_thread
from outrider.engine.client.loop_thread import LoopThread, interrupts_held

PATIENCE_S = 60.0


class Failed(BaseException):
    pass


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def loops() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "outrider-loop"]


async def raising(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def works() -> int:
    return threading.get_ident()


def check_goes_on(thread: LoopThread) -> None:
    assert thread.submit(works).result(PATIENCE_S) == thread.ident, "LOOP-1: the loop has ended"


def check_errors(thread: LoopThread) -> None:
    for error in (KeyError("x"), Failed(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()):
        raised = thread.submit(raising, error).exception(PATIENCE_S)
        assert raised is error, f"LOOP-1: {error!r}"
        check_goes_on(thread)


def test_error_of_a_call_settles_its_future_and_the_loop_goes_on(thread: LoopThread) -> None:
    """LOOP-1"""
    check_errors(thread)
    with pytest.raises(FutureCancelled):
        thread.submit(raising, asyncio.CancelledError()).result(PATIENCE_S)
    check_goes_on(thread)


async def schedule(call: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(call)
    await asyncio.sleep(0)


@pytest.mark.parametrize("exit_", [SystemExit, KeyboardInterrupt])
def test_callback_that_exits_is_logged_and_the_loop_goes_on(
    thread: LoopThread, exit_: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """LOOP-1"""

    def exits(*_: object) -> None:
        raise exit_

    thread.submit(schedule, exits).result(PATIENCE_S)
    check_goes_on(thread)
    goes_on = threading.Event()
    settled = thread.submit(asyncio.to_thread, goes_on.wait)
    settled.add_done_callback(exits)
    goes_on.set()
    assert settled.result(PATIENCE_S)
    check_goes_on(thread)
    assert caplog.text.count(f"{exit_.__name__} was raised in the thread of a pool's event loop, which goes on") == 2


def test_cancelled_future_cancels_its_task(thread: LoopThread) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    future = thread.submit(waits)
    assert begun.wait(PATIENCE_S)
    assert future.cancel()
    assert cancelled.wait(PATIENCE_S)


def test_task_has_the_context_of_its_submitter(thread: LoopThread) -> None:
    variable: ContextVar[int] = ContextVar("variable")
    variable.set(7)

    async def seen() -> int:
        return variable.get()

    assert thread.submit(seen).result(PATIENCE_S) == 7


@pytest.mark.parametrize("cancel", [False, True])
def test_stop_waits_for_tasks_and_cancels_them_where_asked(cancel: bool) -> None:
    thread, goes_on = LoopThread(), threading.Event()
    thread.start()

    async def waits() -> str:
        while not goes_on.is_set():
            await asyncio.sleep(0)
        return "done"

    future = thread.submit(waits)
    stopping = threading.Thread(target=thread.stop, kwargs={"cancel": cancel})
    stopping.start()
    if not cancel:
        goes_on.set()
        assert future.result(PATIENCE_S) == "done"
    else:
        with pytest.raises(FutureCancelled):
            future.result(PATIENCE_S)
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    with pytest.raises(PoolClosed):
        thread.submit(works)


def test_failed_import_is_raised_by_start() -> None:
    def imports() -> None:
        raise ImportError("half an installation")

    thread = LoopThread(imports)
    for _ in range(2):
        with pytest.raises(ImportError, match="half an installation"):
            thread.start()
    assert not thread.wait_ready()
    thread.stop()
    assert loops() == []


class WaitedFor(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_waited_for.set()
        return super().wait(timeout)


def check_stopped_before_it_runs(patience_s: float) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def imports() -> None:
        begun.set()
        goes_on.wait(PATIENCE_S)

    thread = LoopThread(imports)
    thread._over = over = WaitedFor()
    with ThreadPoolExecutor(2) as threads:
        threads.submit(thread.start)
        assert begun.wait(PATIENCE_S)
        stopping = threads.submit(thread.stop)
        assert over.is_waited_for.wait(PATIENCE_S)
        goes_on.set()
        try:
            assert wait([stopping], patience_s).done, "LOOP-2: its thread goes on"
        finally:
            assert thread.wait_ready()
            assert thread._loop is not None
            with suppress(RuntimeError):
                thread._loop.call_soon_threadsafe(thread._wake.set)


def test_stop_before_the_loop_runs_ends_the_thread() -> None:
    """LOOP-2"""
    check_stopped_before_it_runs(PATIENCE_S)
    assert loops() == []


async def settles_nothing_but_errors(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(await call())
    except Exception as error:  # noqa: BLE001
        future.set_exception(error)
    except BaseException:  # noqa: BLE001
        pass


async def serves_until_it_is_woken(self: LoopThread) -> None:
    self._wake, self._loop = asyncio.Event(), asyncio.get_running_loop()
    self._ready.set()
    await self._wake.wait()


def test_errors_of_calls_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, thread: LoopThread) -> None:
    """LOOP-1"""
    monkeypatch.setattr(loop_thread, "_settle", settles_nothing_but_errors)
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_S", 0.1)
    with pytest.raises(TimeoutError):
        check_errors(thread)


def test_early_stop_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOOP-2"""
    monkeypatch.setattr(LoopThread, "_serve", serves_until_it_is_woken)
    with pytest.raises(AssertionError, match="LOOP-2"):
        check_stopped_before_it_runs(0.1)


# --- interrupts -----------------------------------------------------------------------------------------------------


def test_interrupt_in_a_held_block_comes_at_its_end() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        signal.raise_signal(signal.SIGINT)
        steps.append("not interrupted")
    assert steps == ["not interrupted"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_interrupt_stays_ignored_in_a_held_block() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def interrupted_at(number: int, call: Callable[[], object]) -> bool:
    """Call, with a SIGINT at the ``number``-th step in the module; return whether it has as many steps."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != loop_thread.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == number:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return seen >= number


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_interrupt_at_any_step_leaves_a_thread_that_ends(verb: str) -> None:
    for number in itertools.count(1):
        thread = LoopThread()
        if verb == "stop":
            thread.start()
        more = interrupted_at(number, getattr(thread, verb))
        thread.stop()
        assert loops() == [], number
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, number
        if not more:
            break
    assert number > 30
