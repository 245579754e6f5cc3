"""`@compute`: what it makes of functions, which options it takes, and how it survives pickling."""

import inspect
import json
import pickle
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from outrider import Compute, NotACall, SpecError, compute
from outrider.engine.api.calls import Call, StreamCall
from outrider.engine.api.compute import AsyncCompute, AsyncStreamCompute, SyncCompute, SyncStreamCompute, for_items
from outrider.engine.node.context import AsyncInput, Input


@compute
def add(a: int, b: int = 2) -> int:
    """The sum."""
    return a + b


@compute(timeout=5, name="slow one")
async def wait(a: int) -> int:
    return a


@compute
def count(n: int) -> Iterator[int]:
    yield from range(n)


@compute
async def acount(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


def test_calling_runs_nothing_and_keeps_the_arguments() -> None:
    ran = []

    @compute
    def note(a: int, *, b: int) -> None:
        ran.append((a, b))

    call = note(1, b=2)

    assert (ran, call.args, call.kwargs) == ([], (1,), {"b": 2})


@pytest.mark.anyio
async def test_local_runs_the_function_as_it_was() -> None:
    assert add.local(1) == 3
    assert await wait.local(4) == 4
    assert list(count.local(3)) == [0, 1, 2]
    assert [i async for i in acount.local(2)] == [0, 1]


def test_the_kind_of_function_decides_what_a_call_is() -> None:
    assert [type(each) for each in (add, wait, count, acount)] == [
        SyncCompute,
        AsyncCompute,
        SyncStreamCompute,
        AsyncStreamCompute,
    ]
    assert type(add(1)) is type(wait(1)) is Call
    assert type(count(1)) is type(acount(1)) is StreamCall


def test_what_elsewhere_is_a_pool_says_what_is_one_here() -> None:
    unlike: Any = Compute
    with pytest.raises(SpecError, match=r"a pool is Pool\(provider="):
        unlike(provider=None, nodes=4)


def test_a_function_that_says_it_returns_an_iterator_streams() -> None:
    @compute
    def squares(n: int) -> Iterator[int]:
        return (i * i for i in range(n))

    assert isinstance(squares(3), StreamCall)


def test_name_docstring_and_signature_stay() -> None:
    assert (add.__name__, add.__doc__) == ("add", "The sum.")
    assert list(inspect.signature(add).parameters) == ["a", "b"]


def test_wrong_arguments_are_told_at_the_call_in_pythons_words() -> None:
    with pytest.raises(TypeError, match=r"add\(\) missing 1 required positional argument: 'a'"):
        add()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"add\(\) got an unexpected keyword argument 'c'"):
        add(1, c=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments but 3 were given"):
        add(1, 2, 3)  # type: ignore[call-arg]


def test_every_kind_of_parameter_is_checked_as_python_would() -> None:
    @compute
    def many(a: int, /, b: int, *rest: int, c: int = 0, d: int, **more: int) -> None: ...

    many(1, 2, 3, 4, d=5, e=6)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'd'"):
        many(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        many(b=1, d=2)  # type: ignore[call-arg]


def test_builtins_and_callable_objects_can_be_computed() -> None:
    class Scale:
        def __call__(self, x: int) -> int:
            return 3 * x

    assert compute(json.dumps)([1]).function.function is json.dumps
    assert compute(Scale()).local(2) == 6
    with pytest.raises(TypeError):
        compute(Scale())()  # type: ignore[call-arg]


def test_options_are_checked_when_they_are_written() -> None:
    assert wait.options.timeout_s == 5
    assert compute(timeout=timedelta(minutes=1))(lambda: 1).options.timeout_s == 60
    with pytest.raises(SpecError, match=r"'timeot'.*'timeout'"):
        compute(timeot=3)  # type: ignore[call-overload]
    with pytest.raises(SpecError, match="more than 0"):
        compute(timeout=0)
    with pytest.raises(SpecError, match="contradict"):
        compute(retry="never", retries=2)
    with pytest.raises(SpecError, match="restart"):
        compute(on_loss="restrat")  # type: ignore[call-overload]


def test_with_gives_a_copy_of_function_and_call() -> None:
    patient = add.with_(timeout=9, retry="never")

    assert (patient.options.timeout_s, patient.options.at_most_once) == (9, True)
    assert (add.options.timeout_s, patient.function) == (None, add.function)
    assert add(1).with_(retries=0).options.retries == 0
    with pytest.raises(SpecError):
        add.with_(retrys=1)  # type: ignore[call-arg]


def test_a_second_compute_and_a_class_are_refused() -> None:
    with pytest.raises(SpecError, match="has @compute already"):
        compute(add)
    with pytest.raises(SpecError, match="goes on a function"):
        compute(int)
    with pytest.raises(SpecError, match="goes on a function"):
        compute(5)  # type: ignore[call-overload]


def test_calls_and_functions_survive_cloudpickle_with_their_options() -> None:
    call = cloudpickle.loads(cloudpickle.dumps(wait(7).with_(retries=1)))

    assert (call.args, call.options.timeout_s, call.options.retries, call.name) == ((7,), 5, 1, "slow one")
    assert cloudpickle.loads(cloudpickle.dumps(add)).local(1, 1) == 2


def test_a_function_that_nodes_can_import_is_pickled_by_name(importable: ModuleType) -> None:
    double = importable.double

    data = pickle.dumps(double.with_(timeout=3))

    assert len(data) < 200
    again = pickle.loads(data)
    assert (again.function, again.options.timeout_s) == (double.function, 3)
    assert pickle.loads(pickle.dumps(double)) is double


def test_a_function_may_call_itself_after_pickling_by_value() -> None:
    space: dict[str, object] = {"compute": compute, "__name__": "__main__"}
    exec("@compute\ndef fact(n):\n    return 1 if n < 2 else n * fact.local(n - 1)\n", space)

    assert cloudpickle.loads(cloudpickle.dumps(space["fact"])).local(5) == 120


def test_streamed_parameters_are_taken_out_of_the_arguments() -> None:
    @compute
    def merge(
        a: Iterator[int], b: AsyncIterator[int], c: Iterable[int], d: AsyncIterable[int] | None = None, *, e: int = 0
    ) -> None: ...

    async def numbers() -> AsyncIterator[int]:
        yield 1

    first, second, third = iter([1]), numbers(), iter([3])
    args, kwargs, inputs = merge(first, second, third, None, e=5).detach()

    assert [type(each) for each in args] == [Input, AsyncInput, Input, type(None)]
    assert [args[0].index, args[1].index, args[2].index] == [0, 1, 2]
    assert (kwargs, inputs) == ({"e": 5}, (first, second, third))


def test_a_list_for_an_iterable_travels_as_the_list_it_is() -> None:
    @compute
    def total(numbers: Iterable[int]) -> int:
        return sum(numbers)

    assert total([1, 2]).detach() == (([1, 2],), {}, ())


def test_annotations_as_text_and_names_for_checkers_only_are_understood() -> None:
    space: dict[str, object] = {"compute": compute, "__name__": "elsewhere"}
    code = compile(
        "from __future__ import annotations\n"
        "import typing\n"
        "@compute\n"
        "def f(a: typing.Iterator[int], b: Optional[int], c: abc.AsyncIterator[Thing]): ...\n",
        "elsewhere.py",
        "exec",
    )
    exec(code, space)
    function = space["f"]
    assert isinstance(function, SyncCompute)

    assert list(function.streamed) == ["a", "c"]


def test_variadic_streams_are_all_taken_out() -> None:
    @compute
    def merge(*sources: Iterator[int], **named: Iterator[int]) -> None: ...

    detached = merge(iter([1]), iter([2]), x=iter([3])).detach()

    assert [each.index for each in detached.args] == [0, 1]
    assert detached.kwargs["x"].index == 2
    assert len(detached.inputs) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpus": 0}, "cpus must be more than 0 processors"),
        ({"cpus": "2"}, "cpus takes processors, as a number, not '2'"),
        ({"memory_gb": True}, "memory_gb takes GB, as a number, not True"),
        ({"gpus": 0.5}, "gpus takes a whole number, not 0.5"),
        ({"gpus": 0}, "gpus must be at least 1, not 0"),
        ({"num_gpus": 1}, "did you mean 'gpus'?"),
        ({"memory": 4}, "did you mean 'memory_gb'?"),
    ],
)
def test_amounts_that_cannot_be_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        compute(**options)
    assert words in str(caught.value)


