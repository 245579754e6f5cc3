"""What type checkers see of functions, pending calls and both pools. Checked by `make typecheck`, never run."""

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

from outrider import (
    ComputePool,
    Group,
    GroupStream,
    ItemOutcome,
    Job,
    Local,
    Pool,
    Ref,
    Secret,
    SyncPool,
    SyncRef,
    TaskStack,
    compute,
    gather,
    integrations,
    plugins,
    silent,
    stdout,
)
from outrider.engine.plugins.accelerate import Accelerate
from outrider.engine.plugins.keras import Keras
from outrider.engine.plugins.torch import Torch


@compute
def train(epochs: int, rate: float = 0.1) -> float:
    return epochs * rate


@compute(timeout=3, queue_timeout=2, deadline=9, retry="never", on_loss="fail", name="the name")
def named(x: int) -> str:
    return str(x)


@compute(stall=300, on_stall="restart")
def watched(x: int) -> str:
    return str(x)


@compute
async def fetch(url: str) -> bytes:
    return url.encode()


@compute(retries=1)
async def fetch_again(url: str) -> bytes:
    return url.encode()


@compute(keep=True)
def kept(x: int) -> bytes:
    return bytes(x)


@compute(keep=True, setup=lambda: 3, retries=1)
async def kept_too(factor: int, x: int) -> bytes:
    return bytes(factor * x)


class Table:
    @compute(keep=True)
    def rows(self, n: int) -> bytes:
        return bytes(n)


@compute
def rows(n: int) -> Iterator[int]:
    yield n


@compute
async def arows(n: int) -> AsyncIterator[str]:
    yield str(n)


@compute
def total(numbers: Iterator[int]) -> int:
    return sum(numbers)


@silent
@compute
@integrations.torch
@stdout(only="head")
def decorated(x: int) -> int:
    return x


@compute
@integrations.torch(backend="gloo")
@stdout(only=lambda info: info.rank == 1)
def decorated_too(x: int) -> int:
    return x


@compute
@integrations.keras("torch", seed=3)
@integrations.huggingface(Secret("hf_0123"))
@integrations.jax
def decorated_thrice(x: int) -> int:
    return x


assert_type(train.local(1), float)
assert_type(decorated_thrice.local(1), int)
assert_type(plugins.keras("jax"), Keras)
assert_type(plugins.accelerate(mixed_precision="bf16"), Accelerate)
assert_type(kept.local(1), bytes)
assert_type(Table().rows.local(1), bytes)
assert_type(rows.local(1), Iterator[int])
assert_type(arows.local(1), AsyncIterator[str])
assert_type(train.with_(timeout=1).local(1, rate=2), float)
assert_type(decorated.local(1), int)
assert_type(gather(train(1), named(2)), Group[float, str])
assert_type(gather(train(1), train(2), stream=True), GroupStream[float])
assert_type(plugins.torch(backend="gloo"), Torch)
assert_type(train(1) & named(2), Group[float, str])
assert_type(train(1) & named(2) & fetch("u"), Group[float, str, bytes])
assert_type(train(1) & (named(2) & fetch("u")), Group[float, str, bytes])


async def here() -> None:
    running: Coroutine[Any, Any, bytes] = fetch.local("u")
    assert_type(await running, bytes)


@compute(setup=dict[str, int], timeout=3)
def looked_up(table: dict[str, int], word: str, default: int = 0) -> int:
    return table.get(word, default)


def factor_of_all() -> float:
    return 1.5


@compute(setup=factor_of_all)
async def scaled(factor: float, x: float) -> str:
    return str(factor * x)


@compute(setup=factor_of_all)
def counted(factor: float, word: str) -> Iterator[str]:
    yield f"{word} {factor}"


def with_a_setup(pool: SyncPool) -> None:
    assert_type(looked_up("word", default=3) >> pool, int)
    assert_type(looked_up.local("word"), int)
    assert_type(scaled(2.0) >> pool, str)
    assert_type(list(pool.map(scaled, [1.0])), list[str])
    for each in counted("word") >> pool:
        assert_type(each, str)


class Model:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @compute
    def predict(self, x: int, *, rate: float = 1.0) -> float:
        return self.scale * x * rate

    @compute(timeout=3)
    async def apredict(self, x: int) -> str:
        return str(self.scale * x)

    @compute
    def steps(self, n: int) -> Iterator[int]:
        yield n

    @compute
    async def asteps(self, n: int) -> AsyncIterator[str]:
        yield str(n)

    @staticmethod
    @compute
    def plain(x: int) -> int:
        return x


