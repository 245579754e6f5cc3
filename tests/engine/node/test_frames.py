"""The locals of a task that has raised are freed at once, without Python's collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from outrider.engine.node.after_call import release_frames


class Large:
    made: list[weakref.ref[Large]]

    def __init__(self) -> None:
        self.made.append(weakref.ref(self))


def holds_itself() -> None:
    local = Large()
    error = ValueError("x")
    error.holder = error, local  # type: ignore[attr-defined]
    raise error


def in_a_local() -> None:
    local = Large()  # noqa: F841
    kept = ValueError("x")
    raise kept


def of_another_error() -> None:
    local = Large()  # noqa: F841
    try:
        raise KeyError("first")
    except KeyError as first:
        kept = first  # noqa: F841
    raise ValueError("second")


def cause() -> None:
    local = Large()  # noqa: F841
    try:
        in_a_local()
    except ValueError as error:
        kept = KeyError("y")
        raise kept from error


def context() -> None:
    try:
        in_a_local()
    finally:
        kept = KeyError("y")
        raise kept


def group() -> None:
    errors: list[Exception] = []
    for function in (in_a_local, cause):
        try:
            function()
        except Exception as error:  # noqa: BLE001
            errors.append(error)
    raise ExceptionGroup("all", errors)


def of_a_coroutine() -> None:
    async def fail() -> None:
        in_a_local()

    asyncio.run(fail())


def of_a_generator() -> None:
    def fail() -> Iterator[int]:
        kept = Large()  # noqa: F841
        error = ValueError("x")
        yield 1
        raise error

    list(fail())


@pytest.fixture(autouse=True)
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    Large.made = []
    yield
    gc.enable()


@pytest.mark.parametrize(
    "function", [in_a_local, of_another_error, cause, context, group, of_a_coroutine, of_a_generator]
)
def test_locals_are_freed(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception as error:  # noqa: BLE001
        assert any(each() is not None for each in Large.made)
        release_frames(error)
    assert Large.made
    assert [each() for each in Large.made if each() is not None] == []


def test_objects_of_the_error_itself_stay_with_it() -> None:
    with pytest.raises(ValueError, match="x") as caught:
        holds_itself()
    release_frames(caught.value)
    assert Large.made[0]() is caught.value.holder[1]  # type: ignore[attr-defined]


def test_errors_that_refer_to_each_other_are_released_once() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__context__ = other, one
    release_frames(one)


def test_generator_that_has_caught_the_error_goes_on() -> None:
    caught: list[Exception] = []

    def survivor() -> Iterator[str]:
        local = "local"
        try:
            in_a_local()
        except ValueError as error:
            caught.append(error)
        yield local
        yield local

    generator = survivor()
    assert next(generator) == "local"
    release_frames(caught[0])
    assert next(generator) == "local"
