"""The memory of large blobs is given back beside the executor's loop, which has to answer its client meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from outrider.engine.node import blobs
from outrider.engine.node.blobs import BlobStore
from outrider.engine.serialization.payload import Blob

MAY_CLOSE, CLOSED = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def slow_close(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def close(fd: int) -> None:
        assert MAY_CLOSE.wait(10), "whoever drops a blob waits for its memory"
        os.close(fd)
        CLOSED.set()

    monkeypatch.setattr(blobs, "_close", close)
    monkeypatch.setattr(blobs, "LARGE_BYTES", 1000)
    MAY_CLOSE.clear()
    CLOSED.clear()
    yield
    MAY_CLOSE.set()


def closed_later(fd: int) -> bool:
    file = os.fstat(fd)  # it is open
    MAY_CLOSE.set()
    assert CLOSED.wait(10)
    try:
        return not os.path.samestat(os.fstat(fd), file)  # another thread may have another file there already
    except OSError:
        return True


def test_a_large_blob_that_is_dropped_is_closed_in_a_thread() -> None:
    store, fd = BlobStore(same_host=False), blobs.write([bytes(1000)])
    store.add("b", fd)
    store.drop(["b"])
    assert store.fd("b") is None
    assert closed_later(fd)


def test_what_moves_to_the_disk_gives_its_memory_back_in_a_thread() -> None:
    store, fd, copy = BlobStore(same_host=False), blobs.write([bytes(1000)]), blobs.write([b"x" * 1000])
    store.add("b", fd)
    assert store.replace("b", copy)
    assert os.pread(fd, 1, 0) == b"x"
    MAY_CLOSE.set()
    assert CLOSED.wait(10)
    assert os.pread(fd, 1, 0) == b"x"
    store.close()


def test_a_clients_blob_is_closed_in_a_thread() -> None:
    blob = Blob("b", [bytes(1000)], 1000)
    fd = int(blob.share().rpartition("/")[2])
    blob.close()
    assert closed_later(fd)


def test_a_small_one_is_closed_at_once() -> None:
    MAY_CLOSE.set()
    store, fd = BlobStore(same_host=False), blobs.write([bytes(999)])
    store.add("b", fd)
    store.drop(["b"])
    assert CLOSED.is_set()


def test_without_threads_it_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    MAY_CLOSE.set()
    store, fd = BlobStore(same_host=False), blobs.write([bytes(1000)])
    store.add("b", fd)
    monkeypatch.setattr(threading.Thread, "start", refused)
    store.drop(["b"])
    assert CLOSED.is_set()
