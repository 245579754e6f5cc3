"""Run commands through a local command, as ``podman exec -i NAME`` runs them in a container."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import suppress

from ...providers.shared.local_command import LocalCommand
from ..image.commands import CommandResult

PIECE_BYTES = 256 << 10
LAST_BYTES = 64 << 10  # last bytes of stdout that are returned if the caller gives no ``output``
ENDS_S = 30.0  # seconds for the command to exit after the end of its output


class LocalShell:
    """An `engine.image.commands.CommandRunner` that runs each command through the local command ``inside``."""

    def __init__(self, inside: Sequence[str]) -> None:
        self._inside = tuple(inside)

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        """See `CommandRunner.run`. The status of a command that was ended by a signal is 128 + the signal's number."""
        try:
            command = LocalCommand([*self._inside, *argv])
        except OSError as error:
            raise ConnectionRefusedError(f"{self._inside[0]} cannot be started: {error.strerror}") from error
        try:
            reader, writer = await asyncio.open_connection(sock=command.socket)
        except BaseException:
            command.socket.close()
            command.end()
            raise
        kept = bytearray()

        def keep(data: bytes) -> None:
            kept.extend(data)
            del kept[:-LAST_BYTES]

        feeding = asyncio.ensure_future(_feed(writer, stdin))
        reading = asyncio.ensure_future(_read(reader, output or keep))
        try:
            await asyncio.wait([feeding, reading], return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                feeding.result()
            await reading
            status = await command.status(ENDS_S)
        finally:
            for task in (feeding, reading):
                task.cancel()
            await asyncio.wait([feeding, reading])
            writer.close()
            command.end()
        if status is None or status < 0:
            raise ConnectionResetError(f"{self._inside[0]} was ended from outside, or does not end")
        return CommandResult(status, None, bytes(kept), command.said)


async def _feed(writer: asyncio.StreamWriter, stdin: bytes | AsyncIterable[bytes]) -> None:
    """Write all of ``stdin`` and close it. If the command closes its input, drop the rest."""
    with suppress(OSError):
        if isinstance(stdin, bytes):
            writer.write(stdin)
        else:
            async for part in stdin:
                writer.write(part)
                await writer.drain()
        await writer.drain()
        writer.write_eof()


async def _read(reader: asyncio.StreamReader, output: Callable[[bytes], None]) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(PIECE_BYTES):
            output(data)
