"""Inputs of every kind, with every ending, for tests of their consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any


class Failed(BaseException):
    """No `Exception`, like those of `pytest.fail` and of gevent's time-outs."""


ENDINGS: dict[str, Callable[[], BaseException] | None] = {
    "exhausted": None,
    "error": lambda: KeyError("torn"),
    "base exception": lambda: Failed("torn"),
    "group": lambda: BaseExceptionGroup("torn", [Failed("torn")]),
    "exit": lambda: SystemExit(3),
    "exit well": lambda: SystemExit(0),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "stop": StopIteration,
    "async stop": StopAsyncIteration,
}


def plain_generator(count: int, ending: BaseException | None) -> Iterator[int]:
    yield from range(count)
    if ending is not None:
        raise ending


class PlainIterator(Iterator[int]):
    def __init__(self, count: int, ending: BaseException | None) -> None:
        self._left, self._ending = iter(range(count)), ending

    def __next__(self) -> int:
        for item in self._left:
            return item
        raise StopIteration if self._ending is None else self._ending


async def async_generator(count: int, ending: BaseException | None) -> AsyncIterator[int]:
    for item in range(count):
        yield item
    if ending is not None:
        raise ending


class AsyncClass(AsyncIterator[int]):
    def __init__(self, count: int, ending: BaseException | None) -> None:
        self._left, self._ending = iter(range(count)), ending

    async def __anext__(self) -> int:
        await asyncio.sleep(0)
        for item in self._left:
            return item
        raise StopAsyncIteration if self._ending is None else self._ending


KINDS: dict[str, Callable[[int, BaseException | None], Any]] = {
    "generator": plain_generator,
    "iterator": PlainIterator,
    "async generator": async_generator,
    "async iterator": AsyncClass,
    "list": lambda count, _: [*range(count)],
}


def made(kind: str, ending: str, count: int) -> tuple[Any, type[BaseException] | None]:
    """Return an input, and the type of the error with which its consumer ends; None: it is exhausted.

    Python itself makes a RuntimeError of what ends an iteration, in generators and coroutines.
    """
    make = ENDINGS[ending]
    error = None if make is None else make()
    items = KINDS[kind](count, error)
    if error is None or kind == "list":
        return items, None
    if isinstance(error, StopIteration):
        return items, None if kind == "iterator" else RuntimeError
    if isinstance(error, StopAsyncIteration):
        return items, None if kind == "async iterator" else RuntimeError
    return items, type(error)
