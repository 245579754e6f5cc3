"""What a worker calls: the order of things around a user's function, and what becomes of its result."""

import asyncio
import gc
import os
import pickle
import sys
import traceback
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, ClassVar

import pytest

from outrider import InstanceInfo, Plugin, SerializationError, compute, integrations
from outrider.engine.node.context import LoadError
from outrider.engine.serialization.program import AsyncChunk, Chunk, Raised, build

journal: Any = ModuleType("outrider_test_journal")  # a module, so that copies of functions write to the same one
journal.log = []  # what happened, in order
sys.modules[journal.__name__] = journal


class Recorder(Plugin):
    def __init__(self, name: str = "recorder") -> None:
        self.name = name  # type: ignore[misc]

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        journal.log.append(f"env {self.name}")
        return {f"OF_{self.name.upper()}": str(info.rank)}

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        journal.log.append(f"enter {self.name}")
        try:
            yield
        finally:
            journal.log.append(f"leave {self.name}")


class Sign:
    """Says when it is unpickled, and what the environment was then."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _appeared, ()


def _appeared() -> Sign:
    journal.log.append(f"function unpickled, OF_RECORDER={os.environ.get('OF_RECORDER')}")
    return Sign()


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    journal.log.clear()


def arguments(*args: Any, **kwargs: Any) -> Any:
    def load() -> tuple[tuple[Any, ...], dict[str, Any]]:
        journal.log.append("arguments")
        return args, kwargs

    return load


def run(function: Any, *args: Any, plugins: tuple[Plugin, ...] = ()) -> Any:
    return pickle.loads(build(function, plugins))(arguments(*args))


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> Any:
    sign = Sign()

    @compute
    def function(x: int) -> int:
        assert sign is not None
        journal.log.append(f"call, OF_RECORDER={os.environ.get('OF_RECORDER')}")
        return x + 1

    return function


def test_environment_sessions_function_arguments_call_in_this_order(signed: Any) -> None:
    assert run(signed, 1, plugins=(Recorder(), Recorder("second"))) == 2

    assert journal.log == [
        "env recorder",
        "env second",
        "enter recorder",
        "enter second",
        "function unpickled, OF_RECORDER=0",
        "arguments",
        "call, OF_RECORDER=0",
        "leave second",
        "leave recorder",
    ]


class Waiting(Plugin):
    """A plugin whose ranks wait for each other, on hosts with one core each."""

    name: ClassVar[str] = "waiting"
    collective: ClassVar[bool] = True

    def session(self, info: InstanceInfo) -> AbstractContextManager[None]:
        journal.log.append(os.sched_getscheduler(0))
        return nullcontext()


@pytest.mark.parametrize(
    ("plugins", "world_size", "expected"),
    [
        ((Waiting(),), 2, [os.SCHED_BATCH, "arguments", os.SCHED_BATCH]),
        ((Waiting(),), 1, [os.SCHED_OTHER, "arguments", os.SCHED_OTHER]),
        ((Recorder(),), 2, ["env recorder", "enter recorder", "arguments", os.SCHED_OTHER, "leave recorder"]),
        ((), 2, ["arguments", os.SCHED_OTHER]),
    ],
)
def test_only_ranks_that_wait_for_each_other_are_scheduled_as_a_batch(
    monkeypatch: pytest.MonkeyPatch, plugins: tuple[Plugin, ...], world_size: int, expected: list[Any]
) -> None:
    @compute
    def policy() -> None:
        journal.log.append(os.sched_getscheduler(0))

    info = InstanceInfo(world_size=world_size, local_world_size=world_size)
    monkeypatch.setattr("outrider.engine.runtime.instance_info.instance_info", lambda: info)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    run(policy, plugins=plugins)

    assert journal.log == expected
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_the_environment_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_RECORDER", "mine")

    @compute
    def fail() -> str:
        raise ValueError(os.environ["OF_RECORDER"])

    with pytest.raises(ValueError, match="0"):
        run(fail, plugins=(Recorder(), Recorder("second")))

    assert os.environ["OF_RECORDER"] == "mine"
    assert "OF_SECOND" not in os.environ
    assert journal.log[-2:] == ["leave second", "leave recorder"]


def test_a_worker_unpickles_the_function_once(signed: Any) -> None:
    program = pickle.loads(build(signed))

    assert [program(arguments(i)) for i in range(3)] == [1, 2, 3]
    assert sum("unpickled" in line for line in journal.log) == 1


def test_a_functions_own_plugins_are_added_and_replace_the_pools() -> None:
    @compute
    @integrations.using(Recorder("own"), Recorder("shared"))
    def function() -> None: ...

    run(function, plugins=(Recorder("pool"), Recorder("shared")))

    assert [line for line in journal.log if line.startswith("env")] == ["env pool", "env own", "env shared"]


def test_coroutines_run_to_their_end() -> None:
    @compute
    async def add(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    assert run(add, 1) == 2


def test_a_coroutines_traceback_begins_with_the_users_frames() -> None:
    @compute
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("mine")

    @compute
    async def fail_later() -> AsyncIterator[int]:
        yield 1
        raise ValueError("mine")

    for function in (fail, fail_later):
        with pytest.raises(ValueError, match="mine") as caught:
            list(run(function) or ())
        assert not any("asyncio" in frame.filename for frame in traceback.extract_tb(caught.tb))


def test_generators_give_iterators_and_closing_them_is_prompt() -> None:
    @compute
    def rows(n: int) -> Iterator[int]:
        try:
            yield from range(n)
        finally:
            journal.log.append("closed")

    assert list(run(rows, 3)) == [0, 1, 2]
    journal.log.clear()
    items = run(rows, 3, plugins=(Recorder(),))
    assert next(items) == 0
    items.close()
    assert journal.log[-2:] == ["closed", "leave recorder"]


def test_async_generators_give_iterators_and_closing_them_is_prompt() -> None:
    @compute
    async def rows(n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                await asyncio.sleep(0)
                yield i
        finally:
            await asyncio.sleep(0)
            journal.log.append("closed")

    assert list(run(rows, 3)) == [0, 1, 2]
    journal.log.clear()
    items = run(rows, 3)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert journal.log[-1] == "closed"


def test_an_iterator_that_a_plain_function_returned_is_streamed() -> None:
    @compute
    def squares(n: int) -> Iterator[int]:
        return iter([i * i for i in range(n)])

    assert list(run(squares, 3)) == [0, 1, 4]


def test_exceptions_pass_through_as_they_are() -> None:
    @compute
    def stop() -> None:
        raise StopIteration(3)

    for plugins in ((), (Recorder(),)):
        with pytest.raises(StopIteration, match="3"):
            run(stop, plugins=plugins)


def test_a_function_that_cannot_be_unpickled_there_is_a_load_error(importable: ModuleType) -> None:
    program = pickle.loads(build(importable.double))
    del importable.double

    with pytest.raises(LoadError) as caught:
        program(arguments(1))

    assert isinstance(caught.value.__cause__, AttributeError)


def test_what_cannot_be_pickled_is_named_with_its_path() -> None:
    items = (number for number in range(3))

    @compute
    def first() -> int:
        return next(items)

    with pytest.raises(SerializationError, match=r"its variable 'items'.*") as caught:
        build(first)
    assert (caught.value.path, caught.value.kind) == ("first (its variable 'items')", "generator")


def test_a_trivial_function_is_small(importable: ModuleType) -> None:
    @compute
    def nothing() -> None: ...

    assert len(build(importable.double)) < 250
    assert len(build(nothing)) < 1000


class Doubling(Plugin):
    """Doubles what the function returns."""

    name = "doubling"

    def wrap(self, function: Any, info: InstanceInfo) -> Any:
        def doubled(*args: Any) -> Any:
            return 2 * function(*args)

        return doubled


class Bracketing(Plugin):
    name = "bracketing"

    def wrap(self, function: Any, info: InstanceInfo) -> Any:
        return lambda *args: [function(*args)]


@compute
def plus_one(x: int) -> int:
    return x + 1


def test_a_plugin_may_wrap_the_function_and_the_first_one_is_outermost() -> None:
    assert run(plus_one, 3, plugins=(Doubling(),)) == 8
    assert run(plus_one, 3, plugins=(Bracketing(), Doubling())) == [8]
    assert run(plus_one, 3, plugins=(Doubling(), Bracketing())) == [4, 4]


def test_of_a_map_each_item_is_wrapped() -> None:
    chunk = compute(Chunk(plus_one.function, alone=False, goes_on=False))
    program = pickle.loads(build(chunk, (Doubling(),)))
    assert [program(arguments([1, 2, 3])) for _ in range(2)] == [[4, 6, 8]] * 2


def test_a_generator_is_wrapped_as_one() -> None:
    class Stamped(Plugin):
        name = "stamped"

        def wrap(self, function: Any, info: InstanceInfo) -> Any:
            def stamped(*args: Any) -> Any:
                for value in function(*args):
                    yield info.rank, value

            return stamped

    @compute
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)

    assert list(run(numbers, 2, plugins=(Stamped(),))) == [(0, 0), (0, 1)]


class Large:
    made: ClassVar[list["weakref.ref[Large]"]] = []

    def __init__(self) -> None:
        self.made.append(weakref.ref(self))


def fail_with_large_local(_: int) -> None:
    local = Large()
    error = ValueError(f"its frame holds the error, and {local}")
    raise error


async def fail_with_large_local_later(item: int) -> None:
    fail_with_large_local(item)


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(fail_with_large_local, alone=False, goes_on=True),
        AsyncChunk(fail_with_large_local_later, alone=False, goes_on=True),
    ],
)
def test_locals_of_failed_items_are_freed(chunk: Any) -> None:
    gc.disable()
    try:
        Large.made.clear()
        results = asyncio.run(chunk([1, 2])) if isinstance(chunk, AsyncChunk) else chunk([1, 2])
        assert [type(each) for each in results] == [Raised] * 2
        assert [each() for each in Large.made] == [None] * 2
    finally:
        gc.enable()
