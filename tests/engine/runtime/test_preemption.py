"""Callbacks of a task whose machine will be taken: once per notice, in time, whatever they do."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outrider import Preemption, instance_info, on_preemption, preemption, should_stop, wait_preemption
from outrider.engine.node import context
from outrider.engine.node.notice_page import NoticePage, PageText, PostedNotice, World
from outrider.engine.runtime import preemption as module

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
INFO = {
    "pool": "p", "node": 1, "total_nodes": 4, "worker": 0, "workers_per_node": 1, "accelerators": 0,
    "total_accelerators": 0, "accelerator": None, "peers": [], "rank": 1, "world_size": 4, "local_rank": 0,
    "local_world_size": 1, "is_head": False, "head_addr": "", "head_port": 0, "generation": 2, "hostname": "h",
    "job": 7, "attempt": 1,
}  # fmt: skip


class Node:
    """What home would write, and a task in this process."""

    def __init__(self) -> None:
        self.page = NoticePage()
        self.numbers = itertools.count(1)
        context.set_notice_page(self.page)
        self.begin()

    def begin(self) -> None:
        self.task = context.TaskContext(next(self.numbers), 7, 1, dict(INFO))
        context.enter(self.task, alone=True)

    def end(self) -> None:
        self.task.close(failed=False)
        context.leave()

    def notice(self, seconds: float | None = 600.0, *, source: str = "file", number: int | None = None) -> None:
        own = None
        if seconds is not None:
            number = next(self.numbers) if number is None else number
            own = PostedNotice(number, source, seconds, time.monotonic() + seconds)
        self.page.post(self.page.read()._replace(own=own))

    def peers(self, node: int, *, generation: int = 2) -> None:
        notice = PostedNotice(next(self.numbers), "gcp", 600.0, time.monotonic() + 600.0, node)
        self.page.post(self.page.read()._replace(worlds={7: World(generation, notice, None)}))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(module, "POLL_S", 0.002)
    node = Node()
    yield node
    node.end()
    until(lambda: module._poller._thread is None)
    assert module._poller._handlers == []
    context._process.page = None
    node.page.close()


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)
    return result


def looked_at_twice() -> None:
    """The watching thread has seen what is on the page now."""
    for _ in range(2):
        module._poller._changed.set()
        until(lambda: not module._poller._changed.is_set())


def test_a_callback_runs_once_per_notice_in_a_thread_of_the_task(node: Node) -> None:
    calls: list[tuple[Preemption, threading.Thread, int]] = []

    @on_preemption
    def save(notice: Preemption) -> None:
        calls.append((notice, threading.current_thread(), instance_info().rank))

    looked_at_twice()
    assert calls == []
    node.notice(30.0, number=5)
    until(lambda: calls)
    node.notice(20.0, number=5)  # its time has changed: the same notice
    looked_at_twice()
    ((notice, thread, rank),) = calls
    assert (notice.source, notice.node, rank) == ("file", 1, 1)
    assert thread is not threading.main_thread()
    node.notice(None)
    looked_at_twice()
    assert preemption() is None
    node.notice(9.0)
    until(lambda: len(calls) == 2)


def test_a_notice_that_was_there_before_is_told_at_once(node: Node) -> None:
    node.notice()
    called = threading.Event()
    on_preemption(lambda notice: called.set())
    assert called.wait(PATIENCE_S)


def test_the_budget_is_the_notice_less_a_margin(node: Node) -> None:
    for seconds, margin, budget in ((100.0, None, 95.0), (10.0, None, 8.0), (100.0, 40.0, 60.0), (3.0, 9.0, 0.0)):
        seen: list[float] = []
        noticed_at = time.monotonic()
        node.notice(seconds)
        with on_preemption(lambda notice, seen=seen: seen.append(notice.budget_s), margin=margin):
            until(lambda seen=seen: seen)
        assert budget - (time.monotonic() - noticed_at) <= seen[0] <= budget


def test_what_a_callback_raises_is_printed_and_the_others_run(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    called = threading.Event()

    def broken(notice: Preemption) -> None:
        raise LookupError("no bucket")

    node.notice()
    with on_preemption(broken), on_preemption(lambda notice: called.set()):
        assert called.wait(PATIENCE_S)
    shown = capsys.readouterr().err
    assert "on_preemption callback test_what_a_callback" in shown
    assert "broken has failed; the task goes on" in shown
    assert "LookupError: no bucket" in shown


def test_leaving_the_context_waits_for_what_runs_and_then_nothing_is_called(node: Node) -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    calls = itertools.count()

    def slow(notice: Preemption) -> None:
        next(calls)
        began.set()
        may_end.wait(PATIENCE_S)
        ended.set()

    with on_preemption(slow):
        node.notice()
        assert began.wait(PATIENCE_S)
        threading.Timer(0.05, may_end.set).start()
    assert ended.is_set()
    node.notice()
    with on_preemption(lambda notice: None):
        looked_at_twice()
    assert next(calls) == 1


def test_a_callback_over_its_budget_is_not_waited_for(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    may_end = threading.Event()

    def endless(notice: Preemption) -> None:
        may_end.wait(PATIENCE_S)

    node.notice(0.05)
    with on_preemption(endless):
        until(lambda: "has used up its time" in capsys.readouterr().err)
    may_end.set()


def test_the_end_of_a_task_waits_for_its_callbacks_and_forgets_them(node: Node) -> None:
    began, ended = threading.Event(), threading.Event()
    calls = itertools.count()

    def save(notice: Preemption) -> None:
        next(calls)
        began.set()
        time.sleep(0.05)
        ended.set()

    on_preemption(save)
    on_preemption(save).cancel()
    node.notice()
    assert began.wait(PATIENCE_S)
    node.end()
    assert ended.is_set()
    node.begin()  # the worker's next task
    node.notice()
    with on_preemption(lambda notice: None):
        looked_at_twice()
    assert next(calls) == 1


def test_a_decorated_function_can_still_be_called(node: Node) -> None:
    @on_preemption(margin=2.0)
    def save(notice: Preemption | None = None) -> str:
        """Saves."""
        return "saved"

    assert save() == "saved"
    assert (save.__name__, save.__doc__) == ("save", "Saves.")


def test_a_peers_notice_is_told_to_those_that_ask_for_it(node: Node) -> None:
    own: list[Preemption] = []
    every: list[Preemption] = []
    on_preemption(own.append)
    on_preemption(every.append, everywhere=True)
    node.peers(3)
    until(lambda: every)
    node.peers(1)  # ours, as the client sees it: not another notice
    node.peers(3, generation=1)  # an older generation's
    looked_at_twice()
    node.notice()
    until(lambda: own and len(every) == 2)
    assert [(notice.source, notice.node) for notice in every] == [("gcp", 3), ("file", 1)]
    assert [(notice.source, notice.node) for notice in own] == [("file", 1)]


def test_a_forked_child_runs_none_of_its_parents_callbacks(node: Node) -> None:
    calls: list[Preemption] = []
    on_preemption(calls.append)
    pid = os.fork()
    if pid == 0:
        try:
            called = threading.Event()
            on_preemption(lambda notice: called.set())
            node.notice()
            os._exit(called.wait(PATIENCE_S) + 10 * len(calls))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    until(lambda: len(calls) == 1)


# --- async -----------------------------------------------------------------------------------------------------------


async def test_an_async_callback_runs_on_the_loop_it_was_registered_on(node: Node) -> None:
    called: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def save(notice: Preemption) -> None:
        await asyncio.sleep(0)
        called.set_result(asyncio.get_running_loop() is called.get_loop())

    async with on_preemption(save):
        node.notice()
        assert await asyncio.wait_for(called, PATIENCE_S)


async def test_leaving_waits_without_holding_the_loop_up(node: Node) -> None:
    began, may_end, done = asyncio.Event(), asyncio.Event(), []

    async def save(notice: Preemption) -> None:
        began.set()
        await may_end.wait()
        done.append(notice)

    async with on_preemption(save):
        node.notice()
        await asyncio.wait_for(began.wait(), PATIENCE_S)
        asyncio.get_running_loop().call_later(0.02, may_end.set)
    assert len(done) == 1


async def test_an_async_callback_is_cancelled_when_its_budget_is_over(node: Node, capsys: Any) -> None:
    cancelled = asyncio.Event()

    async def endless(notice: Preemption) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    node.notice(0.05)
    async with on_preemption(endless):
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
    until(lambda: "has failed; the task goes on" in capsys.readouterr().err)


async def test_a_notice_can_be_waited_for(node: Node) -> None:
    waiting = asyncio.ensure_future(wait_preemption())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    node.notice(source="aws")
    assert (await asyncio.wait_for(waiting, PATIENCE_S)).source == "aws"
    cancelled = asyncio.ensure_future(wait_preemption())
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)


def test_an_async_callback_needs_a_loop(node: Node) -> None:
    async def save(notice: Preemption) -> None: ...

    with pytest.raises(RuntimeError, match="save is async: register it where the loop runs"):
        on_preemption(save)


async def test_a_callback_whose_loop_has_ended_does_no_harm(node: Node) -> None:
    async def save(notice: Preemption) -> None: ...

    async def register() -> Any:
        return on_preemption(save)

    registered = await asyncio.to_thread(asyncio.run, register())
    node.notice()
    looked_at_twice()
    registered.wait()


# --- outside a pool --------------------------------------------------------------------------------------------------


async def test_outside_a_pool_there_is_never_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_NOTICE_PAGE", raising=False)
    assert preemption() is None
    assert preemption(everywhere=True) is None
    assert should_stop() is False
    assert should_stop(everywhere=True) is False
    until(lambda: module._poller._thread is None)  # of an earlier test
    with on_preemption(lambda notice: None):
        async with on_preemption(lambda notice: None):
            assert module._poller._thread is None


def test_a_node_that_has_ended_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_NOTICE_PAGE", "/proc/999999999/fd/3")
    assert preemption() is None
    assert "OUTRIDER_NOTICE_PAGE" not in os.environ


def test_asking_is_cheap(node: Node) -> None:
    """10 us of a processor's time and not 1: a shared machine must not make this fail."""
    count = 2000
    times = []
    for _ in range(5):
        began = time.thread_time()
        for _ in range(count):
            should_stop()
        times.append((time.thread_time() - began) / count)
    assert min(times) < 10e-6


def test_words_are_what_home_posts(node: Node) -> None:
    node.page.post(PageText(PostedNotice(1, "x", 1.0, time.monotonic() - 5)))
    notice = preemption()
    assert notice is not None
    assert (notice.seconds_left, notice.budget_s) == (0.0, 0.0)
