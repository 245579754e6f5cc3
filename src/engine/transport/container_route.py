"""The route into a container: each program and each channel to the executor is a command on the container's host.

All data passes through the streams of ``docker exec -i`` or ``podman exec -i``: the container needs no network, no port
and no SSH server. The host is this computer, or a host that the user's login reaches by SSH. `LocalShell` runs commands
through such a command.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ...actors import events as ev
from ...actors.interfaces import ConnectFailed, NodeId
from ...providers.base import Machine
from ...providers.shared.inherited_files import keep_here
from ...providers.shared.local_command import LocalCommand
from ..api.printable import one_line
from ..image.commands import CommandResult, CommandRunner
from ..node.bridge import BEGINS
from . import ssh
from .bootstrapped_route import BootstrappedRoute, BridgeOutput
from .channels import Channel
from .connection_settings import ConnectionSettings
from .route import Route
from .ssh import RemoteShell
from .ssh_route import BRIDGES, SSHRoute

if TYPE_CHECKING:
    import asyncssh


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


# Error texts of Docker and Podman for a container that can run no more commands.
GONE = re.compile(r"no such container|no container with name|is not running|container state improper", re.IGNORECASE)


def route_to_container(node: NodeId, machine: Machine, settings: ConnectionSettings) -> Route:
    if machine.login is None:
        return LocalContainerRoute(node, machine, settings)
    return HostContainerRoute(node, machine, settings)


class PausedWarning:
    """A warning that a container is paused, sent once, though the node is tried several times before it counts as
    lost.
    """

    def __init__(self, observe: Callable[[ev.Event], object]) -> None:
        self._observe, self._reported = observe, False

    def report(self, text: str) -> None:
        if not self._reported:
            self._reported = True
            self._observe(ev.ProviderWarned(text))


class ContainerShell:
    """A `CommandRunner` inside a container, which uses the runner of the container's host.

    Args:
        shell: Returns a runner that puts the given words before each command.
        machine: The container.
        paused: Reports once that the container is paused.

    Raises:
        ConnectFailed: raised by `run` if the container is gone.
        ConnectionRefusedError: raised by `run` if the container is paused.
    """

    def __init__(
        self, shell: Callable[[Sequence[str]], CommandRunner], machine: Machine, paused: PausedWarning
    ) -> None:
        self._shell, self._machine, self._paused = shell, machine, paused
        self._runner = shell(machine.inside)

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        ended = await self._runner.run(argv, stdin=stdin, output=output)
        if ended.status and (line := gone_line(ended.stderr)):
            await self._check_paused()
            raise gone(self._machine, line)
        return ended

    async def _check_paused(self) -> None:
        """Raise an error if the container is paused: Podman's error is the same for paused and for ended containers."""
        *program, _, _, name = self._machine.inside  # as in `podman exec -i NAME`
        state = await self._shell(program).run(["inspect", "--format", "{{.State.Status}}", name])
        if state.stdout.strip() == b"paused":
            text = f"container {self._machine.id} is paused: `{program[-1]} unpause {name}` lets it go on"
            self._paused.report(text)
            raise ConnectionRefusedError(text)


def gone_line(stderr: bytes) -> str:
    """Return the last line of ``stderr`` if it says that the container is gone; else ""."""
    line = one_line(stderr.decode(errors="replace").strip().rpartition("\n")[2])
    return line if GONE.search(line) else ""


def gone(machine: Machine, reason: str) -> ConnectFailed:
    return ConnectFailed(f"container {machine.id} is gone: {reason}", fatal=True)


