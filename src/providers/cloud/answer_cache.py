"""Answers of clouds that hold for a while, kept for all pools of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Any, TypeVar

from ...lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept:
    value: Any
    until: float


_cache: dict[Hashable, _Kept] = {}


async def cached(key: Hashable, seconds: float, find: Callable[[], Awaitable[T]]) -> T:
    """The answer under ``key``: what ``find`` has returned in the last ``seconds``, or returns now. Errors are not."""
    kept = _cache.get(key)
    if kept is None or kept.until <= monotonic():
        kept = _cache[key] = _Kept(await find(), monotonic() + seconds)
    value: T = kept.value
    return value
