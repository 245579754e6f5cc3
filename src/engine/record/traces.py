"""Calls as OpenTelemetry traces: a span for each call, with child spans for its queueing time, attempts and ranks.

On the client, only this module imports opentelemetry. If the program has set up no OpenTelemetry SDK, spans have no
effect. All times are measured on the client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, cast

from opentelemetry import propagate, trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span, SpanKind, StatusCode

from ...actors import events as ev
from ...actors.interfaces import Ending, GaveUp, Reason, Settled, Verdict
from ...lazy_dataclass import dataclass
from ..api.sink import CallTraces
from ..client.job_failures import failures
from ..wire.messages import Failed

NOT_ERRORS = {
    Verdict.RETURNED.value,
    Verdict.KILLED.value,
    Verdict.UNSENT.value,
    Reason.CANCELLED.value,
}  # endings that are not errors in a span: the task succeeded, or the caller ended it
Attributes = dict[str, Any]


@dataclass(slots=True)
class Call:
    """A running call with its span.

    ``parts``: its open child spans, for the queueing time, the attempt, or each rank.
    """

    span: Span
    below: Context
    parts: dict[object, Span] = field(default_factory=dict)


class Traces(CallTraces):
    """A sink that creates the spans of one pool. Use it only in the thread of the pool's event loop."""

    tasks = True

    def __init__(self, version: str) -> None:
        self._tracer = trace.get_tracer("outrider", version)
        self._outside = get_current()  # the OpenTelemetry context in which the pool was opened
        self.packed: Span | None = None  # span of the call that was just packed and has no job number yet
        self._calls: dict[int, Call] = {}
        self._opening: Span | None = None
        self._launches: dict[int, Span] = {}
        self._pool = ""

    # --- calls ------------------------------------------------------------------------------------------------------

    @contextmanager
    def packing(self, name: str) -> Iterator[Mapping[str, str]]:
        """Start the span of a call that is being packed. Yield the trace headers for the call's task.

        If packing fails, end the span with the error.
        """
        span: Span = trace.INVALID_SPAN
        carrier: dict[str, str] = {}
        with _guarded():
            span = self._tracer.start_span(name, kind=SpanKind.CLIENT)
            propagate.inject(carrier, context=trace.set_span_in_context(span))
        try:
            yield carrier
        except BaseException as error:
            with _guarded():
                span.record_exception(error)
                _fail(span, type(error).__qualname__, str(error))
                span.end()
            raise
        self.packed = span

    def began(self, job: int, name: str) -> None:
        """Assign the job number to the call whose span is `packed`."""
        with _guarded():
            self._began(job, name)

    def ended(self, job: int, name: str, ending: Ending | Sequence[Ending] | None) -> None:
        """End the span of a call, and its open child spans. ``ending``: None if the call never started."""
        with _guarded():
            self._ended(job, name, ending)

    def _began(self, job: int, name: str) -> None:
        span, self.packed = self.packed, None
        if span is None or not span.is_recording():
            return
        span.set_attributes({"outrider.pool": self._pool, "outrider.job": job, "outrider.function": name})
        call = self._calls[job] = Call(span, trace.set_span_in_context(span))
        self._begin(call, "queue", "queue")

    def _ended(self, job: int, name: str, ending: Ending | Sequence[Ending] | None) -> None:
        call = self._calls.pop(job, None)
        if call is None:
            return
        endings = [] if ending is None else [ending] if isinstance(ending, Settled | GaveUp) else list(ending)
        for rank, each in enumerate(endings):
            span = call.parts.pop(("rank", rank), None)
            if span is not None:
                _set_ending(span, job, name, each)
                span.end(_heard_ns(each))
        for span in call.parts.values():
            span.end()
        if not endings:
            _fail(call.span, "refused", "the pool did not take the call")
        else:
            bad = [each for each in endings if _word(each) not in NOT_ERRORS]
            _set_ending(call.span, job, name, (bad or endings)[0])
        call.span.end()

    # --- events -----------------------------------------------------------------------------------------------------

    def show(self, event: ev.Event) -> None:
        if isinstance(event, ev.JobEvent):
            call = self._calls.get(event.job)
            if call is not None:
                self._happened(call, event)
        elif isinstance(event, ev.Stalled) and (call := self._calls.get(event.job)) is not None:
            about = {"outrider.quiet_s": event.quiet_s, "outrider.restart": event.restart}
            call.span.add_event("outrider.stalled", about, _ns(event))
        elif isinstance(event, ev.NodeEvent):
            self._node(event)
        elif isinstance(event, ev.PoolStarting):
            self._pool = event.pool
            names: Attributes = {"outrider.pool": event.pool, "outrider.provider": event.provider}
            self._opening = self._tracer.start_span(
                f"open {event.pool}", self._outside, attributes=names, start_time=_ns(event)
            )
            self._outside = trace.set_span_in_context(self._opening, self._outside)
        elif isinstance(event, ev.PoolReady) and self._opening is not None:
            self._opening.end(_ns(event))
            self._opening = None

    def close(self, error: BaseException | None = None) -> None:  # noqa: ARG002
        """End all open spans."""
        for call in self._calls.values():
            for span in (*call.parts.values(), call.span):
                _fail(span, "closed", "the pool has ended")
                span.end()
        for span in (*self._launches.values(), *([self._opening] if self._opening else ())):
            _fail(span, "closed", "the pool has ended")
            span.end()
        self._calls.clear()
        self._launches.clear()
        self._opening = None

    def _happened(self, call: Call, event: ev.JobEvent) -> None:
        at = _ns(event)
        match event:
            case ev.TaskStarted():
                self._end(call, "queue", at)
                about: Attributes = {"outrider.node": event.node, "outrider.attempt": event.number}
                self._begin(call, "run", "run", at, about)
            case ev.TaskFinished():
                self._end(call, "run", at, event.verdict)
            case ev.TaskRetried():
                about = {"outrider.node": event.node, "outrider.attempt": event.number, "outrider.cause": event.cause}
                call.span.add_event("outrider.task_retried", about, at)
                self._end(call, "run", at, "lost", event.cause)
                self._begin(call, "queue", "queue", at)
            case ev.GenerationStarted():
                self._generation(call, event, at)
            case ev.GenerationLost():
                about = {"outrider.cause": event.cause}
                about |= {"outrider.generation": event.generation, "outrider.nodes": event.nodes}
                call.span.add_event("outrider.generation_lost", about, at)
            case _:
                pass

    def _generation(self, call: Call, event: ev.GenerationStarted, at: int) -> None:
        about: Attributes = {"outrider.generation": event.generation}
        about |= {"outrider.nodes": event.nodes, "outrider.ranks": event.ranks}
        call.span.add_event("outrider.generation_started", about, at)
        self._end(call, "queue", at)
        each = max(1, len(event.ranks) // max(1, len(event.nodes)))
        for place, rank in enumerate(event.ranks):
            self._end(call, ("rank", rank), at, "lost", "its generation was lost")
            node = event.nodes[min(place // each, len(event.nodes) - 1)] if event.nodes else -1
            more = {"outrider.rank": rank, "outrider.node": node, "outrider.generation": event.generation}
            self._begin(call, ("rank", rank), f"rank {rank}", at, more)

    def _begin(
        self, call: Call, key: object, name: str, at: int | None = None, attributes: Attributes | None = None
    ) -> None:
        call.parts[key] = self._tracer.start_span(name, call.below, attributes=attributes, start_time=at)

    def _end(self, call: Call, key: object, at: int, verdict: str = "", why: str = "") -> None:
        span = call.parts.pop(key, None)
        if span is None:
            return
        if verdict:
            span.set_attribute("outrider.ending", verdict)
            if verdict not in NOT_ERRORS:
                _fail(span, verdict, why)
        span.end(at)

    def _node(self, event: ev.NodeEvent) -> None:
        at = _ns(event)
        match event:
            case ev.NodeLaunching():
                about: Attributes = {"outrider.node": event.node, "outrider.machine": event.machine}
                self._launches[event.node] = self._tracer.start_span(
                    f"launch node {event.node}", self._outside, attributes=about, start_time=at
                )
            case ev.NodeQueued() if event.node in self._launches:
                self._launches[event.node].add_event("outrider.node_queued", {"outrider.reason": event.reason}, at)
            case ev.NodePreparing() if event.node in self._launches and event.took_s is None and not event.text:
                self._launches[event.node].add_event(f"outrider.preparing.{event.phase}", {}, at)
            case ev.NodeReady() | ev.NodeStandby():
                self._launched(event.node, at)
            case ev.NodeFailed() | ev.NodeLost():
                self._launched(event.node, at, event.cause or "it was lost")
            case ev.NodeDismissed():
                self._launched(event.node, at, "it was not wanted any more")
            case _:
                pass

    def _launched(self, node: int, at: int, why: str = "") -> None:
        span = self._launches.pop(node, None)
        if span is not None:
            if why:
                _fail(span, "launch", why)
            span.end(at)


@contextmanager
def _guarded() -> Iterator[None]:
    """A context manager that logs errors and otherwise ignores them.

    Such errors come from span processors of the application.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the edge
        logging.getLogger("outrider").debug("a trace: %r", error)


def _ns(event: ev.Event) -> int:
    return int((event.at or time.time()) * 1e9)


def _heard_ns(ending: Ending) -> int | None:
    """Return the unix time in ns at which the client received the end of a rank; None: use the current time."""
    if not isinstance(ending, Settled) or not ending.at:
        return None
    ago_s = max(0.0, asyncio.get_running_loop().time() - ending.at)
    return time.time_ns() - int(ago_s * 1e9)


def _word(ending: Ending) -> str:
    return ending.verdict.value if isinstance(ending, Settled) else ending.reason.value


def _set_ending(span: Span, job: int, name: str, ending: Ending) -> None:
    """Set a span's attributes for the ending of a task or rank, and an error as OpenTelemetry's conventions require."""
    word = _word(ending)
    span.set_attribute("outrider.ending", word)
    if isinstance(ending, Settled):
        span.set_attribute("outrider.node", int(ending.node))
        if ending.verdict is Verdict.RAISED:
            failed, _ = cast("tuple[Failed, object]", ending.outcome)
            about = {
                "exception.type": failed.kind,
                "exception.message": failed.message,
                "exception.stacktrace": failed.traceback,
            }
            span.add_event("exception", about)
            word = failed.kind
    if _word(ending) not in NOT_ERRORS:
        lines = [each.error for each in failures(job, name, ending)]
        _fail(span, word, lines[0] if lines else getattr(ending, "why", "") or word)


def _fail(span: Span, kind: str, text: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, text or kind)
