"""Generators on nodes, and their iterators in the client: a generator runs on one node, or on every rank of a
broadcast.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ...actors.interfaces import Ending, Settled, Verdict
from ...providers.shared.threads import in_thread
from ..api import settings
from ..api.calls import StreamCall, for_every_rank, pending
from ..api.errors import NotACall
from ..api.tracebacks import cut
from ..serialization.client_streams import RankValues, Values
from ..serialization.error_translation import error_of, load_large, load_value
from .jobs import BroadcastJob

if TYPE_CHECKING:
    from ..serialization.payload import Received
    from ..serialization.task_payload import Payload
    from .job_intake import JobIntake
    from .jobs import SubmittedJob

T = TypeVar("T")
# an extra first item of a generator, without a value: from this item on, closing the generator runs its clean-up
_BEGUN: Any = object()


async def stream(
    core: JobIntake,
    call: StreamCall[T],
    on: int | Literal["head"] | None,
    *,
    marked: bool = False,
    payload: Payload | None = None,
) -> AsyncGenerator[T, None]:
    """Implement `Pool.stream`. The call is submitted when the first value is requested.

    Args:
        marked: Whether to yield the extra item `_BEGUN` first. The arguments are then copied before, because the caller
            continues at this item and may change them.
        payload: The call, if it was packed before, with `Values` as its output.
    """
    if not isinstance(call, StreamCall):
        raise NotACall(f"pool.stream takes the call of a generator function; {pending(call).code} is for pool.run")
    payload = payload or core.packer.pack_stream(call, Values())
    output = cast("Values", payload.output)
    if marked:
        await core.own(payload)
    job: SubmittedJob[None] = core.Job(core, payload, call.options)

    def settle(ending: Any) -> None:
        job(ending)
        output.end()

    core.submit(job, settings.placement(on, most=core.most), settle)
    try:
        if marked:
            yield _BEGUN
        async for received in output:
            yield await _loaded(received, payload.name)
        job.result()
    except Exception as error:
        cut(error)
        raise
    finally:
        job.cancel()


async def begun(values: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Take the first item, `_BEGUN`, from a generator, and return the generator.

    From now on, closing or dropping the generator releases its resources, even if no value was read.
    """
    await anext(values)
    return values


async def broadcast(core: JobIntake, call: StreamCall[T]) -> list[AsyncGenerator[T, None]]:
    """Implement `Pool.broadcast` of a generator. Cancelling this call ends every rank."""
    job = StreamingBroadcast(core, for_every_rank(call))
    try:
        await core.own(job.payload)  # copied, because the caller gets the iterators before all nodes have the arguments
    except BaseException:
        job.refused()
        raise
    core.broadcast(job, core.packer.plugins_of(call.function), job)
    return [await begun(job.values(rank)) for rank in range(await job.wait_begun())]


class StreamingBroadcast(BroadcastJob[None]):
    """A generator on every node. Implements `actors.interfaces.RankWatch`."""

    __slots__ = ("_begun", "_cause", "_endings", "_output")

    def __init__(self, core: JobIntake, call: StreamCall[Any]) -> None:
        self._output = RankValues()
        super().__init__(core, core.packer.pack_stream(call, self._output), call.options)
        self._begun: asyncio.Future[int] = core.loop.create_future()
        self._endings: dict[int, Ending] = {}
        # the ending of the first rank that failed, which is the reason that the other ranks end
        self._cause: Ending | None = None

    async def wait_begun(self) -> int:
        """Wait until the ranks are started, and return their number. Cancelling ends the ranks.

        Raises:
            Exception: no rank was started; the same errors as for a broadcast of a function without yields.
        """
        try:
            ranks = await self._begun
        except BaseException:
            self.cancel()
            raise
        if not ranks:
            self.result()
        return ranks

    async def values(self, rank: int) -> AsyncGenerator[Any, None]:
        """Yield `_BEGUN` (see `begun`), then the values of a rank; then raise the rank's error, if any.

        Closing the generator ends only this rank.
        """
        try:
            yield _BEGUN
            async for received in self._output.of(rank):
                yield await _loaded(received, self.payload.name)
            self._raise_error_of(rank)
        except Exception as error:
            cut(error)
            raise
        finally:
            if rank not in self._endings:
                self._core.leave_rank(self.id, rank)

    def _raise_error_of(self, rank: int) -> None:
        ending = self._core.explained(self._endings[rank])
        if _returned(ending):
            return
        error = error_of(ending, self.payload, self.options.queue_timeout_s)
        if _killed(ending) and self._cause is not None:
            error.__cause__ = error_of(self._cause, self.payload)
        raise error

    # --- called by the pool's actor -------------------------------------------------------------------------------

    def began(self, ranks: int, /) -> None:
        if not self._begun.done():
            self._begun.set_result(ranks)

    def ended(self, rank: int, ending: Ending, /) -> None:
        self._endings[rank] = ending
        if self._cause is None and not _returned(ending) and not _killed(ending):
            self._cause = ending
        self._output.of(rank).end()

    def settle_all(self, endings: Sequence[Ending], generation: int) -> None:
        super().settle_all(endings, generation)
        for rank, ending in enumerate(endings):
            if rank not in self._endings:
                self.ended(rank, ending)
        self.began(0)


def _returned(ending: Ending) -> bool:
    return isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED


def _killed(ending: Ending) -> bool:
    return isinstance(ending, Settled) and ending.verdict is Verdict.KILLED


async def _loaded(received: Received, task: str) -> Any:
    if received.is_long_to_load:
        return await in_thread(load_large, received, task, abandon=True)
    return load_value(received, task)
