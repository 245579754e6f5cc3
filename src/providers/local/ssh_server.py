"""The SSH server of a local machine that tests use like a remote machine. Like sshd, it forwards channels to a socket.

The server is one process of the machine, and forwards only to the socket of the machine's executor. It does not listen
on TCP: its own unix socket is also in the machine's private directory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import asyncssh

from ..shared.sockets import EXECUTOR_SOCKET

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")
LOGIN_S = 30.0


def new_host_key() -> tuple[str, str]:
    """Return a private key and its public key, in OpenSSH's format."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key().decode(), key.export_public_key().decode().strip()


def serve(listener: socket.socket, directory: Path, host_key: str, client_key: str) -> None:
    """Serve forever. Only ``client_key`` may log in."""
    os.chdir(directory)  # so that a short relative path names the executor's socket
    asyncio.run(_serve(listener, asyncssh.import_private_key(host_key), asyncssh.import_public_key(client_key)))


async def _serve(listener: socket.socket, host_key: asyncssh.SSHKey, client_key: asyncssh.SSHKey) -> None:
    server = await asyncssh.listen(
        sock=listener,
        server_factory=lambda: _Server(client_key),
        server_host_keys=[host_key],
        encryption_algs=CIPHERS,
        kex_algs=["curve25519-sha256"],
        compression_algs=None,
        login_timeout=LOGIN_S,
        config=None,
    )
    await server.wait_closed()


class _Server(asyncssh.SSHServer):
    """An SSH server that accepts one key and forwards to one socket: no shell, no commands, no TCP."""

    def __init__(self, client_key: asyncssh.SSHKey) -> None:
        self._client_key = client_key

    def begin_auth(self, username: str) -> bool:
        del username
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        del username
        return key.public_data == self._client_key.public_data

    def unix_connection_requested(self, dest_path: str) -> bool:
        return dest_path == EXECUTOR_SOCKET
