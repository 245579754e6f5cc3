"""Patterns of code that people bring along: each runs as a task, unchanged."""

from __future__ import annotations

import asyncio
import enum
import functools
import math
import multiprocessing
import operator
import threading
from collections import Counter, defaultdict, namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outrider import Pool, SyncPool, compute

OFFSET = 10
VARIABLE: ContextVar[int] = ContextVar("VARIABLE", default=3)
Pair = namedtuple("Pair", "left right")


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Point:
    x: int
    tags: tuple[str, ...] = field(default=("a",))


class Model:
    rate = 2

    def __init__(self, weight: int) -> None:
        self.weight = weight

    @staticmethod
    def twice(x: int) -> int:
        return 2 * x

    @classmethod
    def scaled(cls, x: int) -> int:
        return cls.rate * x

    def predict(self, x: int) -> int:
        return self.weight * x

    @property
    def half(self) -> float:
        return self.weight / 2


def squared(x: int) -> int:
    return x * x


@functools.cache
def cached(x: int) -> int:
    return x * x


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


def closure(n: int) -> Callable[[int], int]:
    return lambda x: x + n


def factorial(n: int) -> int:
    return 1 if n < 2 else n * factorial(n - 1)


async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x


async def at_once() -> list[int]:
    return await asyncio.gather(later(1), later(2))


def in_threads() -> list[int]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(squared, range(3)))


def in_a_thread() -> list[int]:
    found: list[int] = []
    thread = threading.Thread(target=found.append, args=(1,))
    thread.start()
    thread.join()
    return found


def in_processes(method: str) -> list[int]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as processes:
        return list(processes.map(math.sqrt, [4, 9]))


def with_a_file() -> str:
    Path("made.txt").write_text("here")
    return Path("made.txt").read_text()


def with_a_local_class() -> int:
    class Local:
        value = 7

    return Local().value


def with_variables() -> int:
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


PATTERNS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "a function": (squared, (3,), 9),
    "a lambda": (lambda x: x + 1, (1,), 2),
    "a closure": (closure(5), (1,), 6),
    "a partial": (functools.partial(pow, 2), (5,), 32),
    "a builtin": (len, ([1, 2],), 2),
    "a function of the standard library": (math.gcd, (12, 18), 6),
    "an operator": (operator.itemgetter("a"), ({"a": 1},), 1),
    "a static method": (Model.twice, (4,), 8),
    "a class method": (Model.scaled, (4,), 8),
    "a bound method": (Model(3).predict, (4,), 12),
    "a module's global": (lambda: OFFSET, (), 10),
    "recursion": (factorial, (5,), 120),
    "a function as an argument": (call, (squared, 4), 16),
    "a lambda as an argument": (call, (lambda x: -x, 4), -4),
    "a cached function": (cached, (4,), 16),
    "async def": (later, (4,), 4),
    "gather of asyncio": (at_once, (), [1, 2]),
    "threads": (in_threads, (), [0, 1, 4]),
    "a thread": (in_a_thread, (), [1]),
    "processes that are forked": (in_processes, ("fork",), [2.0, 3.0]),
    "processes that are spawned": (in_processes, ("spawn",), [2.0, 3.0]),
    "a file in the task's folder": (with_a_file, (), "here"),
    "a local class": (with_a_local_class, (), 7),
    "a context variable": (with_variables, (), 4),
    "a dataclass there and back": (lambda point: Point(point.x + 1), (Point(1),), Point(2)),
    "an enum there and back": (lambda colour: colour is Colour.RED, (Colour.RED,), True),
    "a named tuple": (lambda pair: pair._replace(left=3), (Pair(1, 2),), Pair(3, 2)),
    "a counter": (Counter, ("aab",), Counter("aab")),
    "a default dictionary": (lambda d: {**d, "b": d["b"]}, (defaultdict(list),), {"b": []}),
    "bytes": (bytes.upper, (b"ab",), b"AB"),
    "a set of tuples": (lambda s: s | {(2,)}, ({(1,)},), {(1,), (2,)}),
    "a path": (lambda path: path.name, (Path("/a/b"),), "b"),
    "None": (lambda x: x, (None,), None),
    "an exception as a value": (lambda: str(ValueError("no")), (), "no"),
    "an object with state": (lambda model: model.half, (Model(3),), 1.5),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_runs_as_a_task(pool: SyncPool, pattern: str) -> None:
    function, args, expected = PATTERNS[pattern]
    if isinstance(function, type):
        function = functools.partial(call, function)
    result: Any = pool.run(compute(function)(*args))
    assert result == expected


def test_generators_stream(pool: SyncPool) -> None:
    @compute
    def objects(n: int) -> Iterator[Point]:
        yield from map(Point, range(n))

    @compute
    async def slowly(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield await later(each)

    assert list(objects(3) >> pool) == [Point(0), Point(1), Point(2)]
    assert list(slowly(3) >> pool) == [0, 1, 2]


def test_errors_keep_their_shape(pool: SyncPool) -> None:
    @compute
    def several() -> None:
        raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    with pytest.raises(ExceptionGroup) as caught:
        several() >> pool
    assert [type(each) for each in caught.value.exceptions] == [ValueError, KeyError]


def test_a_pool_may_be_opened_in_a_task(pool: SyncPool) -> None:
    @compute
    def nested() -> int:
        with Pool(console="silent") as inner:
            return inner.run(compute(squared)(3))

    assert nested() >> pool == 9
