"""Values of another process on this computer, mapped instead of copied."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.engine.node import blobs
from outrider.engine.serialization import payload
from outrider.engine.serialization.payload import Blob, Received, huge_buffer, map_shared


@pytest.fixture
def shared(tmp_path: Path) -> str:
    file = tmp_path / "blob"
    file.write_bytes(b"0123456789" * 1000)
    return str(file)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_thousand_values_held_at_once_leave_descriptors_for_the_program(shared: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = _open_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 200, limits[1]))
    try:
        held = [map_shared(shared) for _ in range(1000)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert _open_files() <= before + 100
    assert {bytes(each) for each in held} == {b"0123456789" * 1000}


def test_mapped_or_copied_a_value_is_writable_and_its_own(shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = map_shared(shared)
    monkeypatch.setattr(payload, "MAPPED_AT_MOST", 0)
    copied = map_shared(shared)
    for each in (mapped, copied):
        each[:2] = b"ab"
        assert each[:4] == b"ab23"
    assert Path(shared).read_bytes()[:4] == b"0123"


def test_a_blob_that_is_shared_when_nobody_needs_it_any_more_keeps_no_descriptor() -> None:
    blob = Blob("late", [b"x" * 100], 100)
    blob.close()
    path = Path(blob.share())  # by a thread that was given up
    assert path.exists()
    del blob
    assert not path.exists()


def test_large_buffers_are_private_memory_which_alone_is_in_huge_pages() -> None:
    buffer = huge_buffer(4 << 20)
    at = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (rights,) = [line[1] for line in maps if int(line[0].split("-")[0], 16) <= at < int(line[0].split("-")[1], 16)]
    assert rights == "rw-p"


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_blob_is_copied_whole_from_memory_that_can_be_written_to_and_that_cannot(kind: type[bytes]) -> None:
    parts = [memoryview(kind(os.urandom(size))) for size in (3, payload.COPY_BYTES + 5, 1)]
    blob = Blob("b", parts, sum(map(len, parts)))
    blob.begin_copy()
    assert blob.filled is not None
    blob.copy()
    assert blob.filled.at_bytes == blob.size_bytes
    assert b"".join(blob.parts) == b"".join(parts)


def test_a_blob_is_kept_when_its_bytes_are_a_copy_and_until_it_is_let_go() -> None:
    data = bytearray(b"x" * 100)
    blob = Blob("b", [data], 100)
    assert not blob.keep()  # its owner may change it
    path = Path(blob.share())
    assert blob.keep()
    data[:] = b"y" * 100
    blob.close()
    assert Path(blob.share()).read_bytes() == b"x" * 100
    assert blob.kept_bytes == payload.DESCRIPTOR_BYTES
    blob.let_go()
    assert not path.exists()


def test_a_blob_in_pieces_is_kept_when_each_was_copied() -> None:
    small, large = bytearray(b"s" * 10), bytearray(100_000)
    sizes = (5, len(small), len(large))
    parts = [b"p" * 5, bytes(59), small, bytes(54), large]
    blob = Blob("b", parts, sum(map(len, parts)))
    pieces = blob.pieces(sizes)
    assert not blob.keep()
    pieces[1].blob.key()
    assert blob.keep()
    small[:], large[:3] = b"t" * 10, b"abc"
    assert b"".join(pieces[0].blob.parts).endswith(b"s" * 10)
    assert b"".join(pieces[1].blob.parts)[:3] == bytes(3)
    assert blob.pieces(sizes) is pieces


@pytest.mark.parametrize("kind", ["private", "another process's", "read-only"])
@pytest.mark.parametrize("large_bytes", [1000, 1 << 20])
def test_memory_that_a_value_refers_to_is_not_given_back(
    kind: str, large_bytes: int, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "LARGE_BYTES", large_bytes)
    if kind == "private":
        data = huge_buffer(10_000)
        data[:] = Path(shared).read_bytes()
    elif kind == "read-only":
        with Path(shared).open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    else:
        data = map_shared(shared)
        data[:2] = b"01"
    received = Received(data, None)
    with memoryview(data) as view:
        received.drop()
        assert not data.closed
        assert bytes(view) == b"0123456789" * 1000
    received.drop()
    assert data.closed
    assert Path(shared).read_bytes() == b"0123456789" * 1000


def test_the_copy_of_an_argument_is_given_back_when_the_last_blob_with_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back: list[int] = []

    def free_at_once(free: Callable[[], object], size_bytes: int) -> None:
        given_back.append(size_bytes)
        free()

    monkeypatch.setattr(blobs, "give_back", free_at_once)
    blob = Blob("b", [bytearray(b"x" * 2000)], 2000)
    blob.begin_copy()
    blob.copy()
    (copy,) = blob.parts
    rest_of_it = blob.renamed("c")
    del blob
    assert not given_back
    assert bytes(copy) == b"x" * 2000
    del rest_of_it
    assert given_back == [2000]
    assert isinstance(copy, mmap.mmap)
    assert copy.closed
