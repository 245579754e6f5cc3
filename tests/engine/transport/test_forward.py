"""Ports here that lead to a node: what is written comes through, both ends close, and nothing listens afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from outrider.engine.transport.connection import Forwards

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
    writer.write(b"bye\n")
    writer.close()


@asynccontextmanager
async def opened() -> AsyncIterator[Forwards]:
    forwards = Forwards()
    try:
        yield forwards
    finally:
        await forwards.close()


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def takes_connections(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


async def test_bytes_come_through_both_ways_and_ends_too() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server, opened() as forwards:
        address = await forwards.open(asyncio.open_connection, *server.sockets[0].getsockname())
        near = [await asyncio.open_connection(*place(address)) for _ in range(3)]
        for number, (reader, writer) in enumerate(near):
            writer.write(f"line {number}\n".encode() + b"more\n" * 200_000)
            assert await reader.readline() == f"LINE {number}\n".encode()
        for reader, writer in near:
            writer.write_eof()
            assert await reader.read() == b"MORE\n" * 200_000 + b"bye\n"
            writer.close()
    async with asyncio.timeout(60):
        while await takes_connections(*place(address)):  # of whoever has got the port since
            await asyncio.sleep(0.1)


async def test_a_connection_that_cannot_be_made_there_is_closed_here() -> None:
    async def dial(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise ConnectionResetError("the connection was lost")

    async with opened() as forwards:
        reader, writer = await asyncio.open_connection(*place(await forwards.open(dial, "10.0.0.1", 80)))
        assert await reader.read() == b""
        writer.close()


async def test_leaving_ends_what_is_open() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server:
        async with opened() as forwards:
            address = await forwards.open(asyncio.open_connection, *server.sockets[0].getsockname())
            reader, writer = await asyncio.open_connection(*place(address))
            writer.write(b"hello\n")
            assert await reader.readline() == b"HELLO\n"
        assert await reader.read() == b""
        writer.close()
