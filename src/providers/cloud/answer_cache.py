"""A cache of clouds' responses that stay valid for a while, shared by all pools of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial, wraps
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...lazy_dataclass import dataclass

T = TypeVar("T")
P = ParamSpec("P")
Api = TypeVar("Api")


@dataclass(frozen=True, slots=True)
class _Kept:
    value: Any
    until: float


_cache: dict[Hashable, _Kept] = {}


async def cached(key: Hashable, seconds: float, find: Callable[[], Awaitable[T]]) -> T:
    """Return the cached result of ``find`` if the result is younger than ``seconds``; else call ``find``. Errors are
    not cached.
    """
    kept = _cache.get(key)
    if kept is None or kept.until <= monotonic():
        kept = _cache[key] = _Kept(await find(), monotonic() + seconds)
    value: T = kept.value
    return value


def kept_for(
    seconds: float, by: Callable[[Api], Hashable]
) -> Callable[[Callable[Concatenate[Api, P], Awaitable[T]]], Callable[Concatenate[Api, P], Coroutine[Any, Any, T]]]:
    """Return a decorator for a query ``ask(api, ...)``: it caches each result for ``seconds``, with the `repr` of the
    arguments as the key.

    ``by``: returns a part of the key that differs for clouds with different results. Errors are not cached.
    """

    def decorated(
        ask: Callable[Concatenate[Api, P], Awaitable[T]],
    ) -> Callable[Concatenate[Api, P], Coroutine[Any, Any, T]]:
        @wraps(ask)
        async def answer(api: Api, /, *args: P.args, **kwargs: P.kwargs) -> T:
            key = (ask.__module__, ask.__qualname__, by(api), repr((args, kwargs)))
            return await cached(key, seconds, partial(ask, api, *args, **kwargs))

        return answer

    return decorated
