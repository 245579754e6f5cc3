"""One SSH connection to a machine: its host key pinned, a key of ours, and nothing of the user's SSH configuration."""

from __future__ import annotations

import os
import socket

import asyncssh

from ...providers.base import Machine
from ...providers.coalesce import CoalescingTransport, Dialer

CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
)
WINDOW_BYTES = 16 << 20  # for downloads; at 80 ms round trip asyncssh's 2 MiB would give 24 MB/s
PACKET_BYTES = 64 << 10  # larger packets cross malloc's mmap threshold
CONNECT_S = 10.0


def new_key() -> asyncssh.SSHKey:
    """A pool's own key pair; never stored."""
    return asyncssh.generate_private_key("ssh-ed25519")


async def connect(machine: Machine, key: asyncssh.SSHKey) -> tuple[asyncssh.SSHClientConnection, CoalescingTransport]:
    """Connect once, bounded by ``CONNECT_S``. Cancel-safe.

    Raises:
        OSError, asyncssh.Error: as asyncssh says it; `asyncssh.HostKeyNotVerifiable` for a wrong host key.
    """
    address = machine.address
    if address is None:
        raise ConnectionRefusedError(f"machine {machine.id} has no address yet")
    pinned = asyncssh.import_public_key(machine.host_key)
    dialer = Dialer(None if address.path is None else _unix_socket(address.path))
    connection = await asyncssh.connect(
        address.host,
        address.port,
        tunnel=dialer,
        username=address.user,
        client_keys=[key],
        known_hosts=([pinned], [], []),
        config=None,  # None: the user's files are not read
        agent_path=None,
        preferred_auth=["publickey"],
        encryption_algs=CIPHERS,
        compression_algs=None,
        encoding=None,
        connect_timeout=CONNECT_S,
        login_timeout=CONNECT_S,
    )
    assert dialer.transport is not None, "a connection has a transport"
    return connection, dialer.transport


def _unix_socket(path: str) -> socket.socket:
    """Connected and non-blocking; through the directory's descriptor, because ``sun_path`` holds 107 bytes."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        anchor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120
        try:
            sock.connect(f"/proc/self/fd/{anchor}/{os.path.basename(path)}")  # noqa: PTH119
        finally:
            os.close(anchor)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock
