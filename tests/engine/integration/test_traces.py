"""Calls as traces of OpenTelemetry: their spans, what is below them, and the context that their tasks go on with."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from outrider import BroadcastFailed, Local, Pool, SerializationError, SpecError, Worker, compute, instance_info

pytest.importorskip("opentelemetry.sdk")  # of the group dev, which CI installs
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

pytestmark = pytest.mark.anyio
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def _provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def _no_spans() -> Iterator[None]:
    EXPORTER.clear()
    yield
    EXPORTER.clear()


def pool(**options: Any) -> Pool:
    return Pool(**{"provider": Local(), "console": "silent", "traces": True} | options)


def spans(name: str) -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def span(name: str) -> ReadableSpan:
    (found,) = spans(name)
    return found


def below(parent: ReadableSpan) -> list[ReadableSpan]:
    own = parent.context
    found = [each for each in EXPORTER.get_finished_spans() if each.parent is not None and own is not None
             and each.parent.span_id == own.span_id]  # fmt: skip
    return sorted(found, key=lambda each: each.start_time or 0)


def facts(of: ReadableSpan) -> dict[str, Any]:
    return dict(of.attributes or {})


@compute
def context() -> tuple[str | None, str, int]:
    from opentelemetry import trace

    with trace.get_tracer("user").start_as_current_span("in the task") as span:
        pass
    return os.environ.get("TRACEPARENT"), format(trace.get_current_span().get_span_context().span_id, "016x"), (
        span.get_span_context().trace_id
    )  # fmt: skip


@compute
def fail(value: int) -> None:
    raise ValueError(f"bad {value}")


@compute
def rows(count: int) -> Iterator[str | None]:
    for _ in range(count):
        yield os.environ.get("TRACEPARENT")


@compute
def rank_of(fails: bool) -> int:
    if fails and instance_info().rank == 1:
        raise KeyError("x")
    return instance_info().rank


@compute
def die_once(path: str) -> str | None:
    if not os.path.exists(path):  # noqa: PTH110
        with open(path, "w"):  # noqa: PTH123
            pass
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)  # its machine
    return os.environ.get("TRACEPARENT")


async def test_a_call_is_a_span_below_the_callers_and_its_task_goes_on_with_it() -> None:
    async with pool() as opened:
        with trace.get_tracer("user").start_as_current_span("mine") as mine:
            variable, inside, trace_id = await opened.run(context())
        assert await opened.run(context.with_(name="again")())
        name = opened.snapshot().pool
    call = span("context")
    assert (call.kind, call.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert call.parent is not None
    assert call.parent.span_id == mine.get_span_context().span_id
    assert call.context is not None
    assert inside == format(call.context.span_id, "016x")
    assert str(variable).startswith(f"00-{call.context.trace_id:032x}-{inside}-")
    assert trace_id == call.context.trace_id
    queue, run = below(call)
    assert (queue.name, run.name) == ("queue", "run")
    assert (queue.end_time or 0) <= (run.start_time or 0) <= (run.end_time or 0)
    assert facts(run) == {"outrider.node": 0, "outrider.attempt": 1, "outrider.ending": "returned"}
    assert facts(call) == {"outrider.pool": name, "outrider.job": 1, "outrider.function": "context",
                           "outrider.ending": "returned", "outrider.node": 0}  # fmt: skip
    assert span("again").parent is None
    assert span("again").context != call.context


async def test_the_variable_of_a_task_is_not_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-outside")  # which local nodes inherit
    async with pool() as opened:
        first = await opened.run(context())
        second = await opened.run(context())
        with_stream = [row async for row in opened.stream(rows(2))]
    assert len({first[0], second[0], with_stream[0]}) == 3
    assert with_stream[0] == with_stream[1]
    assert "00-outside" not in {first[0], second[0]}


async def test_threads_of_a_worker_have_the_context_and_no_variable() -> None:
    async with pool(worker=Worker(2, kind="thread")) as opened:
        (variable, inside, _), _ = await opened.gather(context(), context())
    assert variable is None
    assert inside in {format(each.context.span_id, "016x") for each in spans("context") if each.context}


async def test_an_error_is_recorded_as_opentelemetry_has_it() -> None:
    async with pool() as opened:
        with pytest.raises(ValueError, match="bad 7"):
            await opened.run(fail(7))
    call = span("fail")
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "ValueError: bad 7")
    assert facts(call)["error.type"] == "ValueError"
    (exception,) = call.events
    said = dict(exception.attributes or {})
    assert (exception.name, said["exception.type"], said["exception.message"]) == ("exception", "ValueError", "bad 7")
    assert "in fail" in str(said["exception.stacktrace"])
    assert below(call)[1].status.status_code is StatusCode.ERROR


async def test_what_cannot_be_packed_or_is_not_taken_ends_its_span() -> None:
    async with pool() as opened:
        with pytest.raises(SerializationError):
            await opened.run(fail(__import__("threading").Lock()))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(opened.run(sleep(60)), 0.3)
    failed = span("fail")
    assert facts(failed)["error.type"] == "SerializationError"
    ended = span("sleep")
    assert facts(ended)["outrider.ending"] in {"cancelled", "killed"}
    assert ended.status.status_code is StatusCode.UNSET, "its caller gave it up"


class Raises(SpanProcessor):
    """A processor of the application's own with a mistake in it."""

    on = False

    def on_end(self, span: ReadableSpan) -> None:
        if self.on:
            raise RuntimeError("a mistake")