def test_amounts_are_changed_one_by_one_and_taken_away() -> None:
    @compute(cpus=0.5, memory_gb=4)
    def train() -> None: ...

    assert train.options.needs == (500, 4_000_000_000, 0)
    assert train.with_(gpus=2, cpus=2).options.needs == (2000, 4_000_000_000, 2)
    assert train.with_(cpus=None).options.needs == (0, 4_000_000_000, 0)
    assert train.with_(cpus=None, memory_gb=None).options.needs is None
    assert train.with_(name="other").options.needs == train.options.needs


# --- what a map takes -------------------------------------------------------------------------------------------------


class Yields:
    """An object whose calls give values one by one."""

    numbers: Iterator[int]  # not a parameter of a call

    def __call__(self, n: int) -> Iterator[int]:
        yield n


class Awaits:
    async def __call__(self, n: int) -> int:
        return n


def test_an_object_is_decorated_as_its_call_is() -> None:
    assert type(compute(Yields())) is SyncStreamCompute
    assert compute(Yields()).streamed == {}
    assert type(compute(Awaits())) is AsyncCompute


def test_a_map_takes_a_class_that_a_decorator_refuses() -> None:
    made = for_items(int)
    assert (type(made), made.__name__, made.function) == (SyncCompute, "int", int)
    for refused in (int, Yields):
        with pytest.raises(NotACall, match="@compute goes on a function, not on"):
            compute(refused)
    with pytest.raises(NotACall, match="Yields yields values, and"):
        for_items(Yields())
