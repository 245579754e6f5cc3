"""What a setup makes is there once in each process, for every kind of call, and its errors are typed."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pickle
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from outrider import (
    InstanceInfo,
    Local,
    NotACall,
    Plugin,
    Pool,
    SetupFailed,
    SpecError,
    TaskKilled,
    Worker,
    compute,
    integrations,
)
from outrider.engine.api.task_options import Options
from outrider.engine.node.call import Interrupted
from outrider.engine.node.worker import raise_in
from outrider.engine.serialization import program

pytestmark = pytest.mark.anyio


class Model:
    def __init__(self) -> None:
        self.process, self.calls = os.getpid(), 0


@compute(setup=Model)
def use(model: Model, add: int = 0) -> tuple[int, int, int]:
    """The process that made it, the process that uses it, and for which time."""
    model.calls += 1
    return model.process, os.getpid(), model.calls + add


RANDOM = random.Random(5)


class Dice:
    def __init__(self) -> None:
        self.first = RANDOM.random()

    def roll(self) -> float:
        return RANDOM.random()


@compute(setup=Dice)
def roll(dice: Dice, _: int) -> tuple[float, float, float]:
    return dice.first, dice.roll(), RANDOM.random()


@pytest.mark.filterwarnings("ignore:.*random number generator")
async def test_tasks_draw_other_random_numbers_than_their_setup_and_each_other(pool: Pool) -> None:
    rolls = [await pool.run(roll(number)) for number in range(4)]
    assert {first for first, _, _ in rolls} == {random.Random(5).random()}, "the same in each process and run"
    assert len({number for _, *numbers in rolls for number in numbers} | {rolls[0][0]}) == 9


async def test_each_process_has_its_own_once(pool: Pool) -> None:
    first = await pool.broadcast(use())
    second = await pool.broadcast(use(add=10))
    assert [made for made, _, _ in first] == [used for _, used, _ in first] == [made for made, _, _ in second]
    assert len({made for made, _, _ in first}) == 4
    assert [calls for *_, calls in second] == [calls + 11 for *_, calls in first]


async def test_every_kind_of_call_is_given_it(pool: Pool) -> None:
    @compute(setup=lambda: "state")
    async def later(state: str, x: int) -> tuple[str, int]:
        return state, x

    @compute(setup=lambda: "state")
    def rows(state: str, count: int) -> Iterator[tuple[str, int]]:
        yield from ((state, n) for n in range(count))

    @compute(setup=lambda: "state")
    async def arows(state: str, count: int) -> AsyncIterator[tuple[str, int]]:
        for n in range(count):
            yield state, n

    @compute(setup=lambda: 100)
    def total(base: int, items: Iterator[int]) -> int:
        return base + sum(items)

    @compute(setup=lambda: 100)
    def plus(base: int, x: int) -> int:
        return base + x

    @compute(setup=lambda: 100, timeout=60)
    def alone(base: int, x: int) -> int:
        return base + x

    assert await pool.run(later(3)) == ("state", 3)
    assert [each async for each in pool.stream(rows(3))] == [("state", n) for n in range(3)]
    assert [each async for each in pool.stream(arows(3))] == [("state", n) for n in range(3)]
    assert await pool.run(total(iter([1, 2]))) == 103
    assert await pool.map(plus, range(200)) == [100 + n for n in range(200)]
    assert await pool.map(alone, range(5)) == [100 + n for n in range(5)]
    assert await pool.map(later, range(5)) == [("state", n) for n in range(5)]
    outcomes = await pool.map(plus, [1, "two", 3], errors="return")
    assert [each.value for each in outcomes] == [101, None, 103]


class Doubled(Plugin):
    """Doubles what the function returns, of whichever kind it is."""

    name = "doubled"

    def wrap(self, function: Callable[..., Any], info: InstanceInfo) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def items(*args: Any) -> Iterator[Any]:
                yield from (2 * each for each in function(*args))

            return items

        @functools.wraps(function)
        def value(*args: Any) -> Any:
            return 2 * function(*args)

        return value


async def test_what_plugins_wrap_around_the_function_is_outside_of_it(pool: Pool) -> None:
    @compute(setup=lambda: 100)
    @integrations.using(Doubled())
    def plus(base: int, x: int) -> int:
        return base + x

    @compute(setup=lambda: 100)
    @integrations.using(Doubled())
    def rows(base: int, count: int) -> Iterator[int]:
        yield from range(base, base + count)

    assert await pool.run(plus(1)) == 202
    assert await pool.map(plus, range(50)) == [2 * (100 + n) for n in range(50)]
    assert [each async for each in pool.stream(rows(3))] == [200, 202, 204]


async def test_functions_with_the_same_setup_share_what_it_made(pool: Pool) -> None:
    @compute(setup=Model)
    def other(model: Model) -> int:
        return id(model)

    @compute(setup=Model)
    def another(model: Model) -> int:
        return id(model)

    assert await pool.run(other(), on=1) == await pool.run(another(), on=1)


async def test_it_is_made_again_in_a_new_process(pool: Pool) -> None:
    @compute(setup=os.getpid)
    def dies(process: int, now: bool) -> int:
        if now:
            os._exit(1)
        return process

    before = await pool.run(dies(False), on=2)
    with pytest.raises(TaskKilled):
        await pool.run(dies(True), on=2)
    after = await pool.run(dies(False), on=2)
    assert before != after


async def test_what_it_raises_is_typed_and_the_next_call_tries_again(pool: Pool, tmp_path: Path) -> None:
    def load() -> str:
        return (tmp_path / "model").read_text()

    @compute(setup=load)
    def words(model: str, _item: int = 0) -> int:
        return len(model.split())

    with pytest.raises(SetupFailed, match=r"the setup of words on node \d .*FileNotFoundError") as failed:
        await pool.run(words(), on=1)
    assert isinstance(failed.value.__cause__, FileNotFoundError)
    assert failed.value.node in range(4)
    with pytest.raises(SetupFailed):
        await pool.map(words, range(50), errors="return")
    (tmp_path / "new").write_text("two words")
    (tmp_path / "new").rename(tmp_path / "model")  # a copy of an item may still be at its setup, and reads all or none
    assert await pool.run(words(), on=1) == 2
    assert await pool.map(words, range(50)) == [2] * 50


async def test_threads_share_one(tmp_path: Path) -> None:
    def load() -> int:
        with (tmp_path / "loaded").open("x"):  # a second time it would be there
            return threading.get_ident()

    @compute(setup=load)
    def use_it(model: int, n: int) -> int:
        return model

    async with Pool(provider=Local(), worker=Worker(4, kind="thread"), console="silent") as pool:
        assert len(set(await pool.gather(*(use_it(n) for n in range(8))))) == 1


BEGAN, GO = threading.Event(), threading.Event()  # each test joins its threads


def wait_for_go() -> str:
    BEGAN.set()
    assert GO.wait(60)
    return "made"


@pytest.fixture
def _nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_states", {})
    BEGAN.clear()
    GO.clear()


@pytest.mark.usefixtures("_nothing_made")
def test_a_thread_that_waits_for_the_setup_of_another_can_be_ended_alone() -> None:
    setup = pickle.dumps(wait_for_go)
    entered, ended = threading.Event(), threading.Event()

    def wait() -> None:
        try:
            entered.set()
            program._set_up(setup)
        except Interrupted:
            ended.set()

    making, waiting = threading.Thread(target=program._set_up, args=(setup,)), threading.Thread(target=wait)
    try:
        making.start()
        assert BEGAN.wait(60)
        waiting.start()
        assert entered.wait(60)
        assert waiting.ident is not None
        raise_in(waiting.ident)
        assert ended.wait(60)
    finally:
        GO.set()
        making.join()
        waiting.join()
    assert program._set_up(setup) == "made"


@pytest.mark.usefixtures("_nothing_made")
def test_a_setup_does_not_wait_for_another_one() -> None:
    making = threading.Thread(target=program._set_up, args=(pickle.dumps(wait_for_go),))
    other = threading.Thread(target=program._set_up, args=(pickle.dumps(dict),))
    try:
        making.start()
        assert BEGAN.wait(60)
        other.start()
        other.join(60)
        assert not other.is_alive()
    finally:
        GO.set()
        making.join()
        other.join()


def test_it_runs_here_too_once() -> None:
    made: list[int] = []

    @compute(setup=lambda: made.append(1) or len(made))
    def count(state: int, x: int) -> tuple[int, int]:
        return state, x

    assert (count.local(1), count.local(2)) == ((1, 1), (1, 2))
    assert made == [1]


def test_arguments_are_checked_without_it() -> None:
    with pytest.raises(TypeError):
        use(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        use(mode=1)  # type: ignore[call-arg]


async def coroutine() -> int:
    return 1


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (5, "takes a plain function"),
        (use, "takes a plain function"),
        (coroutine, "a plain `def`"),
        (generator, "a plain `def`"),
        (lambda path: path, "without arguments"),
    ],
)
def test_a_setup_that_cannot_work_is_refused(setup: Any, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        compute(setup=setup)


def test_arguments_may_be_bound_and_options_changed() -> None:
    setup = functools.partial(int, "5")
    function = compute(setup=setup, timeout=3)(lambda state: state)
    assert function.with_(timeout=4).options == Options(timeout_s=4, setup=setup)
    assert function.with_(timeout=4).local() == 5


def test_a_class_is_still_no_function() -> None:
    with pytest.raises(NotACall):
        compute(Model)


class AsyncClient:
    """Bound to the event loop of its first use, as HTTP sessions are."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def request(self) -> None:
        async with self.lock:
            await asyncio.sleep(0)


@compute(setup=AsyncClient)
async def request(client: AsyncClient, n: int) -> int:
    await asyncio.gather(client.request(), client.request())
    return n


@compute(setup=AsyncClient)
async def request_each(client: AsyncClient, count: int) -> AsyncIterator[int]:
    for n in range(count):
        await asyncio.gather(client.request(), client.request())
        yield n


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_client_that_is_bound_to_a_loop_serves_all_calls(kind: Literal["process", "thread"]) -> None:
    worker = Worker(3 if kind == "thread" else 1, kind=kind)
    async with Pool(provider=Local(), worker=worker, console="silent") as pool:
        assert [*await pool.gather(*(request(n) for n in range(9)))] == [*range(9)]
        assert [n async for n in pool.stream(request_each(3))] == [0, 1, 2]
        assert [n async for n in pool.map(request, range(9))] == [*range(9)]
