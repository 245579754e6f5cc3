"""Pending calls: their operators on both kinds of pool, and what they say when they are misused."""

import operator
import pickle
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import pytest

from outrider import compute, gather
from outrider.engine.api.calls import Call, Group, GroupStream, MixedGroup, for_every_rank, members, pending
from outrider.engine.api.errors import NotACall, SpecError


class Runner:
    """Answers with what it was asked: the operators do nothing more."""

    unusable = ""

    def check_thread(self) -> None:
        pass

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return lambda call: (verb, call)


pool: Any = Runner()


@compute
def f(x: int) -> int:
    return x


@compute
def g(x: str) -> str:
    return x


@compute
def rows(n: int) -> Iterator[int]:
    yield n


def test_operators_are_the_pools_verbs() -> None:
    call = f(1)
    assert call >> pool == ("run", call)
    assert call @ pool == ("broadcast", call)
    assert (call > pool) == ("submit", call)
    stream = rows(1)
    assert stream >> pool == ("stream", stream)


def test_ampersand_makes_groups_and_groups_grow() -> None:
    a, b, c, d = f(1), g("2"), f(3), f(4)

    assert (a & b).calls == (a, b)
    assert (a & b & c).calls == (a, b, c)
    assert ((a & b) & (c & d)).calls == (a, b, c, d)
    assert (a & (b & c)).calls == (a, b, c)
    verb, group = (a & b) >> pool
    assert (verb, group.calls) == ("run_group", (a, b))
    verb, group = a & b > pool
    assert (verb, group.calls) == ("submit_group", (a, b))


def test_gather_makes_a_group_or_a_stream_of_results() -> None:
    assert isinstance(gather(f(1), g("2")), Group)
    streamed = gather(f(1), f(2), stream=True)
    assert isinstance(streamed, GroupStream)
    assert streamed >> pool == ("stream_group", streamed)
    with pytest.raises(NotACall, match="at least one"):
        gather()


def test_calls_are_immutable() -> None:
    call = f(1)
    for name in ("args", "kwargs", "options", "anything"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(call, name, ())
    with pytest.raises(AttributeError):
        del call.args
    with pytest.raises(AttributeError):
        gather(call).calls = ()  # type: ignore[misc]


@pytest.mark.parametrize("thing", [f(1), f(1) & f(2), gather(f(1), stream=True), rows(2)], ids=repr)
def test_a_pending_call_has_no_truth_and_says_what_to_do(thing: object) -> None:
    with pytest.raises(NotACall, match=r"pending call, not a result.*pool"):
        bool(thing)


def test_chained_comparisons_are_explained() -> None:
    with pytest.raises(NotACall, match="takes an open pool"):
        _ = f(1) > f(2) > pool  # type: ignore[operator]


@pytest.mark.anyio
async def test_awaiting_a_call_without_a_pool_says_what_to_do() -> None:
    with pytest.raises(NotACall, match=r"await \(f\(1\) >> pool\)"):
        await f(1)  # type: ignore[misc]


def test_iterating_over_a_call_says_what_to_do() -> None:
    with pytest.raises(NotACall, match=r"pool.stream\(rows\(2\)\)"):
        list(rows(2))  # type: ignore[call-overload]


@pytest.mark.anyio
async def test_a_group_without_parentheses_is_explained() -> None:
    async def running() -> int:
        return 1

    with pytest.raises(NotACall, match=r"\(f\(1\) & g\(2\)\) >> pool"):
        _ = f(1) & running()  # type: ignore[operator]


def test_generators_and_groups_refuse_what_they_cannot_do() -> None:
    stream: Any = rows(1)
    with pytest.raises(NotACall, match="a generator's call, which is streamed"):
        operator.gt(stream, pool)
    for group in (f(1) & f(2), f(1) & rows(2)):
        with pytest.raises(NotACall, match="broadcast the calls one by one"):
            _ = group @ pool  # type: ignore[operator]
    with pytest.raises(NotACall, match=r"takes a pending call on the right, not 3"):
        _ = stream & 3
    with pytest.raises(NotACall, match=r"rows\(1\) has many: leave out stream=True"):
        gather(f(1), stream, stream=True)


def test_generators_join_groups_from_either_side() -> None:
    streams, calls = rows(1), f(2)
    for group in (streams & calls & streams, streams & (calls & streams), gather(streams, calls, streams)):
        assert isinstance(group, MixedGroup)
        assert group.calls == (streams, calls, streams)
    assert (calls & streams).calls == (calls, streams)
    assert (calls & calls & (streams & calls)).calls == (calls, calls, streams, calls)
    assert type(gather(calls, calls)) is Group


def test_what_is_not_a_pool_is_refused() -> None:
    for wrong in (None, 3, Runner):
        with pytest.raises(NotACall, match="takes an open pool"):
            _ = f(1) >> wrong  # type: ignore[operator]


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        (f, r"f is a @compute function that was not called: write f\(\.\.\.\)"),
        (len, r"len is a plain function: decorate it with @compute and write len\(\.\.\.\)"),
        (rows(3), r"use pool.stream\(rows\(3\)\)"),
        (f(1) & f(2), r"use \(f\(1\) & f\(2\)\) >> pool"),
        (42, "42 is not a pending call"),
    ],
)
def test_what_is_not_a_pending_call_is_named_with_the_fix(wrong: object, fix: str) -> None:
    with pytest.raises(NotACall, match=fix):
        pending(wrong)


