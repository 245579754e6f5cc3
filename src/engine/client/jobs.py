"""The jobs that callers hold. A job runs as one task, or as a broadcast, with a task for each rank.

`AnswerPolling` is busy polling for the result of a call that is the pool's only one, where polling shortens the wait.
If client and node share a computer, a short call takes less time than a processor needs to fall asleep and wake up
again, and each of the call's four hops between processes would wake a sleeping processor. While the client polls, the
node's processes stay together on the other processors. See docs/decisions/0039-a-lone-call-is-polled-for.md.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, cast

from ...actors.interfaces import (
    BroadcastSpec,
    Ending,
    GaveUp,
    JobId,
    NodeFacts,
    OnLoss,
    RankWatch,
    Reason,
    Settled,
    Stall,
    Task,
    TaskId,
    Verdict,
)
from ...lazy_dataclass import dataclass
from ...providers.shared.threads import in_thread
from ..api.checks import shown
from ..api.errors import NotACall, SpecError, TaskStopped
from ..api.plugin import one_listens
from ..api.printable import one_line
from ..api.settings import MOST
from ..api.tracebacks import cut
from ..node.freeports import FEW as MOST_PORTS
from ..objects.pool_objects import home_of
from ..serialization.error_translation import unpack, unpack_all
from ..serialization.payload import LONG_BYTES, Received
from ..serialization.task_payload import Payload

if TYPE_CHECKING:
    from ...actors.amounts import Amounts
    from ..api.plugin import Plugin
    from ..api.task_options import OnLossOption, Options
    from .observer import Observer


POLL_S = 0.000_4  # the longest time of polling for one result
SHORT_S = 0.000_8  # the client never polls if calls take longer than this without polling
TRIAL = 16  # calls in a trial, all with polling or all without; then the two ways are compared
TRIALS = 16  # one trial in this many uses the way that was slower so far, in case it has become faster
GAIN = 0.9  # polling is used if the median time of a call is below this fraction of the median without polling


class AnswerPolling:
    """Decides whether the client polls for the result of a lone call, by comparing trials with polling and without.

    Most trials use the faster way. A poll without success costs `POLL_S` of an idle processor: between two checks for
    the result, the client yields the processor to other processes (``sched_yield``) and runs one turn of the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unanswered: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``unanswered`` returns the number of the pool's jobs that have not ended.

        ``clock`` returns seconds. The clock of uvloop's loops has a resolution of a millisecond, which is too coarse.
        """
        self._loop, self._unanswered, self._clock = loop, unanswered, clock
        self._polls = False
        self._took_s: list[float] = []  # durations of the calls in the current trial
        # median duration in the last trial; the key is True for trials with polling
        self._medians_s = {False: 0.0, True: 0.0}
        self._trials = 0

    def wait(self, answer: asyncio.Future[Any]) -> Generator[Any, None, Any]:
        """Wait for ``answer``, as ``yield from answer`` does, with polling where that is faster."""
        if self._unanswered() != 1:
            return (yield from answer)
        began_at = self._clock()
        if self._polls:
            self._loop.call_soon(self._look, answer, began_at + POLL_S)
        result = yield from answer
        self._took_s.append(self._clock() - began_at)
        if len(self._took_s) == TRIAL:
            self._compare()
        return result

    def _look(self, answer: asyncio.Future[Any], until: float) -> None:
        if not answer.done() and self._unanswered() == 1 and self._clock() < until:
            os.sched_yield()
            self._loop.call_soon(self._look, answer, until)

    def _compare(self) -> None:
        self._medians_s[self._polls] = sorted(self._took_s)[(TRIAL - 1) // 2]
        self._took_s.clear()
        self._trials += 1
        usual_s = self._medians_s[False]
        helps = self._medians_s[True] < GAIN * usual_s
        other = self._trials % TRIALS == 0
        self._polls = usual_s < SHORT_S and helps is not other


R = TypeVar("R")
_UNASKED = object()
_keeping_value = Lock()  # one lock for all jobs, because it is held only for a comparison and an assignment


class JobOwner(Protocol):
    """The parts of an open pool that its jobs use."""

    loop: asyncio.AbstractEventLoop
    observer: Observer
    polling: AnswerPolling

    def new_job(self) -> JobId: ...

    def cancel(self, job: JobId) -> None: ...

    def expire(self, job: JobId, deadline_s: float) -> None: ...

    def explained(self, ending: Ending) -> Ending: ...

    def leave_rank(self, job: JobId, rank: int) -> None: ...

    def broadcast_over(self, job: JobId) -> None: ...

    def release(self, payload: Payload) -> None: ...


class SubmittedJob(Generic[R]):
    """One submitted call. It can be awaited; cancelling the waiter cancels the job. Implements `job.Job`.

    A job ends once. Its value is unpickled when it is first requested.

    ``future``: done when the job is over; its result is None. ``ending``: how the job ended, until its value has been
    unpickled; () from then on, so that a job that is kept does not hold the pickle in addition to the value.
    """

    __slots__ = ("_core", "_deadline", "_loading", "_settled", "_value", "ending", "future", "id", "options", "payload")

    def __init__(self, core: JobOwner, payload: Payload, options: Options) -> None:
        self._core, self.payload, self.options = core, payload, options
        self.id = core.new_job()
        if payload.span is not None and core.observer.traces is not None:
            # set the span of this call again: other calls may have been packed since this call was packed
            core.observer.traces.packed = payload.span
        core.observer.job(self.id, payload.name)
        self.future: asyncio.Future[None] = core.loop.create_future()
        self.ending: Any = None
        self._value: Any = _UNASKED
        self._settled = False
        self._loading: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if options.deadline_s is not None:
            self._deadline = core.loop.call_later(options.deadline_s, self._expire)

    def __await__(self) -> Generator[Any, None, R]:
        if not self.future.done():
            try:
                yield from self._wait()
            except asyncio.CancelledError as error:
                self.cancel()
                cut(error)
                raise
        try:
            ending = self.ending
            outcome = ending.outcome if type(ending) is Settled else None
            if type(outcome) is not Received or type(outcome.data) is not bytes or len(outcome.data) >= LONG_BYTES:
                yield from self.load_if_long().__await__()  # the usual case, a small value, does not get here
            return self.result()
        except Exception as error:
            cut(error)
            raise

    def _wait(self) -> Generator[Any, None, Any]:
        return self._core.polling.wait(self.future)

    def cancel(self) -> bool:
        if self._settled:
            return False
        self._core.cancel(self.id)
        return True

    def _expire(self) -> None:
        self._core.expire(self.id, self.options.deadline_s or 0.0)

    async def load_if_long(self) -> None:
        """Unpickle a large value in a thread, once for all waiters, so that the event loop is not blocked.

        Raises nothing; `result` raises the error.
        """
        if self._value is not _UNASKED or not any(received.is_long_to_load for received in _received(self.ending)):
            return
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            with suppress(Exception):
                await in_thread(self._unpack_and_drop, abandon=True)
        finally:
            self._loading = None

    def _unpack_and_drop(self) -> None:
        pickles = tuple(_received(self.ending))
        self._unpack_once()
        for received in pickles:
            received.drop()

    def done(self) -> bool:
        return self.future.done()

    def cancelled(self) -> bool:
        future = self.future
        if not future.done() or all(map(_has_returned, _endings(self.ending))):
            return future.cancelled()
        return isinstance(self.exception(), TaskStopped)

    def exception(self) -> BaseException | None:
        self.future.result()  # raises InvalidStateError if the job is not done
        for source in self.payload.inputs:
            if source.fatal is not None:
                return source.fatal
        try:
            self.result()
        except Exception as error:  # noqa: BLE001  whatever the task raised
            return error
        return None

    def add_done_callback(self, function: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.future.add_done_callback(_JobCallback(self, function), context=context)

    def remove_done_callback(self, function: Callable[[Any], object], /) -> int:
        return self.future.remove_done_callback(_JobCallback(self, function))

    def __repr__(self) -> str:
        return f"<job {self.id} of {one_line(self.payload.name)}: {_state(self)}>"

    def _repr_html_(self) -> str:
        """Return the job's HTML text for notebooks."""
        from ..api.html import job_page

        return job_page(self.payload.name, int(self.id), _state(self))

    def __reduce__(self) -> NoReturn:
        raise NotACall(f"it is a job of {self.payload.name}, and a task gets values: await the job first")

    def result(self) -> R:
        if self._value is _UNASKED:
            self.future.result()  # raises if the job is not done, or was cancelled
            try:
                self._unpack_once()
            except Exception as error:
                cut(error)
                raise
        return self._value  # type: ignore[no-any-return]

    def _unpack_once(self) -> None:
        """Unpickle the value and drop its pickle.

        Several threads may call this at the same time: all get the value of the first to finish.
        """
        ending = self.ending
        try:
            value = self._unpack(ending)
        except Exception:
            if self._value is _UNASKED:
                raise
            return  # another thread has unpickled the value in the meantime, and has dropped the pickle
        with _keeping_value:
            if self._value is _UNASKED:
                self._value = value
        self.ending = ()

    def _unpack(self, ending: Any) -> R:
        if type(ending) is GaveUp:
            ending = self._core.explained(ending)
        value: R = unpack(ending, self.payload, self.options.queue_timeout_s)
        return value

    def __call__(self, ending: Ending) -> None:
        """End the job with this ending, once.

        The pool's actor calls the job itself when its task ends (`actors.interfaces.Settle`): a separate callback would
        take a bound method for each job. The call's blob is released even if no caller waits for the job any more.
        """
        self._settled = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._core.observer.job_over(self.id, ending, self.payload.name)
        if self.payload.blob is not None or self.payload.shared or self.payload.objects:
            self._core.release(self.payload)
        if not self.future.done():
            self.ending = ending
            self.future.set_result(None)

    def refused(self) -> None:
        """End a job that was never submitted, and so has no waiters."""
        self._settled = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._core.observer.job_over(self.id)
        self._core.release(self.payload)