def with_methods(pool: SyncPool, model: Model) -> None:
    assert_type(model.predict(1) >> pool, float)
    assert_type(model.predict(1, rate=0.5) @ pool, list[float])
    assert_type(Model.predict(model, 1) >> pool, float)
    assert_type(model.predict.local(1), float)
    assert_type(model.predict.with_(retries=0)(1) >> pool, float)
    assert_type(model.apredict(1) >> pool, str)
    assert_type(Model.plain(1) >> pool, int)
    assert_type(list(pool.map(model.predict, [1, 2])), list[float])
    for step in model.steps(3) >> pool:
        assert_type(step, int)
    for text in model.asteps(3) >> pool:
        assert_type(text, str)


async def with_an_async_pool() -> None:
    async with Pool(provider=Local(), nodes=4, plugins=[plugins.torch()]) as pool:
        assert_type(await pool.run(train(10)), float)
        assert_type(await (train(10) >> pool), float)
        assert_type(await (fetch("u") >> pool), bytes)
        assert_type(await (fetch_again("u") >> pool), bytes)
        assert_type(await (decorated(1) >> pool), int)
        assert_type(await (decorated_too(1) >> pool), int)
        assert_type(await (total(iter([1])) >> pool), int)
        assert_type(await pool.broadcast(named(1)), list[str])
        assert_type(await (named(1) @ pool), list[str])
        assert_type(named(1) > pool, Job[str])
        assert_type(await pool.stacks(), list[TaskStack])
        assert_type(await (named(1) > pool), str)
        assert_type(pool.submit(named(1)), Job[str])
        assert_type(await pool.gather(train(1), named(2)), tuple[float, str])
        assert_type(await pool.gather(rows(3), train(1)), tuple[AsyncGenerator[int, None], float])
        assert_type(await pool.gather(train(1), rows(3)), tuple[float, AsyncGenerator[int, None]])
        assert_type(await pool.gather(rows(3), arows(1)), tuple[AsyncGenerator[int, None], AsyncGenerator[str, None]])
        assert_type(await pool.gather(rows(1), rows(2), rows(3)), tuple[AsyncGenerator[int, None], ...])
        assert_type(await ((train(1) & named(2)) >> pool), tuple[float, str])
        assert_type(await ((train(1) & named(2) & fetch("u")) >> pool), tuple[float, str, bytes])
        assert_type(train(1) & named(2) > pool, Job[tuple[float, str]])
        assert_type(await (gather(train(1), named(2)) >> pool), tuple[float, str])
        async for row in rows(3) >> pool:
            assert_type(row, int)
        assert_type(await (rows(3) @ pool), list[AsyncGenerator[int, None]])
        assert_type(await (arows(3) @ pool), list[AsyncGenerator[str, None]])
        assert_type(await pool.broadcast(rows(3)), list[AsyncGenerator[int, None]])
        assert_type(await ((rows(3) & train(1)) >> pool), tuple[AsyncGenerator[int, None], float])
        assert_type(
            await ((train(1) & (arows(3) & rows(1)) & named(1)) >> pool),
            tuple[float, AsyncGenerator[str, None], AsyncGenerator[int, None], str],
        )
        assert_type((train(1) & named(2) & rows(3)) > pool, Job[tuple[float, str, AsyncGenerator[int, None]]])
        assert_type(await (gather(rows(3), train(1)) >> pool), tuple[AsyncGenerator[int, None], float])
        assert_type(await (gather(train(1), arows(3)) >> pool), tuple[float, AsyncGenerator[str, None]])
        assert_type(
            await (gather(rows(3), arows(1)) >> pool), tuple[AsyncGenerator[int, None], AsyncGenerator[str, None]]
        )
        assert_type(await (gather(rows(1), rows(2), rows(3)) >> pool), tuple[AsyncGenerator[int, None], ...])
        assert_type(gather(rows(3), train(1)) > pool, Job[tuple[AsyncGenerator[int, None], float]])
        assert_type(await (gather(rows(3), train(1), named(2)) >> pool), tuple[Any, ...] | Any)
        async for text in arows(3) >> pool:
            assert_type(text, str)
        async for result in gather(train(1), train(2), stream=True) >> pool:
            assert_type(result, float)
        async for score in pool.map(named, [1, 2], limit=64):
            assert_type(score, str)
        assert_type(await pool.map(named, [1, 2]), list[str])
        assert_type(await pool.map(train, [1, 2]), list[float])
        assert_type(await pool.map(train, [1, 2], errors="raise"), list[float])
        assert_type(await pool.map(train, [1, 2], errors="return", limit=8), list[ItemOutcome[float]])
        assert_type(await pool.map(int, ["1"]), list[int])
        assert_type(await pool.map(Path, ["a"]), list[Path])
        assert_type(await pool.map(str.upper, ["a"]), list[str])
        async for outcome in pool.map(len, ["a"], errors="return"):
            assert_type(outcome, ItemOutcome[int])
            assert_type(outcome.value, int | None)
            assert_type(outcome.result(), int)
        async for done in pool.as_completed(train(n) for n in range(3)):
            assert_type(done, float)
        async for told in pool.as_completed([named(1)], errors="return", limit=8):
            assert_type(told, ItemOutcome[str])
        async for item in pool.stream(rows(2)):
            assert_type(item, int)


