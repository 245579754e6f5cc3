"""Blobs that move to the disk: what they are there, and what becomes of those for which there is no room."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.engine.node import blobs, stored_blobs
from outrider.engine.node.blobs import BlobStore
from outrider.engine.node.stored_blobs import DiskBlobs
from outrider.engine.wire.messages import NotMoved

pytestmark = pytest.mark.anyio
CONTENT = bytes(range(256)) * 100


@pytest.fixture
def store() -> Iterator[BlobStore]:
    store = BlobStore(same_host=True)
    store.add("a", blobs.write([CONTENT]))
    store.add("b", blobs.write([CONTENT]))
    yield store
    store.close()


def content(fd: int | None) -> bytes:
    assert fd is not None
    return os.pread(fd, 10**6, 0)


async def until(done: list[object]) -> object:
    async with asyncio.timeout(60):
        while not done:
            await asyncio.sleep(0.001)
    return done.pop()


async def test_it_becomes_a_file_without_a_name_under_the_same_descriptor(store: BlobStore, tmp_path: Path) -> None:
    told: list[object] = []
    before = store.fd("a")
    DiskBlobs(store, tmp_path, moved=told.append, send=told.append).move(["a", "gone"])
    assert await until(told) == "a"
    assert store.fd("a") == before
    status = os.fstat(before or 0)
    assert (stat.S_IMODE(status.st_mode), status.st_nlink, status.st_size) == (0o600, 0, len(CONTENT))
    assert status.st_dev == tmp_path.stat().st_dev
    assert content(before) == CONTENT
    assert [*tmp_path.iterdir()] == []
    assert not os.get_inheritable(before or 0)


async def test_where_the_disk_is_full_it_stays_in_memory(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(stored_blobs, "FREE_SHARE", 1.1)
    moving = DiskBlobs(store, tmp_path, moved=told.append, send=told.append)
    moving.move(["a"])
    assert await until(told) == NotMoved("a", "its disk is full")
    assert content(store.fd("a")) == CONTENT
    monkeypatch.setattr(stored_blobs, "FREE_SHARE", 0.0)
    moving.move(["b"])
    assert await until(told) == "b"


async def test_one_that_is_dropped_meanwhile_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    told: list[object] = []
    DiskBlobs(store, tmp_path, moved=told.append, send=told.append).move(["a", "b"])
    store.drop(["a"])
    assert await until(told) == "b"
    assert store.names() == ("b",)
    assert [*tmp_path.iterdir()] == []
