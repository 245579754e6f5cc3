"""What lies between pool and machine loses nothing: it passes bytes on, holds them, or lets them come later."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, cast

import pytest

from outrider.testing.fault_injection.wires import FULL_BYTES, Wire, Wires

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Ends(NamedTuple):
    wire: Wire
    client: socket.socket
    machine: socket.socket


class Named:
    id = "m"


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    wires = Wires()
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setblocking(False)
    machine: Any = Named()
    client = await wires(machine, near)
    with client, far:
        yield Ends(wires.of("m"), client, far)


async def read(sock: socket.socket, size: int) -> bytes:
    loop, got = asyncio.get_running_loop(), b""
    async with asyncio.timeout(60):
        while len(got) < size and (data := await loop.sock_recv(sock, 1 << 16)):
            got += data
    return got


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def test_bytes_pass_both_ways(ends: Ends) -> None:
    await send(ends.client, b"there")
    await send(ends.machine, b"back")
    assert await read(ends.machine, 5) == b"there"
    assert await read(ends.client, 4) == b"back"


async def test_what_is_held_comes_in_order_with_the_end_last(ends: Ends) -> None:
    ends.wire.hold()
    await send(ends.machine, b"one ")
    await send(ends.machine, b"two")
    ends.machine.close()
    for _ in range(5):  # turns of the loop, in which it would have come
        await asyncio.sleep(0)
    with pytest.raises(BlockingIOError):
        ends.client.recv(10)
    ends.wire.release()
    assert await read(ends.client, 100) == b"one two"
    assert not ends.wire.used


async def test_two_partitions_must_both_end(ends: Ends) -> None:
    ends.wire.hold()
    ends.wire.hold()
    await send(ends.client, b"x")
    ends.wire.release()
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(BlockingIOError):
        ends.machine.recv(1)
    ends.wire.release()
    assert await read(ends.machine, 1) == b"x"


async def test_a_slow_wire_takes_its_time_and_loses_nothing(ends: Ends) -> None:
    ends.wire.slow(0.05, 64)
    data = bytes(range(256)) * 64  # 16 KiB at 64 KiB/s: a quarter of a second
    began = time.monotonic()
    await send(ends.client, data)
    assert await read(ends.machine, len(data)) == data
    assert time.monotonic() - began >= 0.2
    ends.wire.slow(None)
    assert ends.wire.plain


async def test_whoever_sends_more_than_a_wire_holds_waits_and_nothing_is_lost(ends: Ends) -> None:
    data = bytes(5 * FULL_BYTES)
    ends.wire.hold()
    sending = asyncio.ensure_future(send(ends.client, data))
    await asyncio.wait([sending], timeout=0.2)
    assert not sending.done()
    ends.wire.release()
    assert len(await read(ends.machine, len(data))) == len(data)
    await sending


async def test_cancelled_wire_leaves_no_descriptor() -> None:
    """Closed under a transport that lives, it stays in the loop's book: its next owner would never be woken."""
    loop: Any = asyncio.get_running_loop()
    before = set(loop._selector.get_map())
    near, far = socket.socketpair()
    wires = Wires()
    laying: asyncio.Task[socket.socket] = asyncio.ensure_future(wires(cast("Any", Named()), near))
    while not wires.of("m").flows:  # its first half is connected
        await asyncio.sleep(0)
    laying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await laying
    assert set(loop._selector.get_map()) == before
    await asyncio.sleep(0)
    assert not wires.of("m").flows
    far.close()