def _state(job: SubmittedJob[Any]) -> str:
    """Describe the state of a job, without its value, which may be large, and without its error, which may not be
    unpickled here.
    """
    if not job.future.done():
        return "under way"
    if job.future.cancelled():
        return "cancelled"
    endings = _endings(job.ending)
    if all(map(_has_returned, endings)):
        return "returned"
    ends = {each.verdict if isinstance(each, Settled) else each.reason for each in endings}
    return "cancelled" if ends <= {Verdict.KILLED, Reason.CANCELLED} else "failed"


def _endings(ending: Any) -> Sequence[Ending]:
    """Return how the tasks of a job ended.

    Empty: the job has not ended, was cancelled, or its value has been unpickled.
    """
    return (ending,) if isinstance(ending, Settled | GaveUp) else ending or ()


def _has_returned(ending: Ending) -> bool:
    return isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED


def _received(ending: Any) -> Iterator[Received]:
    return (cast("Received", cast("Settled", each).outcome) for each in _endings(ending) if _has_returned(each))


@dataclass(frozen=True, slots=True)
class _JobCallback:
    job: SubmittedJob[Any]
    function: Callable[[Any], object]

    def __call__(self, _future: asyncio.Future[Any]) -> None:
        self.function(self.job)


class BroadcastJob(SubmittedJob[list[R]]):
    """A call on every node. Its value is the list of the ranks' values."""

    __slots__ = ()

    def _wait(self) -> Generator[Any, None, Any]:
        return self.future.__await__()  # no busy polling: the ranks need every processor

    def _unpack(self, ending: Any) -> list[R]:
        return unpack_all([self._core.explained(each) for each in ending], self.payload)

    def settle_all(self, endings: Sequence[Ending], _generation: int) -> None:
        self._core.broadcast_over(self.id)
        self(endings)  # type: ignore[arg-type]


