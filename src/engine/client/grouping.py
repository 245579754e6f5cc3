"""Calls that run as a group: the caller gets all results together, or each result as soon as it is ready.

The first error ends the other calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..api.calls import AnyCall, StreamCall
from ..serialization.client_streams import Values
from . import streaming
from .jobs import as_settled

if TYPE_CHECKING:
    from ..serialization.task_payload import Payload
    from .job_intake import JobIntake, PackedCall
    from .jobs import SubmittedJob


class PackedCalls:
    """The packed calls of a group.

    `add` packs calls in advance; without it, `gather` packs each call when it submits the call. Submit the calls in the
    order in which they were added.
    """

    def __init__(self, core: JobIntake) -> None:
        self._core = core
        self._calls: deque[PackedCall] = deque()
        self._streams: deque[Payload] = deque()

    def add(self, call: AnyCall) -> None:
        """Pickle a call and copy its large buffers."""
        if isinstance(call, StreamCall):
            payload = self._core.packer.pack_stream(call, Values())
            self._core.packer.own(payload)
            self._streams.append(payload)
        else:
            self._calls.append(self._core.pack(call, owned=True))

    def submit(self, call: AnyCall) -> SubmittedJob[Any]:
        return self._core.begin(self._calls.popleft() if self._calls else self._core.pack(call))

    def stream(self, call: StreamCall[Any]) -> AsyncGenerator[Any, None]:
        payload = self._streams.popleft() if self._streams else None
        return streaming.stream(self._core, call, None, marked=True, payload=payload)

    def release(self) -> None:
        """Drop the calls that have not been submitted."""
        for payload in (*(each.payload for each in self._calls), *self._streams):
            self._core.release(payload)
        self._calls.clear()
        self._streams.clear()


async def gather(core: JobIntake, calls: Sequence[AnyCall], packed: PackedCalls | None = None) -> tuple[Any, ...]:
    """Implement `Pool.gather`. ``packed``: all calls, if they were packed in advance.

    Generators are submitted after the other calls: a generator that waits for its caller occupies its slot, and the
    caller reads from it only after all other calls have returned.
    """
    packed = packed or PackedCalls(core)
    alone = [call for call in calls if not isinstance(call, StreamCall)]
    async with AsyncExitStack() as left_early:
        with _submitted(alone, packed.submit) as jobs:
            streams: list[AsyncGenerator[Any, None]] = []
            for call in calls:
                if isinstance(call, StreamCall):
                    values = await streaming.begun(packed.stream(call))
                    left_early.push_async_callback(values.aclose)
                    streams.append(values)
            async for job in as_settled(jobs):
                await job
            results, iterators = iter(jobs), iter(streams)
            outcomes = tuple(
                next(iterators) if isinstance(call, StreamCall) else next(results).result() for call in calls
            )
        left_early.pop_all()
        return outcomes


def submit(core: JobIntake, calls: Sequence[AnyCall]) -> asyncio.Future[tuple[Any, ...]]:
    """Implement `Pool.submit_group`. All calls are packed when this returns."""
    packed = PackedCalls(core)
    try:
        for call in calls:
            packed.add(call)
        group = asyncio.ensure_future(gather(core, calls, packed))
    except BaseException:
        packed.release()
        raise
    group.add_done_callback(lambda _: packed.release())  # also if the group is cancelled before it starts
    return group


async def stream_group(core: JobIntake, calls: Sequence[AnyCall]) -> AsyncGenerator[Any, None]:
    """Implement `Pool.stream_group`.

    The caller resumes at the first result and may change arguments then, so all calls are copied before.
    """
    packed = [core.pack(call) for call in calls]
    for each in packed:
        await core.own(each.payload)
    left = iter(packed)
    with _submitted(calls, lambda _: core.begin(next(left))) as jobs:
        async for job in as_settled(jobs):
            yield await job


@contextmanager
def _submitted(
    calls: Sequence[AnyCall], submit: Callable[[AnyCall], SubmittedJob[Any]]
) -> Iterator[list[SubmittedJob[Any]]]:
    """Submit calls, and end their jobs when the block ends.

    If one call cannot be submitted, end the jobs submitted before.
    """
    jobs: list[SubmittedJob[Any]] = []
    try:
        jobs += (submit(call) for call in calls)
        yield jobs
    finally:
        for job in jobs:
            job.cancel()
