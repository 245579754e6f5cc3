"""Work that is done concurrently: a result computed once for all who need it, and jobs side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from ..errors import ProviderError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

T = TypeVar("T")


class _Try(Generic[T]):
    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None


class Shared(Generic[T]):
    """The result of ``make``. All who wait get its error; after a transient one, a later caller runs it again."""

    def __init__(self, tasks: TaskGroup, make: Callable[[], Awaitable[T]]) -> None:
        self._tasks, self._make = tasks, make
        self._try: _Try[T] | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._try is None:
            self._try = _Try()
            self._tasks.start_soon(self._run, self._try)

    async def get(self) -> T:
        """Wait for the result. Cancelling a caller leaves the computation running."""
        self.start()
        mine = self._try
        assert mine is not None
        await mine.done.wait()
        if mine.error is None:
            return mine.results[0]
        if mine is self._try and getattr(mine.error, "retry_after_s", None) is not None:
            self._try = None
        raise mine.error

    async def stop(self) -> None:
        """Cancel the computation if it is running, and wait for its end."""
        if self._try is not None:
            self._try.scope.cancel()
            await self._try.done.wait()

    async def _run(self, mine: _Try[T]) -> None:
        mine.error = ProviderError("the pool is closing")
        try:
            with mine.scope:
                mine.results.append(await self._make())
                mine.error = None
        except Exception as error:  # noqa: BLE001  raised to whoever asks for the result
            mine.error = only(error)
        finally:
            mine.done.set()


async def side_by_side(jobs: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run the jobs concurrently; of several errors, raise the one that says most."""
    try:
        async with anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(job)
    except ExceptionGroup as group:
        raise only(group) from None


def only(error: Exception) -> BaseException:
    """Choose the one of several concurrent errors that says most to a user."""
    while isinstance(error, ExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, ProviderError)), error.exceptions[0])
    return error