@pytest.mark.parametrize("wrong", [[f(1), f(2)], f(1), 5, None])
def test_what_is_no_group_of_calls_is_told_how_to_gather(wrong: object) -> None:
    assert members(f(1) & rows(2)) != ()
    with pytest.raises(NotACall, match=r"is no group of calls.*pool\.gather"):
        members(wrong)


def test_a_coroutine_instead_of_a_call_is_closed_and_named() -> None:
    async def train() -> None: ...

    with pytest.raises(NotACall, match="decorate train with @compute"):
        pending(train())


def test_calls_show_themselves_as_they_were_written_but_short() -> None:
    assert f(1).code == "f(1)"
    assert g(x="a").code == "g(x='a')"
    assert len(f(list(range(10_000))).code) < 100  # type: ignore[arg-type]
    assert (f(1) & g("b")).code == "(f(1) & g('b'))"
    assert repr(f(1) & g("b")) == "<(f(1) & g('b')) has not run: (f(1) & g('b')) >> pool runs it>"
    assert f(1).with_(name="other").name == "other"


def test_groups_of_importable_calls_are_picklable(importable: ModuleType) -> None:
    double = importable.double

    group = pickle.loads(pickle.dumps(double(1) & double(2)))

    assert [call.args for call in group.calls] == [(1,), (2,)]
    assert all(isinstance(call, Call) for call in group.calls)


@compute
def total(items: Iterator[int]) -> int:
    return sum(items)


@compute
def either(*items: Iterable[int], more: Iterable[int] = ()) -> int:
    return sum(map(sum, items), sum(more))


def test_a_broadcast_streams_no_argument() -> None:
    numbers = iter(range(40))
    for call in (total(numbers), total([1, 2]), either([1], numbers), either(more=numbers)):
        with pytest.raises(SpecError, match=r"Sequence\[\.\.\.\] and give it a list"):
            for_every_rank(call)
    assert next(numbers) == 0
    for call in (f(1), either([1], more=[2])):
        assert for_every_rank(call) is call


def test_a_call_with_many_bytes_is_shown_without_a_text_of_them_all() -> None:
    size = 1 << 20
    calls = [f(bytes(size)), f(bytearray(size)), f([bytes(size)])]  # type: ignore[arg-type]
    tracemalloc.start()
    texts = [repr(call) for call in calls]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(map(len, texts)) < 500
    assert peak < size // 4
    assert repr(f(bytes(3))).startswith(r"<f(b'\x00\x00\x00')")  # type: ignore[arg-type]
