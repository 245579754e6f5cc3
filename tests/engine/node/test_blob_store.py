"""The memory of large blobs is given back beside the executor's loop, which has to answer its client meanwhile."""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections.abc import Iterator

import pytest

from outrider.engine.node import blobs
from outrider.engine.node.blobs import BlobStore
from outrider.engine.serialization.payload import Blob


class SlowClose:
    """A close of descriptors that waits until it may. It is one test's own: a thread may close for the one before."""

    def __init__(self) -> None:
        self.may, self.closed = threading.Event(), queue.SimpleQueue[int]()

    def __call__(self, fd: int) -> None:
        assert self.may.wait(60), "whoever drops a blob waits for its memory"
        os.close(fd)
        self.closed.put(fd)

    def closed_later(self) -> int:
        """Return the descriptor that is closed when it may be, and not before."""
        assert self.closed.empty()
        self.may.set()
        return self.closed.get(timeout=60)


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowClose]:
    gc.collect()  # what other tests have left to it is closed now, and not by this one's close
    slow = SlowClose()
    monkeypatch.setattr(blobs, "_close", slow)
    monkeypatch.setattr(blobs, "LARGE_BYTES", 1000)
    yield slow
    slow.may.set()


def test_a_large_blob_that_is_dropped_is_closed_in_a_thread(slow: SlowClose) -> None:
    store, fd = BlobStore(same_host=False), blobs.write([bytes(1000)])
    store.add("b", fd)
    store.drop(["b"])
    assert store.fd("b") is None
    assert slow.closed_later() == fd


def test_what_moves_to_the_disk_gives_its_memory_back_in_a_thread(slow: SlowClose) -> None:
    store, fd, copy = BlobStore(same_host=False), blobs.write([bytes(1000)]), blobs.write([b"x" * 1000])
    store.add("b", fd)
    assert store.replace("b", copy)
    assert os.pread(fd, 1, 0) == b"x"
    assert slow.closed_later() != fd
    assert os.pread(fd, 1, 0) == b"x"
    store.close()


def test_a_clients_blob_is_closed_in_a_thread(slow: SlowClose) -> None:
    blob = Blob("b", [bytes(1000)], 1000)
    fd = int(blob.share().rpartition("/")[2])
    blob.close()
    assert slow.closed_later() == fd


def test_a_small_one_is_closed_at_once(slow: SlowClose) -> None:
    slow.may.set()
    store, fd = BlobStore(same_host=False), blobs.write([bytes(999)])
    store.add("b", fd)
    store.drop(["b"])
    assert slow.closed.get_nowait() == fd


def test_without_threads_it_is_closed_at_once(slow: SlowClose, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    slow.may.set()
    store, fd = BlobStore(same_host=False), blobs.write([bytes(1000)])
    store.add("b", fd)
    monkeypatch.setattr(threading.Thread, "start", refused)
    store.drop(["b"])
    assert slow.closed.get_nowait() == fd
