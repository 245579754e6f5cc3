"""Commands on a host over its SSH connection. Implements `engine.image.commands.CommandRunner`."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncssh

from ..api.printable import plainly
from ..image.commands import CommandResult

SLICE_BYTES = 256 << 10
STDERR = 1  # RFC 4254, 5.2: SSH_EXTENDED_DATA_STDERR
LAST_BYTES = 64 << 10  # of stderr, and of stdout that nobody listens to: what an error shows


class RemoteShell:
    """Each command has a channel of its own; the connection stays the caller's."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self._connection = connection

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        """See `CommandRunner.run`. Cancelled, it closes the channel: the command's input ends and its output breaks."""
        command = _Command(output)
        opening = asyncio.ensure_future(
            self._connection.create_session(lambda: command, shlex.join(argv), encoding=None)
        )
        opening.add_done_callback(command.opened)
        try:
            await asyncio.shield(opening)
            feeding = asyncio.ensure_future(command.feed(stdin))
            feeding.add_done_callback(command.fed)
            try:
                return await command.wait()
            finally:
                feeding.cancel()
        except asyncssh.Error as error:
            raise ConnectionResetError(f"the connection was lost: {plainly(error)}") from error
        finally:
            command.end()


class _Command(asyncssh.SSHClientSession[bytes]):
    def __init__(self, output: Callable[[bytes], None] | None) -> None:
        self._output = output
        self._over = False
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._texts = {None: bytearray(), STDERR: bytearray()}
        self._status: int | None = None
        self._signal: str | None = None
        self._lost: Exception | None = None
        self._failed: BaseException | None = None
        self._ended = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # --- asyncssh's side ------------------------------------------------------------------------------------------

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if datatype is None and self._output is not None:
            self._output(data)
            return
        text = self._texts[datatype]
        text += data
        if len(text) > 2 * LAST_BYTES:
            del text[:-LAST_BYTES]

    def exit_status_received(self, status: int) -> None:
        self._status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: ARG002
        self._signal = signal

    def eof_received(self) -> bool:
        return True  # its exit status is still to come

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc
        self._writable.set()
        self._ended.set()

    # --- ours -----------------------------------------------------------------------------------------------------

    async def feed(self, stdin: bytes | AsyncIterable[bytes]) -> None:
        """Write all of ``stdin`` as fast as the command takes it; what is left when the command ends is dropped."""
        with suppress(BrokenPipeError):  # it reads no more
            if isinstance(stdin, bytes):
                view = memoryview(stdin)
                for at in range(0, len(view), SLICE_BYTES):
                    await self._write(bytes(view[at : at + SLICE_BYTES]))
            else:
                async for part in stdin:
                    await self._write(part)
            self._out.write_eof()

    def fed(self, feeding: asyncio.Future[None]) -> None:
        """End the command with the error that the input's own iterator raised."""
        if not feeding.cancelled() and (error := feeding.exception()) is not None:
            self._failed = error
            self._ended.set()

    async def _write(self, data: bytes) -> None:
        await self._writable.wait()
        if self._ended.is_set():
            raise BrokenPipeError
        self._out.write(data)

    @property
    def _out(self) -> asyncssh.SSHClientChannel[bytes]:
        assert self._channel is not None, "a command is fed when its channel is open"
        return self._channel

    async def wait(self) -> CommandResult:
        """Return how the command ended.

        Raises:
            ConnectionResetError: the connection was lost before the command had ended.
        """
        await self._ended.wait()
        if self._failed is not None:
            raise self._failed
        if self._status is None and self._signal is None:
            raise ConnectionResetError(f"the connection was lost: {self._lost or 'closed by the other side'}")
        out, errors = self._texts.values()
        return CommandResult(self._status, self._signal, bytes(out), bytes(errors))

    def opened(self, opening: asyncio.Future[Any]) -> None:
        """A cancelled open would leak the channel: one that comes late closes itself."""
        if not opening.cancelled() and opening.exception() is None and self._over:
            self._out.close()

    def end(self) -> None:
        self._over = True
        if self._channel is not None:
            self._channel.close()
