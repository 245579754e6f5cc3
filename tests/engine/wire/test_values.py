"""User objects as bytes, and the finger on what cannot be."""

from __future__ import annotations

import mmap
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.wire import values
from outrider.engine.wire.values import ALIGN_BYTES, Dumped, Unpicklable, dump, inline, load


class Memory:
    """Pickled with its bytes out of band, like an array."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)

    def __reduce_ex__(self, _: Any) -> Any:
        return _memory, (pickle.PickleBuffer(self.content),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memory) and other.content == self.content

    __hash__ = None  # type: ignore[assignment]


def _memory(view: Any) -> Memory:
    memory = Memory(b"")
    memory.content = view
    return memory


def whole(dumped: Dumped) -> bytes:
    return b"".join(dumped.parts)


def test_a_plain_object_is_its_pickle_alone() -> None:
    dumped = dump([1, "a"])
    assert dumped == Dumped([pickle.dumps([1, "a"], 5)], None, 22)
    assert inline(dumped) == (dumped.parts[0], None, None)
    assert load(dumped.parts[0]) == [1, "a"]


def test_buffers_lie_behind_it_aligned() -> None:
    dumped = dump([Memory(b"x" * 5), Memory(b""), Memory(b"y" * 70)])
    assert dumped.sizes is not None
    assert dumped.sizes[1:] == (5, 0, 70)
    data = whole(dumped)
    assert len(data) == dumped.total
    assert (data.index(b"xxxxx") % ALIGN_BYTES, data.index(b"y" * 70) % ALIGN_BYTES) == (0, 0)


def test_buffers_are_not_copied() -> None:
    memory = Memory(b"before")
    dumped = dump(memory)
    memory.content[:] = b"after!"
    assert whole(dumped).endswith(b"after!")


def test_a_large_bytes_is_copied_once_when_it_is_loaded_and_never_when_it_is_dumped() -> None:
    content = b"x" * (20 * values.PIECE_BYTES)
    tracemalloc.start()
    try:
        dumped = dump(content)
        assert tracemalloc.get_traced_memory()[1] < values.PIECE_BYTES
        mapping = mmap.mmap(-1, dumped.total)
        for part in dumped.parts:
            mapping.write(part)
        tracemalloc.reset_peak()
        assert load(mapping) == content
        assert tracemalloc.get_traced_memory()[1] < len(content) + values.PIECE_BYTES
    finally:
        tracemalloc.stop()


def test_a_large_bytes_that_is_loaded_of_bytes_is_right() -> None:
    content = bytes(range(256)) * (values.PIECE_BYTES // 100)
    assert load(pickle.dumps([content, content[1:]], 5)) == [content, content[1:]]


@pytest.mark.parametrize("by_reference", [True, False])
def test_a_large_bytes_is_a_part_of_its_pickle_as_it_is(by_reference: bool) -> None:
    content = b"__main__" * (values.PIECE_BYTES // 4)
    obj = ((content, 1), {"more": [content]})
    dumped = dump(obj, ("args", "kwargs"), by_reference=by_reference)
    assert any(part is content for part in dumped.parts)
    assert dumped.total == sum(map(len, dumped.parts)) < 1.5 * len(content), "the second time it is a reference"
    assert load(whole(dumped)) == obj
    assert dump([content] * (values.FEW + 1)).parts[0] is not content


def test_a_large_bytes_beside_buffers_is_in_the_pickle() -> None:
    content = b"x" * (values.PIECE_BYTES + 1)
    dumped = dump([content, Memory(b"abc")])
    assert dumped.sizes is not None
    assert dumped.sizes[0] == len(dumped.parts[0]) > len(content)
    assert load(whole(dumped), dumped.sizes) == [content, Memory(b"abc")]


def test_a_large_bytearray_is_copied_when_it_is_dumped() -> None:
    content = bytearray(b"x" * (values.PIECE_BYTES + 1))
    dumped = dump([bytes(content), content])
    content[0] = 0
    assert load(whole(dumped))[1][0] == ord("x")


def test_the_part_of_a_pickle_in_parts_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(Unpicklable, match=r"args\[1\]"):
        dump(((bytes(values.PIECE_BYTES + 1), threading.Lock()), {}), ("args", "kwargs"))


def test_what_is_loaded_can_be_written_to() -> None:
    dumped = dump(Memory(b"abc"))
    first = load(whole(dumped), dumped.sizes)
    first.content[0] = 0
    mapped = bytearray(whole(dumped))
    load(mapped, dumped.sizes).content[0] = 1
    assert mapped[-3] == 1, "over a mapping, no copy is made"


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(max_size=200).map(Memory),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))  # fmt: skip
@settings(max_examples=150)
def test_what_is_dumped_is_loaded(obj: object) -> None:
    dumped = dump(obj)
    assert sum(memoryview(part).nbytes for part in dumped.parts) == dumped.total
    assert load(whole(dumped), dumped.sizes) == obj
    assert load(bytearray(whole(dumped)), dumped.sizes) == obj


def test_functions_that_no_module_has_go_by_value() -> None:
    factor = 3
    assert load(whole(dump(lambda x: x * factor)))(5) == 15


def test_what_lives_in_main_goes_by_value() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def triple(x): return 3 * x", scope)
    assert load(whole(dump(scope["triple"])))(5) == 15


class Model:
    def __init__(self) -> None:
        self.name = "net"
        self.lock = threading.Lock()


class Slotted:
    __slots__ = ("fine", "lock")

    def __init__(self) -> None:
        self.fine = 1
        self.lock = threading.Lock()


LOCK = threading.Lock()


def closing_over() -> Callable[[], object]:
    items = (number for number in range(3))
    return lambda: items


def stubborn() -> object:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("I will not\nbe moved")

    return Stubborn()


@pytest.mark.parametrize(
    ("obj", "path", "kind"),
    [
        (Model(), "value.lock", "_thread.lock"),
        ({"model": [1, Model()]}, "value['model'][1].lock", "_thread.lock"),
        (({3: (Slotted(),)},), "value[0][3][0].lock", "_thread.lock"),
        (closing_over(), "value (its variable 'items')", "generator"),
        (Model().lock.acquire, "value.__self__", "_thread.lock"),
        ((i for i in ()), "value", "generator"),
    ],
)  # fmt: skip
def test_what_cannot_be_pickled_is_named(obj: object, path: str, kind: str) -> None:
    with pytest.raises(Unpicklable) as caught:
        dump(obj)
    assert (caught.value.path, caught.value.kind) == (path, kind)
    assert str(caught.value).startswith(f"{path} cannot be pickled: {kind}: ")


def test_arguments_are_named_as_the_user_wrote_them() -> None:
    with pytest.raises(Unpicklable, match=r"^args\[0\]\['model'\]\.lock cannot"):
        dump((({"model": Model()},), {}), ("args", "kwargs"))
    with pytest.raises(Unpicklable, match=r"^kwargs\['x'\] cannot"):
        dump(((1,), {"x": LOCK}), ("args", "kwargs"))


def test_the_objects_own_refusal_is_the_reason() -> None:
    with pytest.raises(Unpicklable) as caught:
        dump([stubborn()])
    assert caught.value.path == "value[0]"
    assert caught.value.reason == "I will not"


def test_an_object_that_contains_itself_is_searched_once() -> None:
    loop: list[Any] = []
    loop += [loop, LOCK]
    with pytest.raises(Unpicklable, match=r"^value\[1\]"):
        dump(loop)


def test_an_endless_depth_is_an_error_not_a_crash() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Unpicklable, match="recursion"):
        dump(deep)
    while deep:  # or letting go of it recurses as deep
        deep = deep[0]


def test_the_error_itself_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(Unpicklable("a.b", "T", "no")))
    assert (error.path, error.kind, error.reason, str(error)) == ("a.b", "T", "no", "a.b cannot be pickled: T: no")


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(max_size=200)
                    | st.binary(max_size=200).map(bytearray) | st.binary(max_size=200).map(Memory),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))  # fmt: skip
@settings(max_examples=150)
def test_a_pickle_that_is_read_in_pieces_gives_the_same(obj: object) -> None:
    for size in (1, 7, values.PIECE_BYTES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(values, "PIECE_BYTES", size)
            dumped = dump(obj)
            assert load(whole(dumped), dumped.sizes) == obj
            assert load(bytearray(whole(dumped)), dumped.sizes) == obj


@pytest.mark.parametrize("protocol", range(6))
def test_a_large_pickle_of_each_protocol_and_frame_is_read_in_pieces(protocol: int) -> None:
    large = 3_000_000 if protocol else 400_000  # whose lines are read slowly, with six characters for a byte
    obj = [Unpicklable, {"text": "x" * large, "bytes": bytes(large), "small": list(range(large // 10))}, len]
    assert load(pickle.dumps(obj, protocol)) == obj


def test_a_large_pickle_that_is_cut_is_an_error() -> None:
    data = pickle.dumps([bytes(3_000_000), "x" * 3_000_000], 5)
    for end in (len(data) // 3, len(data) // 2, len(data) - 1):
        with pytest.raises((EOFError, pickle.UnpicklingError)):
            load(data[:end])