async def as_settled(jobs: Sequence[SubmittedJob[Any]]) -> AsyncIterator[SubmittedJob[Any]]:
    remaining = {job.future: job for job in jobs}
    while remaining:
        done, _ = await asyncio.wait(remaining, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            yield remaining.pop(future)


def task_of(job: JobId, payload: Payload, options: Options, on: int | None) -> Task:
    """Return the task of a job that runs once, on the node of rank ``on``, or on any node if that is None.

    A task that streams is never retried, because the values that it exchanged with its caller are gone.
    """
    at_most_once = options.at_most_once or payload.output is not None or bool(payload.inputs)
    return Task(
        TaskId(job),
        job,
        payload.function,
        payload,
        on,
        0 if at_most_once else options.retries,
        at_most_once,
        options.queue_timeout_s,
        0 if at_most_once else options.max_restarts,
        payload.needs,
        None if options.stall_s is None else stall_of(payload, options),
        partial(home_of, payload.objects) if payload.objects else None,
        options.deadline_s is not None,
    )


def stall_of(payload: Payload, options: Options) -> Stall | None:
    if options.stall_s is None:
        return None
    return Stall(options.stall_s, options.on_stall == "restart", one_line(payload.name))


def on_loss_of(options: Options, pool: OnLossOption, *, collective: bool) -> OnLoss:
    """Return the reaction of a broadcast to the loss of a rank: the call's option, or else the pool's.

    "auto" restarts all ranks if they wait for each other (``collective``), else only the lost rank. ``max_restarts``
    implies "restart", and ``retry="never"`` implies "fail"; `Options` refuses contradictions of these.
    """
    if options.at_most_once:
        return OnLoss.FAIL
    if options.max_restarts:
        return OnLoss.RESTART
    match pool if options.on_loss == "auto" else options.on_loss:
        case "auto":
            return OnLoss.RESTART if collective else OnLoss.RESEND
        case chosen:
            return OnLoss[chosen.upper()]


def broadcast_of(
    job: JobId,
    payload: Payload,
    options: Options,
    plugins: Sequence[Plugin],
    *,
    on_loss: OnLossOption,
    nodes: Iterable[NodeFacts],
    failed: Callable[[Ending], object] | None = None,
    watch: RankWatch | None = None,
) -> BroadcastSpec:
    """Return the broadcast of a call with these plugins.

    Args:
        on_loss: The pool's option.
        nodes: The nodes that are ready now.
        failed: Called with each rank's ending as soon as the rank fails.
        watch: Watches ranks that stream. Such ranks run at most once. As in a collective broadcast, all ranks
            end when one fails.

    Raises:
        SpecError: the plugins contradict each other, or need more than a node has.
        Exception: an error of a plugin.
    """

    most = sys.maxsize  # the most ranks on one node

    def ranks_per_node(facts: NodeFacts) -> int:
        return min(most, max((_ranks_of(plugin, facts) for plugin in plugins), default=1))

    collective = any(plugin.collective for plugin in plugins)
    every_rank_listens = one_listens(plugins) == "ranks"
    nodes = tuple(nodes)
    for facts in nodes if plugins else ():
        # The pool's actor will call this function, too. Call it here first, so that the user gets a plugin's error.
        ranks = ranks_per_node(facts)
        if every_rank_listens and ranks > MOST_PORTS:
            need = f"{ranks} ranks per node would each need a port, and at most {MOST_PORTS} of a node can have one"
            raise SpecError(f"{need}: run fewer ranks per node.")
    if payload.needs is not None:
        # use the facts of the nodes that are ready now, as the processors and memory of later nodes are unknown
        most = max(map(ranks_per_node, nodes), default=1)
    return BroadcastSpec(
        job=job,
        function=payload.function,
        content=payload,
        on_loss=on_loss_of(options, on_loss, collective=collective),
        collective=collective or watch is not None,
        ranks_per_node=ranks_per_node,
        every_rank_listens=every_rank_listens,
        at_most_once=options.at_most_once or watch is not None,
        queue_timeout_s=options.queue_timeout_s,
        restarts=options.retries,
        max_restarts=options.max_restarts,
        needs=None if payload.needs is None else held_by_ranks(payload, most, nodes),
        stall=stall_of(payload, options),
        failed=failed,
        watch=watch,
    )


def _ranks_of(plugin: Plugin, facts: NodeFacts) -> int:
    ranks = plugin.ranks_per_node(facts)
    if not isinstance(ranks, int) or ranks > MOST:
        raise SpecError(
            f"The {plugin.name} plugin wants {shown(ranks)} ranks on a node: a whole number of at most {MOST:,} is one."
        )
    return ranks


def held_by_ranks(payload: Payload, ranks: int, nodes: Sequence[NodeFacts]) -> Amounts:
    """Return the amounts of processors, memory and so on that ``ranks`` ranks of a call hold on one node together.

    Raises:
        SpecError: one of the nodes has less.
    """
    assert payload.needs is not None, "it holds amounts"
    needs = payload.needs.times(ranks)
    small = [facts for facts in nodes if not needs.fits_in(facts.amounts)]
    if small:
        each = f"{ranks} ranks with {payload.needs} each need {needs}" if ranks > 1 else f"a rank needs {needs}"
        raise SpecError(
            f"{payload.name} cannot be broadcast: {each} on every node, and {small[0].hostname} has "
            f"{small[0].amounts.all}. Ask for less, or for larger nodes."
        )
    return needs
