"""Items of a map that fail: the first one's error names it and ends the others, or each item gives its own outcome."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from outrider import ItemOutcome, Local, NodeLost, Pool, SerializationError, TaskKilled, TaskTimeout, compute
from outrider.errors import NotACall

pytestmark = pytest.mark.anyio


def item(n: int) -> int:
    if n == 3:
        raise ValueError("bad luck")
    return 10 * n


def notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


async def test_an_error_names_its_item(pool: Pool) -> None:
    with pytest.raises(ValueError, match="bad luck") as ordered:
        await pool.map(item, range(10))
    assert "item 3 of the map, item(3)" in notes(ordered.value)
    with pytest.raises(ValueError, match="bad luck") as unordered:
        await pool.map(item, [0, 1, 3], ordered=False)
    assert "item 2 of the map, item(3)" in notes(unordered.value)


async def test_an_error_ends_the_other_items(pool: Pool, tmp_path: Path) -> None:
    @compute(timeout=60)  # an item to a task
    def waits(n: int) -> None:
        if n == 0:
            while not (tmp_path / "1").exists():
                time.sleep(0.005)
            raise ValueError("the first")
        (tmp_path / str(n)).touch()
        threading.Event().wait()

    with pytest.raises(ValueError, match="the first"):
        await pool.map(waits, range(4))
    assert len(await pool.gather(*(where() for _ in range(4)))) == 4  # each slot is free again


@compute
def where() -> int:
    return os.getpid()


async def test_every_item_gives_its_outcome(pool: Pool) -> None:
    outcomes = await pool.map(item, range(100), errors="return")
    assert [each.index for each in outcomes] == list(range(100))
    assert [each.value for each in outcomes if each.error is None] == [10 * n for n in range(100) if n != 3]
    (failed,) = (each for each in outcomes if each.error is not None)
    assert failed.index == 3
    assert failed.value is None
    assert "item 3 of the map, item(3)" in notes(failed.error or ValueError())
    with pytest.raises(ValueError, match="bad luck"):
        failed.result()
    assert outcomes[4].result() == 40


async def test_outcomes_come_as_they_are_ready_and_of_async_functions(pool: Pool) -> None:
    @compute
    async def picky(n: int) -> int:
        return item(n)

    seen = {each.index: each async for each in pool.map(picky, range(50), errors="return", ordered=False)}
    assert sorted(seen) == list(range(50))
    assert [index for index, each in seen.items() if each.error] == [3]


async def test_an_item_that_kills_its_process_or_cannot_travel_keeps_no_other_from_its_outcome(pool: Pool) -> None:
    def harmful(what: Any) -> Any:
        match what:
            case "exit":
                os._exit(7)
            case "lock":
                return threading.Lock()
            case _:
                return what

    items = [*range(30), "exit", *range(30), "lock", *range(30), threading.Lock(), *range(30)]
    outcomes = await pool.map(harmful, items, errors="return")
    failed = {each.index: each.error for each in outcomes if each.error is not None}
    assert [type(error) for error in failed.values()] == [TaskKilled, SerializationError, SerializationError]
    assert [items[index] for index in failed][:2] == ["exit", "lock"]
    assert [each.value for each in outcomes if each.error is None] == [n for n in items if isinstance(n, int)]
    assert all("of the map, harmful(" in notes(error) for error in failed.values())


async def test_an_item_that_cannot_be_pickled_is_named_and_raised_in_its_place(pool: Pool) -> None:
    seen = []
    with pytest.raises(SerializationError, match="cannot be pickled") as raised:
        async for each in pool.map(repr, [1, 2, threading.Lock(), 4]):
            seen.append(each)  # noqa: PERF401  what came before the error is kept
    assert seen == ["1", "2"]
    assert "item 2 of the map, repr(<unlocked _thread.lock" in notes(raised.value)


async def test_an_item_that_is_a_call_which_has_not_run_is_named_and_is_that_items_error(pool: Pool) -> None:
    items = [1, 2, compute(item)(7), 4]
    with pytest.raises(NotACall, match="await it first") as raised:
        await pool.map(repr, items)
    assert "item 2 of the map" in notes(raised.value)
    outcomes = await pool.map(repr, items, errors="return")
    assert [outcome.value for outcome in outcomes] == ["1", "2", None, "4"]
    assert type(outcomes[2].error) is NotACall


async def test_a_task_of_several_items_that_dies_says_which_they_were(pool: Pool) -> None:
    def dies(n: int) -> int:
        return n if n < 200 else os._exit(7)

    with pytest.raises(TaskKilled) as raised:
        await pool.map(dies, range(1000))
    assert "of the map" in notes(raised.value)


async def test_an_item_that_may_not_be_retried_is_alone_in_its_task_and_begins_once(pool: Pool, tmp_path: Path) -> None:
    @compute(retry="never")
    def once(n: int) -> int:
        with (tmp_path / str(n)).open("x"):
            return n if n != 20 else os._exit(1)

    outcomes = await pool.map(once, range(40), errors="return")
    assert [each.index for each in outcomes if each.error] == [20]
    assert isinstance(outcomes[20].error, TaskKilled)


async def test_a_timeout_is_its_items_alone(pool: Pool) -> None:
    @compute
    def slow(n: int) -> int:
        if n == 2:
            threading.Event().wait()
        return n

    for timeout_s in (0.3, 3.0, 30.0):  # on a busy computer an item that does nothing may take longer than the first
        outcomes = await pool.map(slow.with_(timeout=timeout_s), range(5), errors="return")
        found = [type(each.error) for each in outcomes]
        if found == [*[type(None)] * 2, TaskTimeout, *[type(None)] * 2]:
            break
    else:
        pytest.fail(f"{found}")


async def test_what_the_items_themselves_raise_is_raised(pool: Pool) -> None:
    def items() -> Any:
        yield 1
        raise LookupError("no more items")

    with pytest.raises(LookupError, match="no more items"):
        await pool.map(item, items(), errors="return")


async def test_an_item_whose_node_is_lost_has_that_for_its_outcome() -> None:
    @compute(retry="never")
    def ends_its_node(n: int) -> int:
        if n == 1:
            os.kill(os.getppid(), 9)
            threading.Event().wait()
        return n

    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        outcomes = await pool.map(ends_its_node, range(4), errors="return")
    assert isinstance(outcomes[1].error, NodeLost)
    assert "item 1 of the map" in notes(outcomes[1].error)


def test_a_pool_without_async_gives_outcomes_too() -> None:
    with Pool(provider=Local(), console="silent") as pool:
        outcomes: list[ItemOutcome[int]] = list(pool.map(item, range(5), errors="return"))
        assert [each.error is None for each in outcomes] == [True, True, True, False, True]
        with pytest.raises(ValueError, match="errors takes 'raise' or 'return'"):
            pool.map(item, range(5), errors="ignore")  # type: ignore[call-overload]
