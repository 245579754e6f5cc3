"""A node's parts of checkpoints: opened where another node has them, verified, and free to be written again."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource

import numpy as np
import pytest

from outrider.engine.checkpoint.slot import Slot
from outrider.engine.checkpoint.snapshot import Snapshot
from outrider.engine.node.blobs import FREE, BlobStore
from outrider.engine.node.stored_blobs import HEAD_BYTES, NamedBlobs, Replicas, part_digest
from outrider.engine.wire.messages import LOST, Kept, Replicate, Replicated

pytestmark = pytest.mark.anyio
SIZE = HEAD_BYTES + 100_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def part(content: bytes = b"x" * 100_000) -> int:
    fd = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
    os.write(fd, b"\x01" + bytes(HEAD_BYTES - 1) + content + b"slack")
    return fd


class Node:
    def __init__(self) -> None:
        self.store, self.said = BlobStore(same_host=True), asyncio.Queue[Replicated]()
        self.replicas = Replicas(self.store, self.said.put_nowait)

    async def asked(self, blob: str, path: str = "", told: int | None = None, size: int = SIZE) -> Replicated:
        self.replicas.handle(Replicate(blob, path, size, told))
        async with asyncio.timeout(60):
            return await self.said.get()


async def test_a_node_opens_what_another_has_and_says_where_others_find_it() -> None:
    node, fd = Node(), part()
    told = part_digest(os.pread(fd, SIZE, 0), SIZE)
    first = await node.asked("a", f"/proc/{os.getpid()}/fd/{fd}")
    os.close(fd)
    assert (first.blob, first.problem) == ("a", "")
    second = await node.asked("b", first.path, told)
    node.store.drop(["a"])
    assert second.problem == ""
    assert (await node.asked("b", "", told)).path == second.path
    node.store.close()


async def test_what_is_damaged_too_short_or_not_there_is_told() -> None:
    node, fd = Node(), part()
    told = part_digest(os.pread(fd, SIZE, 0), SIZE)
    os.pwrite(fd, b"y", HEAD_BYTES + 50_000)
    assert (await node.asked("a", f"/proc/{os.getpid()}/fd/{fd}", told)).problem == "it is damaged"
    assert (await node.asked("a", "", told, SIZE + 1000)).problem == "it is not there"
    assert (await node.asked("b", "/proc/1/fd/none", told)).problem == "it is not there"
    assert (await node.asked("b")).problem == "it is not there"
    os.close(fd)
    node.store.close()


def kept(store: BlobStore, fds: list[int] | None) -> Kept:
    named = NamedBlobs(store).named(Kept(1, "run", 0, 5, 2, False, SIZE, 7, ""), fds)
    assert isinstance(named, Kept)
    return named


async def test_a_rank_writes_its_memory_again_when_its_node_has_dropped_it() -> None:
    store, fd = BlobStore(same_host=True), part()
    message = kept(store, [os.dup(fd)])
    assert os.pread(fd, 1, 0) != FREE
    store.drop([message.blob])
    assert os.pread(fd, 1, 0) == FREE
    os.close(fd)


async def test_a_rank_sees_in_its_memory_that_its_state_is_safe() -> None:
    store, slot, state = BlobStore(same_host=True), Slot(), {"total": np.ones(1000)}
    slot.begin()
    slot.finish(Snapshot(state, slot), 0)
    assert slot.safe, "nobody waits for what was never left"
    blob = kept(store, [slot.take()]).blob
    assert not slot.safe
    store.mark_safe(["another", blob])
    assert slot.safe
    assert not slot.free
    store.drop([blob])
    assert slot.free
    blob = kept(store, [slot.take()]).blob
    assert not slot.safe, "it holds another state"
    store.close()
    slot.close()


async def test_what_a_node_cannot_keep_is_free_at_once() -> None:
    store, fd = BlobStore(same_host=True), part()
    assert kept(store, None).blob.startswith(LOST)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = fcntl.fcntl(fd, fcntl.F_DUPFD, fd + 40)  # one that is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (high + 2, hard))
    try:
        assert kept(store, [high]).blob.startswith(LOST)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(high)
    assert os.pread(fd, 1, 0) == FREE
    os.close(fd)
