"""`Pool.as_completed`: runs any number of calls, a bounded number of them at the same time, and yields each result as
soon as it is ready.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ...actors.interfaces import Ending, GaveUp
from ..api.calls import Call
from ..api.errors import ItemOutcome, NotACall
from ..api.pending_base import Pending, shown
from ..api.tracebacks import cut
from ..serialization.client_streams import Blocking, items_of, marked_blocking
from .arriving import ArrivedCall, CallFreezer, Refused
from .jobs import SubmittedJob
from .mapping import OF_ITEMS

if TYPE_CHECKING:
    from ..api.task_options import Options
    from ..serialization.task_payload import Payload
    from .job_intake import JobIntake

Calls = Iterable[Call[Any]] | AsyncIterable[Call[Any]]
TURN = 32  # calls to submit before the event loop gets a turn for other work: about a millisecond
LIMIT = 1_000  # most calls submitted at a time, if the caller gives no limit
# calls submitted at a time for each slot of the pool, if that makes more than `LIMIT`: one call runs, one waits for the
# slot, and two are in transit
PER_SLOT = 4


def checked_calls(calls: Calls, *, may_block: bool) -> Calls | Blocking:
    """Check calls, and return them in the form that `CompletedCalls` takes.

    ``may_block``: advance a plain iterator in a thread, because it may block.

    Raises:
        NotACall: the argument is not an iterable of calls.
    """
    if isinstance(calls, Pending):
        raise NotACall(f"pool.as_completed takes the calls one by one: give it [{calls.code}], or an iterator of calls")
    if not isinstance(calls, Iterable | AsyncIterable):
        raise NotACall(f"pool.as_completed takes an iterable of calls, not {shown(calls)}")
    return marked_blocking(calls) if may_block else calls


class CompletedCalls:
    """One run of `Pool.as_completed`."""

    def __init__(self, core: JobIntake, calls: Calls | Blocking, *, limit: int | None, returns_errors: bool) -> None:
        self._core, self._calls, self._freezer = core, calls, CallFreezer(core)
        self._limit, self._returns_errors = limit, returns_errors
        self._news = asyncio.Event()  # set when a call has ended, or a call can be submitted
        self._landed: deque[_NumberedJob | _Unsent] = deque()
        self._open: set[_NumberedJob] = set()  # submitted jobs whose results the caller does not have yet
        self._taken = 0

    async def results(self) -> AsyncGenerator[Any, None]:
        async with aclosing(self.batches()) as batches:
            try:
                async for batch in batches:
                    for result in batch:
                        yield result
            except Exception as error:
                cut(error)
                raise

    async def batches(self) -> AsyncGenerator[list[Any], None]:
        """Yield the available results, in lists of at least one result."""
        source = items_of(self._calls, self._news, self._freezer)
        try:
            while True:
                room = self._most() - len(self._open) - len(self._landed)
                calls = source.take(min(room, TURN)) if room > 0 else []
                for call in calls:
                    await self._submit(call)
                if self._landed:
                    results, error = await self._take_landed()
                    if results:
                        yield results
                    if error is not None:
                        raise error
                elif calls:
                    await asyncio.sleep(0)
                elif not self._open and source.is_exhausted():
                    return
                else:
                    self._news.clear()
                    await self._news.wait()
        finally:
            for job in self._open:
                job.cancel()
            await source.close()

    def _most(self) -> int:
        return self._limit or max(LIMIT, PER_SLOT * self._core.map_slots())

    async def _submit(self, item: Any) -> None:
        number, self._taken = self._taken, self._taken + 1
        call = item if type(item) in (ArrivedCall, Refused) else self._freezer.pack(item)[0]
        if type(call) is Refused:
            self._landed.append(_Unsent(number, call.error))
            return
        await self._core.own(call.payload)
        job = _NumberedJob(self._core, call.payload, call.options, number, self._ended)
        self._open.add(job)
        self._core.submit(job, None, job)

    def _ended(self, job: _NumberedJob) -> None:
        self._open.discard(job)
        self._landed.append(job)
        self._news.set()

    async def _take_landed(self) -> tuple[list[Any], Exception | None]:
        """Return the available results in the order of their arrival, up to the first error, and that error."""
        results: list[Any] = []
        for _ in range(len(self._landed)):
            landed = self._landed.popleft()
            await landed.load_if_long()
            try:
                value = landed.result()
            except Exception as error:  # noqa: BLE001  whatever the call raised
                error.add_note(f"call {landed.number} of pool.as_completed")
                if not (self._returns_errors and landed.is_of_call):
                    return results, error
                results.append(ItemOutcome(landed.number, error=error))
            else:
                results.append(ItemOutcome(landed.number, value) if self._returns_errors else value)
        return results, None


class _NumberedJob(SubmittedJob[Any]):
    """A submitted call. ``number``: the position of the call among the caller's calls, from 0."""

    __slots__ = ("number", "over")

    def __init__(
        self, core: JobIntake, payload: Payload, options: Options, number: int, over: Callable[[_NumberedJob], None]
    ) -> None:
        super().__init__(core, payload, options)
        self.number, self.over = number, over

    def __call__(self, ending: Ending) -> None:
        super().__call__(ending)
        self.over(self)

    @property
    def is_of_call(self) -> bool:
        """Return whether the call itself failed, as opposed to the pool."""
        return not isinstance(self.ending, GaveUp) or self.ending.reason in OF_ITEMS


class _Unsent:
    """A call that could not be submitted; stands in the queue in place of its job."""

    is_of_call = True

    def __init__(self, number: int, error: Exception) -> None:
        self.number, self._error = number, error

    async def load_if_long(self) -> None:
        return

    def result(self) -> None:
        raise self._error
