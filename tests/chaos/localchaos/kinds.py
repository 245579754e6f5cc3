"""The kinds of calls in a life, and the answer that each must give."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from outrider import Pool, SerializationError, TaskFailed, TaskKilled, TaskStopped, TaskTimeout, gather

from . import tasks, worlds
from .plan import Life


class WrongError(Exception):
    """A value that it should not have been, or an end that it should not have come to."""


@dataclass
class Ground:
    """Where one call is made. ``number`` is unique in its life."""

    pool: Pool
    dice: Random
    folder: Path
    life: Life
    number: int

    def path(self, what: str) -> Path:
        return self.folder / f"{what}-{self.number}"


Kind = Callable[[Ground], Awaitable[None]]


def same(got: object, wanted: object) -> None:
    if got != wanted:
        raise WrongError(f"{_short(got)} instead of {_short(wanted)}")


async def plain(ground: Ground) -> None:
    x = ground.dice.randrange(10**6)
    same(await ground.pool.run(tasks.square(x)), x * x)


async def slow(ground: Ground) -> None:
    x = ground.dice.randrange(10**6)
    same(await ground.pool.run(tasks.slow_square(x, ground.dice.uniform(0.1, 3.0))), x * x)


async def placed(ground: Ground) -> None:
    x = ground.dice.randrange(10**6)
    on = ground.dice.randrange(ground.life.nodes)
    same(await ground.pool.run(tasks.square(x), on=on), x * x)


async def mapped(ground: Ground) -> None:
    items = range(ground.dice.randrange(1, 2000))
    same(await ground.pool.map(tasks.square, items), [x * x for x in items])


async def mapped_slowly(ground: Ground) -> None:
    items = range(ground.dice.randrange(1, 30))
    got = [value async for value in ground.pool.map(_slowly, items, limit=8, ordered=False)]
    same(sorted(got), [x * x for x in items])


def _slowly(x: int) -> int:
    time.sleep(0.05)
    return x * x


async def broadcast(ground: Ground) -> None:
    """One world: every rank once, one head."""
    got = await ground.pool.broadcast(tasks.place.with_(retries=tasks.LOSSES)())
    same([rank for rank, *_ in got], list(range(ground.life.nodes)))
    same({world for _, world, *_ in got}, {ground.life.nodes})


async def world(ground: Ground) -> None:
    steps = ground.dice.randrange(5, 80)
    got = await ground.pool.broadcast(worlds.adds_up(steps, ground.dice.choice((0.0, 0.02))))
    value = worlds.expected(steps, ground.life.nodes)
    same(got, [(rank, value) for rank in range(ground.life.nodes)])


async def training(ground: Ground) -> None:
    steps, marks = ground.dice.randrange(10, 60), ground.path("marks")
    marks.mkdir()
    got = await ground.pool.broadcast(worlds.trains(f"run-{ground.number}", steps, 0.02, str(marks)))
    value = worlds.expected(steps, ground.life.nodes)
    same(got, [(rank, value) for rank in range(ground.life.nodes)])


async def large_argument(ground: Ground) -> None:
    data = tasks.pattern(ground.number, ground.dice.choice((10_000, 200_000, 5_000_000)))
    same(await ground.pool.run(tasks.digest(data)), tasks.digest.local(data))


async def large_result(ground: Ground) -> None:
    size = ground.dice.choice((10_000, 200_000, 5_000_000))
    got = await ground.pool.run(tasks.blob(ground.number, size))
    same(tasks.digest.local(got), tasks.digest.local(tasks.pattern(ground.number, size)))


async def large_both(ground: Ground) -> None:
    """Many at once: each takes descriptors at both ends."""
    data = [tasks.pattern(each, 200_000) for each in range(ground.dice.randrange(2, 40))]
    got = await ground.pool.gather(*[tasks.turned(each) for each in data])
    same([tasks.digest.local(each) for each in got], [tasks.digest.local(each[::-1]) for each in data])


async def flood(ground: Ground) -> None:
    """More at once than small limits have descriptors for, and each of them has its answer."""
    count = ground.dice.randrange(100, 300)
    jobs = [ground.pool.submit(tasks.blob(each, 100_000)) for each in range(count)]
    try:
        for each, job in enumerate(jobs):
            same(tasks.digest.local(await job), tasks.digest.local(tasks.pattern(each, 100_000)))
    finally:
        for job in jobs:
            job.cancel()


async def stream_out(ground: Ground) -> None:
    count = ground.dice.randrange(1, 300)
    async with aclosing(ground.pool.stream(tasks.counted(count))) as values:
        same([value async for value in values], [3 * number for number in range(count)])


async def stream_large(ground: Ground) -> None:
    count = ground.dice.randrange(1, 12)
    async with aclosing(ground.pool.stream(tasks.pieces(count, 300_000))) as values:
        got = [tasks.digest.local(value) async for value in values]
    same(got, [tasks.digest.local(tasks.pattern(number, 300_000)) for number in range(count)])


async def stream_left(ground: Ground) -> None:
    """The caller has seen enough: the generator is ended."""
    async with aclosing(ground.pool.stream(tasks.counted(10**6))) as values:
        same([await anext(values) for _ in range(5)], [0, 3, 6, 9, 12])


async def stream_in(ground: Ground) -> None:
    count = ground.dice.randrange(1, 300)
    same(await ground.pool.run(tasks.total(iter(range(count)))), sum(range(count)))


async def stream_both(ground: Ground) -> None:
    count = ground.dice.randrange(1, 200)

    async def numbers() -> AsyncIterator[int]:
        for number in range(count):
            yield number

    fed: Any = numbers()
    async with aclosing(ground.pool.stream(tasks.doubled(fed))) as values:
        same([value async for value in values], [2 * number for number in range(count)])


async def gathered(ground: Ground) -> None:
    count = ground.dice.randrange(1, 40)
    same(await ground.pool.gather(*[tasks.square(x) for x in range(count)]), tuple(x * x for x in range(count)))


async def gathered_with_error(ground: Ground) -> None:
    calls: list[Any] = [tasks.slow_square(1, 5.0), tasks.raises(f"in {ground.number}"), tasks.square(3)]
    await _expected(ground.pool.gather(*calls), tasks.Expected)


async def gathered_as_ready(ground: Ground) -> None:
    count = ground.dice.randrange(1, 20)
    async with aclosing(ground.pool.stream_group(gather(*map(tasks.square, range(count)), stream=True))) as values:
        same(sorted([value async for value in values]), [x * x for x in range(count)])


async def submitted(ground: Ground) -> None:
    jobs = [ground.pool.submit(tasks.square(x)) for x in range(ground.dice.randrange(1, 100))]
    same([await job for job in jobs], [x * x for x in range(len(jobs))])


async def cancelled(ground: Ground) -> None:
    job = ground.pool.submit(tasks.slow_square(3, 30.0))
    await asyncio.sleep(ground.dice.uniform(0.0, 1.0))
    job.cancel()
    try:
        same(await job, "what was cancelled has no result")
    except TaskStopped:
        pass
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise


async def given_up(ground: Ground) -> None:
    """Whoever waits for it is cancelled."""
    try:
        async with asyncio.timeout(ground.dice.uniform(0.0, 1.0)):
            same(await ground.pool.run(tasks.slow_square(3, 30.0)), "it cannot be ready")
    except TimeoutError as error:
        if isinstance(error, TaskTimeout):
            raise


async def timed_out(ground: Ground) -> None:
    await _expected(ground.pool.run(tasks.too_long(20.0)), TaskTimeout)


async def impatient(ground: Ground) -> None:
    """It waits for a slot no longer than it likes; either end is right."""
    x = ground.dice.randrange(10**6)
    try:
        same(await ground.pool.run(tasks.impatient(x)), x * x)
    except TimeoutError as error:
        same(type(error).__name__, "QueueTimeout")


async def at_most_once(ground: Ground) -> None:
    mark = str(ground.path("once"))
    same(await ground.pool.run(tasks.once(mark, ground.dice.uniform(0.0, 2.0))), mark)


async def restarted(ground: Ground) -> None:
    mark = str(ground.path("second"))
    same(await ground.pool.run(tasks.second_time(mark)), mark)


async def raising(ground: Ground) -> None:
    text = f"raised by {ground.number}"
    error = await _expected(ground.pool.run(tasks.raises(text)), tasks.Expected)
    same(error.args, (text, 42))


async def with_child(ground: Ground) -> None:
    same(await ground.pool.run(tasks.with_child(ground.dice.uniform(0.2, 3.0))), 0)


async def leaving_child(ground: Ground) -> None:
    same(await ground.pool.run(tasks.leaves_child(600.0)), 0)


async def writing(ground: Ground) -> None:
    size = ground.dice.choice((1000, 300_000))
    same(await ground.pool.run(tasks.writes(size)), size)


async def watchful(ground: Ground) -> None:
    same(await ground.pool.run(tasks.watchful(100)), 100)


async def rude(ground: Ground) -> None:
    """A task that behaves badly ends by a typed error, or well; and the next one is none the worse."""
    call, ends, returns = ground.dice.choice(_RUDE)
    try:
        value = await ground.pool.run(call())
    except ends:
        return
    same(value, f"an error of {[each.__name__ for each in ends]}" if returns is _NOTHING else returns)


_NOTHING = object()


def _rude() -> Iterator[tuple[Callable[[], Any], tuple[type[BaseException], ...], object]]:
    """Each with the errors that it may end by, and what it may return."""
    yield partial(tasks.exits, 0), (TaskKilled,), _NOTHING
    yield partial(tasks.leaves, 0), (), None  # as a script that exits well
    yield partial(tasks.exits, 3), (TaskKilled,), _NOTHING
    yield partial(tasks.leaves, 3), (TaskKilled, TaskFailed, SystemExit), _NOTHING
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
        yield partial(tasks.signals_itself, int(number)), (TaskKilled,), _NOTHING
    yield tasks.breaks_memory, (TaskKilled,), _NOTHING
    yield tasks.closes_everything, (TaskKilled,), 1
    yield tasks.returns_twice, (), 1
    yield tasks.removes_its_folder, (), 1
    yield tasks.lowers_its_limits, (), 1
    yield tasks.unpicklable, (SerializationError, TaskFailed), _NOTHING
    yield tasks.stands_still, (TaskTimeout,), _NOTHING
    yield tasks.ignores_signals, (TaskTimeout,), _NOTHING


_RUDE = tuple(_rude())


async def _expected(waiting: Awaitable[object], kind: type[BaseException]) -> BaseException:
    try:
        value = await waiting
    except kind as error:
        if isinstance(error, TaskStopped):
            raise
        return error
    raise WrongError(f"{_short(value)} instead of {kind.__name__}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        plain, slow, placed, mapped, mapped_slowly, broadcast, world, training, large_argument, large_result,
        large_both, flood, stream_out, stream_large, stream_left, stream_in, stream_both, gathered, gathered_with_error,
        gathered_as_ready, submitted, cancelled, given_up, timed_out, impatient, at_most_once, restarted, raising,
        with_child, leaving_child, writing, watchful, rude,
    )
}  # fmt: skip