class HostContainerRoute(SSHRoute):
    """The route into a container on another host. Each container has its own SSH connection to the host."""

    def __init__(self, node: NodeId, machine: Machine, settings: ConnectionSettings) -> None:
        super().__init__(node, machine, settings)
        self._bridged = True
        self._paused = PausedWarning(settings.observe)

    def forget(self) -> None:
        super().forget()
        self._bridged = True

    def _shell(self) -> CommandRunner:
        return ContainerShell(partial(RemoteShell, self._connection), self._machine, self._paused)

    async def _dial(self) -> ssh.Connected:
        return await ssh.connect(self._machine, None, interpose=self._settings.interpose())

    async def open_connection(
        self, host: str, port: int
    ) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        command = self._bridge_command((host, str(port)))
        writer, reader, _ = await self._connection.open_session(command, encoding=None)
        await _begun(reader, host, port)
        return reader, writer


class LocalContainerRoute(BootstrappedRoute):
    """The route into a container on this computer, with one local process for each channel."""

    def __init__(self, node: NodeId, machine: Machine, settings: ConnectionSettings) -> None:
        super().__init__(node, machine, settings)
        self._channels: list[Channel] | None = None  # None: the container is not reached
        self._bridges = asyncio.Semaphore(BRIDGES)
        self._paused = PausedWarning(settings.observe)

    @property
    def reached(self) -> bool:
        return self._channels is not None

    @property
    def _shell(self) -> CommandRunner:
        return ContainerShell(LocalShell, self._machine, self._paused)

    async def reach(self, *, again: bool) -> None:
        if again:  # on the first call, no check is needed: the bootstrap fails if the container does not exist
            await self._shell.run(["true"])
        self._channels = []

    async def prepare(self) -> None:
        shell = self._shell
        self._renew_lease(shell)
        await self._bootstrap(shell)

    def turn(self) -> AbstractAsyncContextManager[object]:
        return self._bridges

    async def open_channel(self, channel: Channel) -> None:
        channels, executor = self._channels, self._executor
        if channels is None or executor is None:
            raise ConnectionResetError("the connection was lost")
        command = self._started((executor.executor_socket,))
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Carrier(channel, command, self._machine), sock=command.socket)
        except BaseException:
            command.socket.close()
            command.end()
            raise
        if channels is not self._channels:
            channel.abort()
            raise ConnectionResetError("the connection was lost")
        channels[:] = [each for each in channels if each.is_open]
        channels.append(channel)

    async def open_connection(self, host: str, port: int) -> tuple[Any, Any]:
        command = self._started((host, str(port)))
        try:
            reader, writer = await asyncio.open_connection(sock=command.socket)
            await _begun(reader, host, port)
        except BaseException:
            command.socket.close()
            command.end()
            raise
        return reader, _Writer(writer, command)

    def _started(self, to: Sequence[str]) -> LocalCommand:
        command = LocalCommand([*self._machine.inside, *self._bridge(to)])
        keep_here(command.socket)
        return command

    def abort(self) -> None:
        self.greeted()
        channels, self._channels = self._channels, None
        for channel in channels or ():
            channel.abort()


class _Carrier(asyncio.Protocol):
    """A channel over the streams of a command. The command ends with the channel."""

    def __init__(self, channel: Channel, command: LocalCommand, machine: Machine) -> None:
        self._channel, self._command, self._machine = channel, command, machine
        self._output = BridgeOutput()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._channel.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if data := self._output.begun(data):
            self._channel.data_received(data)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and not self._output.has_begun:
            reason = one_line(self._command.said.decode(errors="replace"))
            exc = ConnectionResetError(reason or "nothing is run in the container any more")
        self._command.end()
        self._channel.connection_lost(exc)


class _Writer:
    """The writer of a stream over a command. Closing the writer ends the command."""

    def __init__(self, writer: asyncio.StreamWriter, command: LocalCommand) -> None:
        self._writer, self._command = writer, command
        self.write, self.drain, self.write_eof = writer.write, writer.drain, writer.write_eof

    def close(self) -> None:
        self._writer.close()
        self._command.end()


async def _begun(reader: Any, host: str, port: int) -> None:
    try:
        await reader.readuntil(BEGINS)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionRefusedError(f"{host}:{port} is not reached from the container") from error
