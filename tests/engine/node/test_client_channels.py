"""A blob that goes out on a real socket, which the kernel fills from the blob itself."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from outrider.engine.node import blobs
from outrider.engine.node.blobs import BlobStore
from outrider.engine.node.client_channels import BlobOut
from outrider.engine.wire.codec import encode
from outrider.engine.wire.messages import Have

pytestmark = pytest.mark.anyio
SIZE = 3_000_001  # several times what a socket holds
DATA = os.urandom(SIZE)


@pytest.fixture
async def store() -> AsyncIterator[BlobStore]:
    store = BlobStore(same_host=False)
    store.add("b", blobs.write([DATA]))
    yield store
    store.close()


@pytest.fixture
async def reader(store: BlobStore) -> AsyncIterator[socket.socket]:
    """The other end of a connection on which the blob goes out."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    BlobOut(transport, "b", store).begin()
    yield theirs
    theirs.close()
    transport.abort()


async def come(reader: socket.socket, size_bytes: int) -> bytes:
    """Return so many bytes, or fewer where the connection ends before."""
    received = b""
    while len(received) < size_bytes:
        data = await asyncio.get_running_loop().sock_recv(reader, 70_000)
        if not data:
            break
        received += data
    return received


async def test_it_goes_out_whole_and_in_order(reader: socket.socket) -> None:
    head = encode(Have("b", SIZE))
    assert await come(reader, len(head) + SIZE) == head + DATA


async def test_it_ends_where_the_client_drops_it(reader: socket.socket, store: BlobStore) -> None:
    store.drop(["b"])
    received = await come(reader, 2 * SIZE)
    assert 0 < len(received) < SIZE
    assert (encode(Have("b", SIZE)) + DATA).startswith(received)
