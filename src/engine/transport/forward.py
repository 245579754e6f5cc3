"""Local ports on the loopback interface that forward, over a node's SSH connection, to ports that the node reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 256 << 10

Dial = Callable[[str, int], Awaitable[tuple[Any, Any]]]


class Forwards:
    """The forwarded ports of a pool.

    `open` adds a port, which listens until `close`. A forwarded connection ends with the SSH connection that carries
    it; the next one uses the node's SSH connection at that time.
    """

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._piping: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._piping:
            task.cancel()
        if self._piping:
            await asyncio.wait(self._piping)

    async def open(self, dial: Dial, host: str, port: int) -> str:
        """Return the address of a new local port that leads to ``host:port`` on the node's network."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None, "asyncio's servers run their callbacks in tasks"
            self._piping.add(task)
            task.add_done_callback(self._piping.discard)
            try:
                await _joined(reader, writer, dial, host, port)
            finally:
                writer.close()

        server = await asyncio.start_server(accepted, LOOPBACK, 0)
        self._servers.append(server)
        local: tuple[str, int] = server.sockets[0].getsockname()
        return f"{local[0]}:{local[1]}"


async def _joined(near_in: Any, near_out: Any, dial: Dial, host: str, port: int) -> None:
    import asyncssh  # pools on this computer do not need this import

    try:
        far_in, far_out = await dial(host, port)
    except (OSError, asyncssh.Error):  # the local program sees its connection closed at once
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_piped(near_in, far_out))
            both.create_task(_piped(far_in, near_out))
    except* (OSError, asyncssh.Error):
        pass
    finally:
        far_out.close()


async def _piped(reader: Any, writer: Any) -> None:
    while data := await reader.read(PIECE_BYTES):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
