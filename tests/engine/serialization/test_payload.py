"""Values of another process on this computer, mapped instead of copied."""

from __future__ import annotations

import ctypes
import errno
import hashlib
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


@pytest.mark.parametrize(
    "as_part", [memoryview, lambda data: memoryview(data).toreadonly()], ids=["writable", "read-only"]
)
def test_a_blob_is_copied_whole_from_memory_that_can_be_written_to_and_that_cannot(
    as_part: Callable[[bytearray], memoryview],
) -> None:
    parts = [as_part(bytearray(os.urandom(size))) for size in (3, payload.COPY_BYTES + 5, 1)]
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


SMALL, MIDDLE, LARGE = 100_000, 1 << 20, payload.DESCRIPTOR_BYTES


def borrowed(size_bytes: int, name: str = "b") -> tuple[Blob, bytearray, tuple[int, ...]]:
    """Return the blob of a pickle and an array, and the array's memory."""
    data = bytearray(b"x" * size_bytes)
    parts = [b"pickle", bytes(58), memoryview(data)]
    return Blob(name, parts, sum(map(len, parts))), data, (6, size_bytes)


@pytest.mark.parametrize("size_bytes", [SMALL, MIDDLE, LARGE])
@pytest.mark.parametrize("read", ["parts", "file", "pieces", "key"])
def test_an_owned_blob_keeps_its_bytes_when_its_buffers_are_filled_again(size_bytes: int, read: str) -> None:
    blob, data, sizes = borrowed(size_bytes)
    expected = b"".join(blob.parts)
    blob.own()
    data[:] = b"y" * size_bytes
    assert not blob.may_change
    assert blob.keep()
    if read == "parts":
        assert b"".join(blob.parts) == expected
    elif read == "file":
        assert Path(blob.share()).read_bytes() == expected
    elif read == "pieces":
        assert b"".join(blob.pieces(sizes)[1].blob.parts) == b"x" * size_bytes
    else:
        assert blob.key() == hashlib.sha256(expected).hexdigest()
    blob.let_go()


def test_a_blob_of_bytes_is_not_copied() -> None:
    data = bytes(LARGE)
    blob = Blob("b", [data], LARGE)
    blob.own()
    assert blob.parts == [data]
    assert blob.parts[0] is data


def test_an_owned_large_blob_is_copied_once_and_that_copy_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    blob, *_ = borrowed(LARGE)
    blob.own()

    def copy(_: Blob) -> int:
        raise AssertionError("a second copy")

    monkeypatch.setattr(Blob, "_copied", copy)
    path = Path(blob.share())
    assert path.exists()
    blob.pieces((6, LARGE))[1].blob.begin_copy()
    assert blob.pieces((6, LARGE))[1].blob.filled is None
    blob.close()
    assert not path.exists()


def test_blobs_that_wait_leave_descriptors_for_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "EARLY", 4)
    before = _open_files()
    blobs_there = [borrowed(MIDDLE, str(number))[0] for number in range(10)]
    for each in blobs_there:
        each.own()
    assert _open_files() - before <= 2 * 2, "small blobs have half of the files"
    large = [borrowed(LARGE)[0] for _ in range(10)]
    for each in large:
        each.own()
    assert _open_files() - before <= 2 * 4
    assert all(b"".join(each.parts).endswith(b"x" * MIDDLE) for each in (*blobs_there, *large))
    for each in (*blobs_there, *large):
        each.close()
    del each, blobs_there, large
    assert _open_files() == before


@pytest.mark.parametrize(("number", "raises"), [(errno.EMFILE, False), (errno.ENOMEM, True)])
def test_a_blob_without_a_file_is_copied_into_memory_and_without_memory_is_refused(
    number: int, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refused)
    blob, data, _ = borrowed(LARGE)
    if raises:
        with pytest.raises(MemoryError, match=r"8 MiB.*pool\.run"):
            blob.own()
        return
    blob.own()
    data[:] = bytes(LARGE)
    assert b"".join(blob.parts).endswith(b"x" * LARGE)


def test_the_copy_of_an_owned_blob_is_given_back_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[mmap.mmap] = []
    monkeypatch.setattr(payload, "_unmap", given_back.append)
    monkeypatch.setattr(payload, "EARLY", 0)
    blob, _, sizes = borrowed(MIDDLE)
    blob.own()
    blob.pieces(sizes)
    copy = blob._copy
    del blob
    assert given_back == [copy]
    assert copy is not None
    copy.close()  # no view of it is left
