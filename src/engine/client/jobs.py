"""The jobs that callers hold: awaitable, and cancelled with whoever awaits them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...actors.ports import Ending
from ..serialization.outcome import unpack, unpack_all
from ..serialization.payload import Payload

if TYPE_CHECKING:
    from ..api.settings import Options
    from .open_pool import OpenPool

R = TypeVar("R")
_UNASKED = object()


class SubmittedJob(Generic[R]):
    """One submitted call. Implements `calls.Job`. It settles once; the value is unpickled when it is asked for."""

    __slots__ = ("_core", "_options", "_settled", "_value", "future", "id", "payload")

    def __init__(self, core: OpenPool, payload: Payload, options: Options) -> None:
        self._core, self.payload, self._options = core, payload, options
        self.id = core.new_job()
        core.observer.job(self.id, payload.name)
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._value: Any = _UNASKED
        self._settled = False

    def __await__(self) -> Generator[Any, None, R]:
        if not self.future.done():
            try:
                yield from self.future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()

    def cancel(self) -> bool:
        if self._settled:
            return False
        self._core.cancel(self.id)
        return True

    def done(self) -> bool:
        return self.future.done()

    def result(self) -> R:
        if self._value is _UNASKED:
            self._value = self._unpack(self.future.result())
        return self._value  # type: ignore[no-any-return]

    def _unpack(self, ending: Any) -> R:
        value: R = unpack(ending, self.payload, self._options.queue_timeout_s)
        return value

    def __call__(self, ending: Ending) -> None:
        """Settle the job, once: it is its task's `actors.ports.Settle` itself, which saves a bound method for each.

        Nobody may be waiting any more; the blob is released all the same.
        """
        self._settled = True
        self._core.observer.job_over(self.id)
        if self.payload.blob is not None or self.payload.shared:
            self._core.release(self.payload)
        if not self.future.done():
            self.future.set_result(ending)


class BroadcastJob(SubmittedJob[list[R]]):
    """A call on every node; its value is the list of the ranks' values."""

    __slots__ = ()

    def _unpack(self, ending: Any) -> list[R]:
        return unpack_all(ending, self.payload)

    def settle_all(self, endings: Sequence[Ending], _generation: int) -> None:
        self(endings)  # type: ignore[arg-type]