async def test_a_processor_that_raises_changes_no_result_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(Raises())
    monkeypatch.setattr(Raises, "on", True)
    async with pool() as opened:
        with pytest.raises(SerializationError):
            await opened.run(fail(__import__("threading").Lock()))
        assert await opened.broadcast(rank_of(fails=False)) == [0]


@compute
def sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


async def test_a_broadcast_has_a_span_for_each_rank() -> None:
    async with pool(nodes=2) as opened:
        assert await opened.broadcast(rank_of(False)) == [0, 1]
        with pytest.raises(BroadcastFailed):
            await opened.broadcast(rank_of(True))
    good, bad = sorted(spans("rank_of"), key=lambda each: each.start_time or 0)
    assert sorted(each.name for each in below(good)) == ["queue", "rank 0", "rank 1"]
    assert sorted(facts(each)["outrider.node"] for each in below(good) if each.name != "queue") == [0, 1]
    assert [each.name for each in good.events] == ["outrider.generation_started"]
    assert bad.status.description == "KeyError: 'x'"
    failed = next(each for each in below(bad) if each.name == "rank 1")
    assert (facts(failed)["error.type"], failed.status.status_code) == ("KeyError", StatusCode.ERROR)


async def test_a_loss_is_an_event_and_the_next_attempt_has_the_same_context(tmp_path: Any) -> None:
    async with pool(nodes=2) as opened:
        variable = await opened.run(die_once(str(tmp_path / "died")))
    call = span("die_once")
    assert call.context is not None
    assert variable is not None
    assert format(call.context.span_id, "016x") in variable
    (retried,) = call.events
    assert retried.name == "outrider.task_retried"
    assert [each.name for each in below(call)] == ["queue", "run", "queue", "run"]
    assert [facts(each).get("outrider.ending") for each in below(call)][1::2] == ["lost", "returned"]


async def test_generations_and_losses_are_events_of_a_broadcast(tmp_path: Any) -> None:
    async with pool(nodes=2, on_loss="restart") as opened:
        await opened.broadcast(die_as_rank_1(str(tmp_path / "died")))
    call = span("die_as_rank_1")
    names = [each.name.removeprefix("outrider.generation_") for each in call.events]
    assert names == ["started", "lost", "started"]
    assert facts(call)["outrider.ending"] == "returned"
    ranks = [(each.name, facts(each)["outrider.generation"]) for each in below(call) if each.name.startswith("rank")]
    assert sorted(ranks) == [("rank 0", 1), ("rank 0", 2), ("rank 1", 1), ("rank 1", 2)]


@compute
def die_as_rank_1(path: str) -> None:
    info = instance_info()
    if info.rank == 1 and info.generation == 1:
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
    elif info.generation == 1:
        sleep.local(60)


async def test_opening_a_pool_is_a_span_with_one_for_each_launch() -> None:
    with trace.get_tracer("user").start_as_current_span("mine") as mine:
        async with pool(nodes=2, name="opened"):
            pass
    opening = span("open opened")
    assert opening.parent is not None
    assert opening.parent.span_id == mine.get_span_context().span_id
    assert sorted(each.name for each in below(opening)) == ["launch node 0", "launch node 1"]


def test_without_async_the_callers_span_is_the_parent_too() -> None:
    with pool(nodes=1) as opened, trace.get_tracer("user").start_as_current_span("mine") as mine:
        opened.run(rank_of(False))
        assert list(opened.map(rank_of, [False] * 3)) == [0] * 3
        assert list(opened.as_completed(rank_of([]) for _ in range(3))) == [0] * 3  # type: ignore[arg-type]
        assert list(opened.map(rank_of, (bytearray(number) for number in (0, 100_000)))) == [0] * 2
    parents = {each.parent.span_id for each in spans("rank_of") if each.parent}
    assert parents == {mine.get_span_context().span_id}


async def test_calls_that_are_packed_together_have_spans_of_their_own() -> None:
    async with pool() as opened:
        await opened.submit_group(rank_of(False) & context())
    for name in ("rank_of", "context"):
        assert facts(span(name))["outrider.function"] == name


async def test_without_traces_there_are_none() -> None:
    async with pool(traces=False) as opened:
        variable, inside, _ = await opened.run(context())
    assert (variable, inside) == (None, "0" * 16)
    assert EXPORTER.get_finished_spans() == ()


def test_what_traces_takes() -> None:
    with pytest.raises(SpecError, match="traces takes True or False"):
        Pool(traces="yes")  # type: ignore[arg-type]
