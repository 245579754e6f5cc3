"""A local machine's SSH server and, in the same process, its executor.

The channel that a client opens to the machine's door is answered here: the same protocol as on a real host, where
sshd forwards it to the executor daemon's socket, with two hops fewer (measured: half the latency). Nothing listens on
TCP; the server's own socket is a unix socket in the machine's private directory.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import asyncssh

from ..shortcut import shorten, shorten_channel

DOOR = "/outrider/executor"
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")
WINDOW_BYTES = 16 << 20  # what may be in flight: sshd's own 2 MiB would stall bulk transfers
PACKET_BYTES = 64 << 10  # larger packets cross malloc's mmap threshold


class Door(Protocol):
    def received(self, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def lost(self) -> None: ...


class Home(Protocol):
    """The object that `Embedding.home` makes: an executor behind any number of channels."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def door(self, channel: Any) -> Door: ...


MakeHome = Callable[..., Home]  # (forks, *, directory, address, same_host, ended, accelerators)


def prepare(directory: Path) -> tuple[socket.socket, asyncssh.SSHKey, str]:
    """The listening socket, the host key and its public half: what a client needs before the server runs."""
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    listener = socket.socket(socket.AF_UNIX)
    anchor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{anchor}/ssh.sock")  # a path of any length: sun_path holds 107 bytes
        (directory / "ssh.sock").chmod(0o600)
    finally:
        os.close(anchor)
    listener.listen(64)
    return listener, host_key, host_key.export_public_key().decode().strip()


def serve(
    order: dict[str, Any], listener: socket.socket, host_key: asyncssh.SSHKey, forks: socket.socket, make_home: MakeHome
) -> None:
    """The machine's own process, until its executor ends."""
    try:
        os.setpgid(0, order["group"])
    except (PermissionError, ProcessLookupError):  # the machine is dead already
        os._exit(0)
    gc.set_threshold(50_000, 50, 100)  # no user code here: what is collected often is what tasks pass through
    asyncio.run(_serve(order, listener, host_key, forks, make_home))
    os._exit(0)


async def _serve(
    order: dict[str, Any], listener: socket.socket, host_key: asyncssh.SSHKey, forks: socket.socket, make_home: MakeHome
) -> None:
    ended = asyncio.Event()
    home = make_home(
        forks,
        directory=Path(order["directory"]),
        address="127.0.0.1",
        same_host=True,
        ended=ended.set,
        accelerators=order["accelerators"],
    )
    await home.start()
    user = asyncssh.import_public_key(order["client_key"])
    await asyncssh.listen(
        sock=listener,
        server_factory=lambda: Server(home, user),
        server_host_keys=[host_key],
        encryption_algs=CIPHERS,
        kex_algs=["curve25519-sha256"],
        compression_algs=None,
        encoding=None,
        window=WINDOW_BYTES,
        max_pktsize=PACKET_BYTES,
        login_timeout=30,
        config=None,
    )
    await ended.wait()
    await home.close()


class Server(asyncssh.SSHServer):
    """One accepted key, one kind of channel, nothing else: no shell, no exec, no forwarding."""

    def __init__(self, home: Home, user: asyncssh.SSHKey) -> None:
        self.home, self.user = home, user

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.conn = conn
        shorten(conn)

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        return key.public_data == self.user.public_data

    def unix_connection_requested(self, dest_path: str) -> Any:
        if dest_path != DOOR:
            return False
        channel = self.conn.create_unix_channel(encoding=None, window=WINDOW_BYTES, max_pktsize=PACKET_BYTES)
        return channel, DoorSession(self.home)


class DoorSession(asyncssh.SSHUNIXSession[bytes]):
    """Joins one SSH channel to one door."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        shorten_channel(chan)
        self.chan = chan
        self.door = self.home.door(self)

    def write(self, data: bytes) -> None:
        self.chan.write(data)

    def close(self) -> None:
        self.chan.close()

    def pause_reading(self) -> None:
        self.chan.pause_reading()

    def resume_reading(self) -> None:
        self.chan.resume_reading()

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        self.door.received(data)

    def pause_writing(self) -> None:
        self.door.pause_writing()

    def resume_writing(self) -> None:
        self.door.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.door.lost()
