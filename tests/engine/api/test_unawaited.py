"""Coroutines that nobody awaits: their `repr` and Python's warning contain the line to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from outrider import Pool, Ref, compute


@compute
def f(x: int) -> int:
    return x


CURES: dict[str, tuple[Callable[[Pool], Coroutine[Any, Any, Any]], str]] = {
    "run": (lambda pool: pool.run(f(1)), "await pool.run(call), or await (call >> pool)"),
    "broadcast": (lambda pool: pool.broadcast(f(1)), "await pool.broadcast(call), or await (call @ pool)"),
    "gather": (lambda pool: pool.gather(f(1), f(2)), "await pool.gather(*calls)"),
    "run_group": (lambda pool: pool.run_group(f(1) & f(2)), "await ((a & b) >> pool)"),
    "put": (lambda pool: pool.put(1), "await pool.put(value)"),
    "fetch": (lambda pool: pool.fetch("*"), "await pool.fetch(pattern)"),
    "push": (lambda pool: pool.push("file"), "await pool.push(path)"),
    "stacks": (lambda pool: pool.stacks(), "await pool.stacks()"),
    "open": (lambda pool: pool.open(), "await pool.open()"),
    "close": (lambda pool: pool.close(), "await pool.close()"),
}


@pytest.mark.parametrize("verb", CURES)
def test_forgotten_await_is_named(verb: str) -> None:
    call, code = CURES[verb]
    forgotten = call(Pool())
    assert code in repr(forgotten)
    assert inspect.iscoroutine(forgotten)  # anyio's task groups take no other awaitable
    with pytest.warns(RuntimeWarning, match=rf"{re.escape(code)}\)' was never awaited"):
        del forgotten


def test_every_coroutine_of_users_names_its_await() -> None:
    public = {
        f"{kind.__name__}.{name}": function
        for kind in (Pool, Ref)
        for name, function in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    of_the_engine = {"Pool.call_off", "Pool.leave_opening"}  # for `SyncPool`
    unnamed = {name for name, function in public.items() if "to run it" not in function.__qualname__}
    assert unnamed == of_the_engine
    assert len(public) == len(CURES) + len(of_the_engine) + 1  # and `Ref.get`
