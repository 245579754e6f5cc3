"""Make calls concurrently, and raise a single error if several of them fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable
from functools import partial
from typing import Any, TypeVar, overload

import anyio

from ..errors import ProviderError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
AT_A_TIME = 8


async def side_by_side(jobs: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run the jobs concurrently. If several fail, raise the most informative error."""
    try:
        async with anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(job)
    except ExceptionGroup as group:
        raise only(group) from None


@overload
async def all_of(one: Callable[[], Awaitable[T1]], two: Callable[[], Awaitable[T2]], /) -> tuple[T1, T2]: ...


@overload
async def all_of(
    one: Callable[[], Awaitable[T1]], two: Callable[[], Awaitable[T2]], three: Callable[[], Awaitable[T3]], /
) -> tuple[T1, T2, T3]: ...


@overload
async def all_of(*asks: Callable[[], Awaitable[T]]) -> tuple[T, ...]: ...


async def all_of(*asks: Callable[[], Awaitable[Any]]) -> tuple[Any, ...]:
    """Make all calls concurrently. Return the results in the order of the calls. If several fail, raise the most
    informative error.
    """
    results: dict[int, Any] = {}

    async def one(place: int, ask: Callable[[], Awaitable[Any]]) -> None:
        results[place] = await ask()

    await side_by_side([partial(one, place, ask) for place, ask in enumerate(asks)])
    return tuple(results[place] for place in range(len(asks)))


async def each_of(names: Collection[K], ask: Callable[[K], Awaitable[T]], *, at_a_time: int = AT_A_TIME) -> list[T]:
    """Call ``ask`` for each name, several at a time; return the results in the order of the names."""
    results: dict[K, T] = {}
    limit = anyio.Semaphore(at_a_time)

    async def one(name: K) -> None:
        async with limit:
            results[name] = await ask(name)

    await side_by_side([partial(one, name) for name in names])
    return [results[name] for name in names]


async def answers_of(keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T | ProviderError]:
    """Call ``ask`` for all keys concurrently. If a call raises a ProviderError, the error is the result for its key."""
    results: dict[K, T | ProviderError] = {}
    names = list(keys)

    async def one(name: K) -> None:
        try:
            results[name] = await ask(name)
        except ProviderError as error:
            results[name] = error

    await side_by_side([partial(one, name) for name in names])
    return {name: results[name] for name in names}


def only(error: Exception) -> BaseException:
    """Return the most informative of several concurrent errors."""
    while isinstance(error, ExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, ProviderError)), error.exceptions[0])
    return error
