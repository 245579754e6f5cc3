"""Calls become payloads: functions are pickled once, large arguments become blobs, and blobs are dropped."""

from __future__ import annotations

import mmap
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest

from outrider import NotACall, SerializationError, SpecError, compute
from outrider.engine.api.compute import PLUGINS
from outrider.engine.api.plugin import Plugin
from outrider.engine.api.settings import WorkerKind
from outrider.engine.serialization import packer as packing_calls
from outrider.engine.serialization.client_streams import Values
from outrider.engine.serialization.packer import Packer
from outrider.engine.serialization.payload import Blob
from outrider.engine.wire import pickler, values
from outrider.engine.wire.importable import ImportableModules
from outrider.engine.wire.messages import RunFlag

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Fresh(Plugin):
    name = "fresh"
    fresh_process = True


class Halves(Plugin):
    name = "halves"
    has_halves = True


@compute
def size(data: object) -> int:
    return len(str(data))


@dataclass
class Task:
    """A user's own object that holds a call."""

    call: object


@compute
def numbers(upto: int) -> Iterator[int]:
    yield from range(upto)


@compute
def total(items: Iterator[int]) -> int:
    return sum(items)


def packer(*plugins: Plugin, kind: WorkerKind = "process", dropped: list[Blob] | None = None) -> Packer:
    drop = (lambda _: None) if dropped is None else dropped.append
    return Packer(plugins, kind, drop=drop, forget=lambda _: None)


MUCH = [f"text {number}" for number in range(20_000)]


@pytest.mark.parametrize(
    "holding",
    [lambda call: [MUCH, call], lambda call: {"deep": [Task(call)]}, lambda call: lambda: call],
    ids=["behind more than is sent in a frame", "deep", "in a function's scope"],
)
async def test_a_pending_call_is_refused_wherever_it_is_in_the_arguments(holding: Callable[[object], object]) -> None:
    with pytest.raises(NotACall, match=r"size\(7\) has not run, and a task gets values: await it first"):
        packer().pack(size(holding(size(7))))


class Meanwhile:
    """While it is pickled, another thread pickles a call."""

    def __reduce__(self) -> tuple[object, ...]:
        other = threading.Thread(target=cloudpickle.dumps, args=(size(7),))
        other.start()
        other.join()
        return str, ("given",)


async def test_a_pending_call_that_is_pickled_elsewhere_meanwhile_is_no_error() -> None:
    assert values.load(packer().pack(size(Meanwhile())).args.data) == (("given",), {})
    assert cloudpickle.loads(cloudpickle.dumps(size(7))).args == (7,)


async def test_a_function_is_pickled_once_and_its_arguments_each_time() -> None:
    mine = packer()
    first, second = mine.pack(size(1)), mine.pack(size(2))
    assert first.code is second.code
    assert values.load(first.args.data, first.args.sizes) == ((1,), {})
    assert values.load(second.args.data, second.args.sizes) == ((2,), {})


@pytest.mark.parametrize(
    ("argument", "plainly"),
    [(1, True), ("text", True), (None, True), (Fresh(), False)],
    ids=["int", "str", "None", "object"],
)
async def test_plain_arguments_take_the_plain_pickler_also_where_nodes_lack_modules(
    monkeypatch: pytest.MonkeyPatch, argument: object, plainly: bool
) -> None:
    mine = packer()
    mine.node_modules = ImportableModules([])
    mine.pack(size(1))  # which pickles the function
    took: list[object] = []
    pickles = pickler.Pickler.dump

    def watched(self: pickler.Pickler, value: object) -> None:
        took.append(value)
        pickles(self, value)

    monkeypatch.setattr(pickler.Pickler, "dump", watched)
    payload = mine.pack(size(argument))
    assert took == ([] if plainly else [((argument,), {})])
    (given,), _ = values.load(payload.args.data, payload.args.sizes)
    assert type(given).__name__ == type(argument).__name__


async def test_large_arguments_become_a_blob_that_is_dropped_when_the_job_is_settled() -> None:
    dropped: list[Blob] = []
    mine = packer(dropped=dropped)
    first, second = (mine.pack(size(bytes(values.INLINE_BYTES + each))) for each in (1, 2))
    assert first.blob is not None
    assert second.blob is not None
    assert first.args.blob == first.blob.name != second.blob.name
    expected = [first.blob]
    mine.release(first)
    mine.release(first)
    assert dropped == expected


async def test_blobs_of_two_clients_of_one_pool_have_different_names() -> None:
    blobs = {packer().share(1).blob.name for _ in range(2)}
    assert len(blobs) == 2


async def test_a_value_that_cannot_be_shared_names_what_is_in_the_way() -> None:
    with pytest.raises(SerializationError, match=r"the shared value\['model'\]\['lock'\] cannot be pickled"):
        packer().share({"model": {"lock": threading.Lock()}})
    with pytest.raises(SerializationError, match=r"^the shared value cannot be pickled"):
        packer().share(threading.Lock())


