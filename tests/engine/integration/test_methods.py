"""Methods under `@compute`: an object is an argument of its methods' calls, as Python has it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from types import MethodType
from typing import Any

import cloudpickle
import pytest

import outrider as sky


class Model:
    def __init__(self, scale: int) -> None:
        self.scale = scale

    @sky.compute
    def scaled(self, x: int, *, more: int = 0) -> int:
        return self.scale * x + more

    @sky.compute
    async def later(self, x: int) -> int:
        return self.scale * x

    @sky.compute
    def steps(self, n: int) -> Iterator[int]:
        yield from range(0, n * self.scale, self.scale)

    @sky.compute
    async def asteps(self, n: int) -> AsyncIterator[int]:
        for step in range(n):
            yield step * self.scale

    @sky.compute
    def total(self, numbers: Iterator[int]) -> int:
        return self.scale * sum(numbers)

    @classmethod
    @sky.compute
    def called(cls, text: str) -> str:
        return cls.__name__ + text

    @staticmethod
    @sky.compute
    def plain(x: int) -> int:
        return -x

    @sky.compute
    @staticmethod
    def plain_too(n: int) -> Iterator[int]:
        yield from range(n)

    @staticmethod
    @sky.compute(setup=dict[str, int])
    def kept(table: dict[str, int], word: str) -> int:
        return table.setdefault(word, len(table))

    @sky.compute(setup=dict[str, int])
    def broken(self, table: dict[str, int]) -> int:
        return len(table)


class Twice(Model):
    @sky.compute
    def scaled(self, x: int, *, more: int = 0) -> int:
        return 2 * super().scaled.local(x, more=more)


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    @sky.compute
    def use(self, x: object) -> object:
        return x


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.SyncPool]:
    with sky.Pool(provider=sky.Local(), nodes=2, console="silent") as pool:
        yield pool


def test_a_method_runs_with_its_object(pool: sky.SyncPool) -> None:
    model = Model(3)
    assert model.scaled(2) >> pool == 6
    assert Model.scaled(model, 2, more=1) >> pool == 7
    assert model.scaled(2) @ pool == [6, 6]
    assert (model.scaled(1) & model.scaled(2)) >> pool == (3, 6)
    assert model.later(2) >> pool == 6
    assert list(model.steps(3) >> pool) == [0, 3, 6]
    assert list(model.asteps(3) >> pool) == [0, 3, 6]
    assert model.total(iter([1, 2])) >> pool == 9
    assert model.scaled.with_(timeout=60)(2) >> pool == 6
    assert model.scaled.local(2) == 6
    assert Twice(3).scaled(2) >> pool == 12
    assert Twice(3).later(2) >> pool == 6


def test_a_map_calls_a_method_with_each_item(pool: sky.SyncPool) -> None:
    assert list(pool.map(Model(3).scaled, range(100))) == [3 * n for n in range(100)]
    assert list(pool.map(Model(3).later, [1])) == [3]
    with pytest.raises(TypeError) as failed:
        list(pool.map(Model(3).scaled, [None]))
    assert "item 0 of the map, scaled(None)" in failed.value.__notes__


def test_class_and_static_methods_run(pool: sky.SyncPool) -> None:
    assert Twice.called("!") >> pool == "Twice!"
    assert list(pool.map(Twice.called, "ab")) == ["Twicea", "Twiceb"]
    as_in_python_3_13 = MethodType(vars(Model)["called"].__func__, Twice)
    assert list(pool.map(as_in_python_3_13, "ab")) == ["Twicea", "Twiceb"]
    assert Model.plain(2) >> pool == -2
    assert Model(3).plain(2) >> pool == -2
    assert list(Model(3).plain_too(2) >> pool) == [0, 1]
    assert list(Model.plain_too.with_(timeout=60)(2) >> pool) == [0, 1]
    assert Model(3).kept("a") >> pool == 0


def test_a_method_of_an_object_is_an_argument_like_any_other(pool: sky.SyncPool) -> None:
    @sky.compute
    def apply(method: Any, x: int) -> object:
        return method.local(x)

    assert apply(Model(4).scaled, 2) >> pool == 8
    assert cloudpickle.loads(cloudpickle.dumps(Model(4).scaled)).local(2) == 8


def test_classes_of_main_and_of_functions_travel(pool: sky.SyncPool) -> None:
    class Local:
        def __init__(self, word: str) -> None:
            self.word = word

        @sky.compute
        def say(self, n: int) -> str:
            return self.word * n if isinstance(self, Local) else "another class"

    assert Local("a").say(2) >> pool == "aa"
    assert list(pool.map(Local("b").say, [1, 2])) == ["b", "bb"]


def test_an_object_that_cannot_be_pickled_is_named(pool: sky.SyncPool) -> None:
    with pytest.raises(sky.SerializationError, match=r"self\.lock of use cannot be pickled") as failed:
        Holder().use(1) >> pool
    assert failed.value.path == "self.lock"
    with pytest.raises(sky.SerializationError, match=r"self\.lock of use cannot be pickled"):
        list(pool.map(Holder().use, [1]))
    with pytest.raises(sky.SerializationError, match=r"args\[0\] of scaled cannot be pickled"):
        Model(1).scaled(threading.Lock()) >> pool  # type: ignore[arg-type]


def test_a_call_that_binds_nothing_is_refused_in_words() -> None:
    unlike: Any = Model
    with pytest.raises(TypeError, match=r"Model\.scaled\(\) missing 1 required positional argument: 'x'"):
        unlike.scaled(2)
    with pytest.raises(TypeError, match=r"takes 2 positional arguments but 3"):
        unlike(1).scaled(2, 3)
    with pytest.raises(sky.SpecError, match=r"Model\.broken is a method.*put @staticmethod above @compute"):
        Model(1).broken()
    with pytest.raises(sky.SpecError, match=r"Model\.broken is a method"):
        Model(1).broken.local()
    with pytest.raises(sky.NotACall, match="@classmethod goes above @compute"):
        sky.compute(classmethod(lambda cls: cls))  # type: ignore[call-overload]


def test_calls_and_methods_say_whose_they_are() -> None:
    shown = repr(Model(3).scaled(2))
    assert shown.startswith("<Model.scaled(<")
    assert "2) has not run" in shown
    assert repr(Model(3).scaled).startswith("<compute Model.scaled of <")
    assert repr(Model.scaled) == "<compute Model.scaled>"
