"""Results that are computed once and shared by concurrent callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from ..errors import ProviderError
from ..side_by_side import only

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Try(Generic[T]):
    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None


class Shared(Generic[T]):
    """The result of ``make``, which is computed once and shared by all callers.

    An error is raised in all waiting callers. After a transient error, a later caller starts the computation again.
    """

    def __init__(self, tasks: TaskGroup, make: Callable[[], Awaitable[T]]) -> None:
        self._tasks, self._make = tasks, make
        self._try: _Try[T] | None = None

    def start(self) -> None:
        """Start the computation, unless it has started."""
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
        except Exception as error:  # noqa: BLE001  raised in every caller of `get`
            mine.error = only(error)
        finally:
            mine.done.set()


class OncePerKey(Generic[K, T]):
    """The result of ``make(key)`` for each key. The first caller computes it, other callers wait, and the result is
    kept.

    If the computation fails or is cancelled, the next caller repeats it.
    """

    def __init__(self, make: Callable[[K], Awaitable[T]]) -> None:
        self._make = make
        self._results: dict[K, T] = {}
        self._making: dict[K, anyio.Lock] = {}

    async def get(self, key: K) -> T:
        async with self._making.setdefault(key, anyio.Lock()):
            if key not in self._results:
                self._results[key] = await self._make(key)
            return self._results[key]

    def forget(self, key: K, result: T) -> None:
        """Drop the result of a key, unless the key has another result by now."""
        if self._results.get(key) is result:
            del self._results[key]