async def test_a_shared_value_is_dropped_when_it_is_closed_and_its_last_call_is_settled() -> None:
    dropped: list[Blob] = []
    mine = packer(dropped=dropped)
    shared = mine.share("much")
    payload = mine.pack(size(shared))
    shared.close()
    assert dropped == []
    mine.release(payload)
    assert dropped == [shared.blob]


async def test_a_call_that_streams_has_its_process_to_itself() -> None:
    mine = packer()
    payload = mine.pack_stream(numbers(3), output := Values())
    assert payload.output is output
    assert payload.flags == RunFlag.STREAM | RunFlag.ALONE
    assert mine.pack(total(iter([1]))).flags == RunFlag.ALONE
    assert mine.pack(size(1)).flags == 0


async def test_plugins_set_before_hold_for_calls_packed_after() -> None:
    mine = packer()
    assert mine.pack(size(1)).flags == 0
    mine.set_outer_plugins([Fresh()])
    assert mine.pack(size(1)).flags == RunFlag.FRESH
    mine.set_outer_plugins(())
    assert mine.pack(size(1)).flags == 0


async def test_a_plugin_that_sets_up_a_process_is_refused_where_tasks_are_threads() -> None:
    with pytest.raises(SpecError, match="sets up a whole process"):
        packer(Fresh(), kind="thread").pack(size(1))


async def test_a_plugin_with_halves_is_the_pools_and_no_functions_alone() -> None:
    def function() -> int:
        return 1

    halves = Halves()
    setattr(function, PLUGINS, (halves,))
    with pytest.raises(SpecError, match="works on whole nodes"):
        packer().pack(compute(function)())
    packer(halves).pack(compute(function)())


def filled(kind: str) -> tuple[Any, Callable[[], None], Callable[[Any], bytes]]:
    """Return an argument with a buffer of a's, what fills that with b's, and what reads a value like it."""
    size = 2 * values.INLINE_BYTES
    if kind == "tensor":
        torch = pytest.importorskip("torch")
        tensor = torch.full((size,), ord("a"), dtype=torch.uint8)
        return tensor, lambda: tensor.fill_(ord("b")), lambda value: value.numpy().tobytes()
    if kind == "bytearray":
        data = bytearray(b"a" * size)
        return data, lambda: data.__setitem__(slice(None), b"b" * size), bytes
    memory = mmap.mmap(-1, size) if kind == "mmap" else bytearray(size)
    array = np.frombuffer(memory, np.uint8)
    array[:] = ord("a")
    argument: Any = {
        "object": [{"deep": Task(array)}],
        "read-only view": np.broadcast_to(array, array.shape),
        "part": array[7:-5],
        "PickleBuffer": pickle.PickleBuffer(memory),
    }.get(kind, array)
    read: Callable[[Any], bytes] = bytes
    if kind == "object":
        return argument, lambda: array.fill(ord("b")), lambda value: bytes(value[0]["deep"].call)
    return argument, lambda: array.fill(ord("b")), read


@pytest.mark.parametrize(
    "kind", ["array", "object", "read-only view", "part", "mmap", "PickleBuffer", "bytearray", "tensor"]
)
@pytest.mark.parametrize("by_keyword", [False, True])
async def test_an_owned_call_does_not_show_later_changes(kind: str, by_keyword: bool) -> None:
    mine, (argument, fill, read) = packer(), filled(kind)
    payload = mine.pack(size(data=argument) if by_keyword else size(argument))
    mine.own(payload)
    fill()
    assert payload.blob is not None
    assert not payload.borrowed_bytes
    args, kwargs = values.load(b"".join(payload.blob.parts), payload.args.sizes)
    assert set(read(kwargs["data"] if by_keyword else args[0])) == {ord("a")}


async def test_a_call_without_buffers_of_the_callers_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(_: Blob) -> None:
        raise AssertionError("a copy")

    monkeypatch.setattr(Blob, "own", copied)
    mine = packer()
    for argument in (3, bytes(2 * values.INLINE_BYTES), np.frombuffer(bytes(2 * values.INLINE_BYTES))):
        mine.own(mine.pack(size(argument)))


async def test_a_very_large_copy_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_calls, "WARNED_COPY_BYTES", 100_000)
    mine = packer()
    payloads = [mine.pack(size(np.zeros(20_000))) for _ in range(2)]
    with pytest.warns(RuntimeWarning, match=r"0 MiB are copied for a call of size.*pool\.run.*pool\.put"):
        mine.own(payloads[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine.own(payloads[1])


async def test_a_call_that_cannot_be_copied_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Blob) -> None:
        raise MemoryError

    monkeypatch.setattr(Blob, "own", refused)
    dropped: list[Blob] = []
    mine = packer(dropped=dropped)
    payload = mine.pack(size(np.zeros(20_000)))
    blob = payload.blob
    with pytest.raises(MemoryError):
        mine.own(payload)
    assert dropped == [blob]
