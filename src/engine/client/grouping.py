"""Calls that run together: all their results, or each as it is ready. The first error ends the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..api.calls import AnyCall, StreamCall
from . import streaming
from .jobs import as_settled

if TYPE_CHECKING:
    from .jobs import SubmittedJob
    from .open_pool import OpenPool

SubmitCall = Callable[[Any, None], "SubmittedJob[Any]"]


async def gather(core: OpenPool, calls: Sequence[AnyCall], submit: SubmitCall) -> tuple[Any, ...]:
    """`Pool.gather`. Generators are submitted behind the other calls: one that waits for its caller keeps its slot, and
    the caller has it only when the others have returned.
    """
    alone = [call for call in calls if not isinstance(call, StreamCall)]
    async with AsyncExitStack() as left_early:
        with _submitted(alone, submit) as jobs:
            streams: list[AsyncGenerator[Any, None]] = []
            for call in calls:
                if isinstance(call, StreamCall):
                    values = await streaming.begun(streaming.stream(core, call, None, marked=True))
                    left_early.push_async_callback(values.aclose)
                    streams.append(values)
            async for job in as_settled(jobs):
                await job
            results, iterators = iter(jobs), iter(streams)
            found = tuple(next(iterators) if isinstance(call, StreamCall) else next(results).result() for call in calls)
        left_early.pop_all()
        return found


async def stream_group(calls: Sequence[AnyCall], submit: SubmitCall) -> AsyncGenerator[Any, None]:
    """`Pool.stream_group`."""
    with _submitted(calls, submit) as jobs:
        async for job in as_settled(jobs):
            yield await job


@contextmanager
def _submitted(calls: Sequence[AnyCall], submit: SubmitCall) -> Iterator[list[SubmittedJob[Any]]]:
    """Submit calls whose jobs end with the block. If one cannot be submitted, those before it are ended too."""
    jobs: list[SubmittedJob[Any]] = []
    try:
        jobs += (submit(call, None) for call in calls)
        yield jobs
    finally:
        for job in jobs:
            job.cancel()
