"""An SSH server in this process, on loopback, that runs commands with ``sh`` as sshd would."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import asyncssh
import pytest

from outrider.providers.base import Address, Login, Machine, MachineId


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _handshakes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy computer, where both ends are in one process, one takes longer than a user would wait for it."""
    monkeypatch.setattr("outrider.engine.transport.ssh.CONNECT_S", 60.0)
    monkeypatch.setattr("outrider.engine.transport.login.ASK_METHODS_S", 60.0)


@dataclass
class Site:
    """One server and what a client needs to log in."""

    folder: Path
    port: int = 0
    host_key: asyncssh.SSHKey = field(default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519"))
    methods: tuple[str, ...] = ("publickey",)
    logins: list[str] = field(default_factory=list)
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    forwarded: list[tuple[str, int]] = field(default_factory=list)
    children: list[asyncio.subprocess.Process] = field(default_factory=list)
    commands: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def public_key(self) -> str:
        return self.host_key.export_public_key().decode().strip()

    def known_hosts(self, key: str | None = None) -> str:
        file = self.folder / "known_hosts"
        file.write_text(f"[127.0.0.1]:{self.port} {key or self.public_key}\n")
        return str(file)

    def machine(self, **login: object) -> Machine:
        settings: dict[str, object] = {"keys": (str(self.folder / "key"),), **login}
        return Machine(
            MachineId(f"pool/127.0.0.1:{self.port}"),
            Address("127.0.0.1", self.port, user="ml"),
            host_key="",
            login=Login(**settings),  # type: ignore[arg-type]
        )


class Server(asyncssh.SSHServer):
    def __init__(self, site: Site) -> None:
        self._site = site

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        self._site.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        self._site.logins.append(username)
        return True

    def public_key_auth_supported(self) -> bool:
        return "publickey" in self._site.methods

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key == asyncssh.read_public_key(self._site.folder / "key.pub")

    def password_auth_supported(self) -> bool:
        return "password" in self._site.methods

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        self._site.forwarded.append((dest_host, dest_port))
        return True


def _begin(site: Site, process: asyncssh.SSHServerProcess[bytes]) -> None:
    site.commands.append(asyncio.ensure_future(_run(site, process)))


async def _run(site: Site, process: asyncssh.SSHServerProcess[bytes]) -> None:
    pipe = asyncio.subprocess.PIPE
    command = process.command or ""
    child = await asyncio.create_subprocess_exec(
        "sh", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    site.children.append(child)
    feeding = asyncio.ensure_future(_feed(process, child))
    try:
        with suppress(OSError, asyncssh.Error):
            await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
            process.exit(await child.wait())
        await feeding  # it hears of the end of the connection
    finally:
        feeding.cancel()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    try:
        while data := await process.stdin.read(65536):
            child.stdin.write(data)
            await child.stdin.drain()
    except asyncssh.SignalReceived as received:  # as OpenSSH does: to all of them
        with suppress(ProcessLookupError):
            os.killpg(child.pid, getattr(signal, f"SIG{received.signal}"))
    except (OSError, asyncssh.Error):
        pass
    finally:
        child.stdin.close()


async def _copy(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()


Serve = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(tmp_path / "key")
    key.write_public_key(tmp_path / "key.pub")

    @asynccontextmanager
    async def serving(**settings: object) -> AsyncIterator[Site]:
        site = Site(tmp_path, **settings)  # type: ignore[arg-type]
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=lambda: Server(site), server_host_keys=[site.host_key],
            process_factory=partial(_begin, site), encoding=None,
        )  # fmt: skip
        site.port = server.get_port()
        try:
            yield site
        finally:
            server.close()
            await server.wait_closed()
            for connection in site.connections:
                connection.abort()  # so that it begins nothing more
            for command in site.commands:  # also one that is about to start its process
                command.cancel()
            await asyncio.gather(*site.commands, return_exceptions=True)
            for child in site.children:  # all are killed; a command that was cancelled again has not waited for its own
                await child.wait()
            for _ in range(5):  # turns of the loop, in which their pipes are closed
                await asyncio.sleep(0)

    return serving
