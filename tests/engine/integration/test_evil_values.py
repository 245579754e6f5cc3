"""Values whose own code raises as they are sent, told of or taken: their caller hears of it, and the pool goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from outrider import Local, NotACall, Pool, SerializationError, SyncPool, TaskFailed, compute


@compute
def double(x: Any) -> Any:
    return x + x


@pytest.fixture(scope="module")
def pool() -> Iterator[SyncPool]:
    with Pool(provider=Local(), console="silent", run=False) as pool:
        yield pool
        assert double(2) >> pool == 4


def _exits() -> None:
    raise SystemExit(9)


class ExitsWhereItArrives(Exception):
    def __reduce__(self) -> Any:
        return _exits, ()


class ExitsWhereItIsSent:
    def __reduce__(self) -> Any:
        raise SystemExit(9)


@compute
def gives(how: str) -> Any:
    if how == "raised":
        raise ExitsWhereItArrives
    return ExitsWhereItArrives()


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("raised", TaskFailed, "cannot be unpickled here: SystemExit: 9"),
        ("returned", SerializationError, r"The result of gives .* calls exit\(\) as it is unpickled"),
    ],
)
def test_exit_while_unpickling_is_an_error_of_the_call(
    pool: SyncPool, how: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gives(how) >> pool
    with pytest.raises(error, match=words):
        (gives(how) > pool).result()
    assert double(2) >> pool == 4


def test_what_exits_as_it_is_pickled_ends_its_caller_and_not_the_pool(pool: SyncPool) -> None:
    with pytest.raises(SystemExit, match="9"):
        double(ExitsWhereItIsSent()) >> pool
    assert double(2) >> pool == 4


def test_map_of_results_that_exit_while_unpickling_raises(pool: SyncPool) -> None:
    with pytest.raises(SerializationError, match=r"calls exit\(\)"):
        list(pool.map(gives, ["returned"]))
    assert double(2) >> pool == 4


@dataclass(frozen=True)
class Frozen(Exception):
    why: str


class Secretive(Exception):
    @property
    def __notes__(self) -> Any:
        raise RuntimeError


class OfNoModule(Exception):
    pass


OfNoModule.__module__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Frozen, Secretive, OfNoModule])
def test_an_exception_comes_back_as_itself_whatever_its_class_refuses(pool: SyncPool, kind: type[Exception]) -> None:
    @compute
    def raises() -> None:
        raise kind("no")

    try:  # pytest.raises would do to it what the class refuses
        raises() >> pool
    except Exception as caught:  # noqa: BLE001
        told = type(caught).__name__, caught.args
    assert told == (kind.__name__, ("no",))


class ExitsWhereItIsTold(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


def test_an_exception_that_exits_as_it_is_told_ends_no_process(pool: SyncPool) -> None:
    @compute
    def raises() -> None:
        raise ExitsWhereItIsTold

    with pytest.raises(ExitsWhereItIsTold):
        raises() >> pool
    assert double(2) >> pool == 4


def test_what_no_operator_can_give_is_told(pool: SyncPool) -> None:
    @compute
    def compares() -> Any:
        return NotImplemented

    assert pool.run(compares()) is NotImplemented
    with pytest.raises(NotACall, match=r"write pool\.run\(compares\(\)\)"):
        compares() >> pool