def with_a_sync_pool() -> None:
    with ComputePool(provider=Local(), accelerator="A100", nodes=(2, 8)) as pool:
        assert_type(pool, SyncPool)
        assert_type(train(10) >> pool, float)
        assert_type(fetch("u") >> pool, bytes)
        assert_type(pool.run(train(10)), float)
        assert_type(named(1) @ pool, list[str])
        assert_type(pool.broadcast(named(1)), list[str])
        assert_type(named(1) > pool, Future[str])
        assert_type(pool.gather(train(1), named(2)), tuple[float, str])
        assert_type(pool.gather(train(1), train(2), train(3)), tuple[float, ...])
        assert_type(pool.gather(rows(3), train(1)), tuple[Iterator[int], float])
        assert_type(pool.gather(train(1), rows(3)), tuple[float, Iterator[int]])
        assert_type(pool.gather(rows(3), arows(1)), tuple[Iterator[int], Iterator[str]])
        assert_type(pool.gather(rows(1), rows(2), rows(3)), tuple[Iterator[int], ...])
        assert_type(watched(1) >> pool, str)
        assert_type(pool.stacks(), list[TaskStack])
        assert_type((train(1) & named(2)) >> pool, tuple[float, str])
        assert_type(gather(train(1), named(2), stream=False) >> pool, tuple[float, str])
        assert_type(gather(rows(3), train(1)) >> pool, tuple[Iterator[int], float])
        assert_type(gather(train(1), rows(3)) >> pool, tuple[float, Iterator[int]])
        assert_type(gather(rows(1), rows(2), rows(3)) >> pool, tuple[Iterator[int], ...])
        assert_type(gather(rows(3)) >> pool, tuple[Iterator[int], ...])
        assert_type(train(1) & named(2) > pool, Future[tuple[float, str]])
        for row in rows(3) >> pool:
            assert_type(row, int)
        assert_type(rows(3) @ pool, list[Iterator[int]])
        assert_type(pool.broadcast(arows(3)), list[Iterator[str]])
        assert_type((rows(3) & train(1)) >> pool, tuple[Iterator[int], float])
        assert_type((rows(3) & (train(1) & named(1))) >> pool, tuple[Iterator[int], float, str])
        assert_type((train(1) & rows(3)) > pool, Future[tuple[float, Iterator[int]]])
        for text in arows(3) >> pool:
            assert_type(text, str)
        for result in gather(train(1), train(2), stream=True) >> pool:
            assert_type(result, float)
        for done in pool.as_completed([train(1)], limit=2):
            assert_type(done, float)
        for told in pool.as_completed([train(1)], errors="return"):
            assert_type(told, ItemOutcome[float])
        for score in pool.map(named, [1, 2]):
            assert_type(score, str)
        for outcome in pool.map(named, [1, 2], errors="return"):
            assert_type(outcome, ItemOutcome[str])


async def results_that_stay(pool: Pool, sync: SyncPool) -> None:
    assert_type(await pool.run(kept(1)), Ref[bytes])
    assert_type(await (Table().rows(2) >> pool), Ref[bytes])
    assert_type(await pool.broadcast(kept_too(1)), list[Ref[bytes]])
    assert_type(kept(1) >> sync, SyncRef[bytes])
    assert_type(kept(1) @ sync, list[SyncRef[bytes]])
    assert_type(kept(1) > sync, Future[SyncRef[bytes]])
    assert_type(sync.run(kept(1)), SyncRef[bytes])
    assert_type(sync.submit(kept(1)), Future[SyncRef[bytes]])
    assert_type(sync.broadcast(kept(1)), list[SyncRef[bytes]])
    assert_type(sync.run(train(1), keep=True), SyncRef[float])
    assert_type(await (await pool.run(kept(1))).get(), bytes)
    assert_type(await kept_too.local(1), bytes)
    assert_type(await pool.run(named.with_(deadline=timedelta(minutes=1))(1)), str)
