"""What a task does to its process's limits, and descriptors that run out in a worker."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from outrider.engine.node import limits
from outrider.engine.node.blobs import SPARE, BlobStore
from outrider.engine.node.client_channels import Arrivals, NewChannel
from outrider.engine.wire import messages as m
from outrider.engine.wire.codec import encode

pytestmark = pytest.mark.anyio


def _lower(number: int, soft: int, hard: int | None = None) -> int:
    resource.setrlimit(number, (soft, resource.getrlimit(number)[1] if hard is None else hard))
    return os.getpid()


def _limits() -> tuple[int, list[tuple[int, int]]]:
    return os.getpid(), [resource.getrlimit(number) for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)]


def _keep_all() -> bytes:
    """Take every descriptor there is, and return what needs one."""
    _lower(resource.RLIMIT_NOFILE, 64)
    try:
        while True:
            os.dup(0)
    except OSError:
        return bytes(1 << 20)


async def test_a_limit_that_a_task_lowered_is_put_back(make):
    client = await make()
    before = await client.call(_limits)
    assert await client.call(_lower, resource.RLIMIT_NOFILE, 30) == before[0]
    assert await client.call(_limits) == before


async def test_one_that_lowered_what_only_root_can_raise_harms_no_later_one(make):
    client = await make()
    _, before = await client.call(_limits)
    await client.call(_lower, resource.RLIMIT_NOFILE, 30, 30)
    assert (await client.call(_limits))[1] == before


async def test_tasks_have_the_limit_that_their_node_was_started_with(make):
    client = await make()
    _, (descriptors, _) = await client.call(_limits)
    assert tuple(descriptors) == resource.getrlimit(resource.RLIMIT_NOFILE)


async def test_a_result_without_a_descriptor_to_travel_in_is_told_as_that(make):
    client = await make()
    answer = await client.call(_keep_all)
    assert isinstance(answer, m.Failed)
    assert answer.phase == "node"
    assert "no descriptors left, its limit is 64: raise it there (ulimit -n" in answer.message


def _open() -> set[int]:
    listing = [int(fd) for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return {fd for fd in listing if Path(f"/proc/self/fd/{fd}").exists()}  # but for the listing's own


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_message_without_its_descriptors_is_seen(room):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(ours, [b"message"], [0, 1, 2])
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = _open()
        free = [fd for fd in range(max(used) + 4) if fd not in used]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], before[1]))  # room for none, one or two
        try:
            received = limits.receive(theirs, 100, 3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert received == (b"message", None)
        assert _open() <= used


@contextmanager
def _limit(descriptors: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("kind", ["results", "arguments", "adopted"])
def test_blobs_leave_descriptors_for_the_channels_that_fetch_them(kind, tmp_path):
    """A store that took the last one could not be emptied any more: nobody could connect."""
    blob = tmp_path / "blob"
    blob.write_bytes(b"blob")
    store, used = BlobStore(same_host=False), _open()
    limit = max(used) + 40

    def add(number: int) -> bool:
        match kind:
            case "results":
                store.add_result(os.open(blob, os.O_RDONLY))
            case "arguments":
                store.add(f"a{number}", store.new())
            case "adopted":
                return store.adopt(f"a{number}", str(blob), 4)
        return True

    with _limit(limit):
        kept = 0
        with suppress(OSError):
            while kept < limit and add(kept):
                kept += 1
        spare = [os.dup(0) for _ in range(min(SPARE, limit // 4))]
        for fd in spare:
            os.close(fd)
    assert 0 < kept == len(store.names()) < limit
    store.close()
    assert _open() <= used  # an earlier test's may have been closed meanwhile


async def test_a_channel_that_was_accepted_needs_no_descriptor_to_be_served(tmp_path):
    blob = tmp_path / "blob"
    blob.write_bytes(bytes(1 << 20))
    store = BlobStore(same_host=False)
    name = store.add_result(os.open(blob, os.O_RDONLY))
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: NewChannel(lambda *_: None, Arrivals(store)), theirs
    )
    reader, writer = await asyncio.open_connection(sock=ours)
    with _limit(max(_open()) + 1):
        writer.write(encode(m.Get(name)))
        expected = encode(m.Have(name, 1 << 20)) + bytes(1 << 20)
        assert await reader.readexactly(len(expected)) == expected
    store.close()
    writer.close()


async def test_a_blob_that_is_dropped_while_it_is_sent_ends_its_channel(tmp_path):
    blob = tmp_path / "blob"
    blob.write_bytes(bytes(8 << 20))
    store = BlobStore(same_host=False)
    name = store.add_result(os.open(blob, os.O_RDONLY))
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: NewChannel(lambda *_: None, Arrivals(store)), theirs
    )
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(encode(m.Get(name)))
    await reader.readexactly(1000)
    store.drop([name])
    assert len(await reader.read()) < 8 << 20
    writer.close()


@pytest.mark.parametrize(("megabytes", "said"), [("500", "--mem=500M"), ("0", ""), ("", ""), ("all", "")])
def test_a_slurm_jobs_share_of_memory_is_named_by_its_option(megabytes: str, said: str) -> None:
    told = limits.job_memory({"SLURM_MEM_PER_NODE": megabytes})
    assert said in told
    assert bool(told) == bool(said)
