"""One SSH connection to a machine, with its host key checked: by the pool's own key, or as the user would log in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncssh

from ...providers.base import Login, Machine
from ...providers.inherited import keep_here
from . import login
from .unix_socket import Interpose, connected

CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
)
WINDOW_BYTES = 16 << 20  # for downloads; at 80 ms round trip asyncssh's 2 MiB would give 24 MB/s
PACKET_BYTES = 64 << 10  # larger packets cross malloc's mmap threshold
CONNECT_S = 10.0
ALIVE_S = 15.0  # between probes of a connection that says nothing, as in a long installation; three unanswered end it


class JumpFailed(ConnectionError):
    """A host on the way to the machine cannot be passed; its cause says why."""

    def __init__(self, stop: login.Stop) -> None:
        super().__init__(f"jump host {stop.host}")
        self.stop = stop


class _Client(asyncssh.SSHClient):
    connected = False

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:  # noqa: ARG002
        self.connected = True


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Connected:
    """A connection and those it goes through, which end with it. No child that is forked has it."""

    connection: asyncssh.SSHClientConnection
    hops: Sequence[asyncssh.SSHClientConnection] = ()

    def __post_init__(self) -> None:
        keep_here(self)

    def fileno(self) -> int:
        """Return the descriptor of the only socket, which leads to the first host on the way; -1: it is closed."""
        first = self.hops[0] if self.hops else self.connection
        sock = first.get_extra_info("socket")
        return -1 if sock is None else sock.fileno()

    def abort(self) -> None:
        self.connection.abort()
        for hop in reversed(self.hops):
            hop.abort()


PoolKey = asyncssh.SSHKey


def new_key() -> PoolKey:
    """A pool's own key pair; stored only where its machines outlive their client: see `engine.client.takeover`."""
    return asyncssh.generate_private_key("ssh-ed25519")


def private_text(key: PoolKey) -> str:
    """Return the private key as text, for a file that nobody else may read."""
    return key.export_private_key().decode()


def kept_key(text: str) -> PoolKey:
    """Return the key from text that `private_text` made."""
    return asyncssh.import_private_key(text)


async def connect(
    machine: Machine, key: asyncssh.SSHKey, host_keys: Sequence[str] = (), interpose: Interpose | None = None
) -> Connected:
    """Connect once, bounded by the machine's ``patience_s``, else ``CONNECT_S``, for each host on the way. Cancel-safe.

    ``host_keys``: pinned in place of the machine's own, for one that the pool itself has replaced.

    Raises:
        OSError, asyncssh.Error: as asyncssh says it; `asyncssh.HostKeyNotVerifiable` for a wrong host key.
    """
    address = machine.address
    if address is None:
        raise ConnectionRefusedError(f"machine {machine.id} has no address yet")
    within_s = machine.patience_s or CONNECT_S
    common = {
        "encryption_algs": CIPHERS,
        "compression_algs": None,
        "encoding": None,
        "connect_timeout": within_s,
        "login_timeout": within_s,
    }
    if not machine.on_this_computer:
        common["keepalive_interval"] = ALIVE_S
    if machine.login is not None:
        return await _as_the_user(machine, machine.login, common)
    sock = None if address.path is None else connected(address.path)
    client = _Client()
    try:
        if sock is not None and interpose is not None:
            sock = await interpose(machine, sock)
        connection = await asyncssh.connect(
            address.host or machine.id,  # a socket without a name has no peer to be called by
            address.port or 22,
            sock=sock,
            client_factory=lambda: client,
            username=address.user or "root",
            client_keys=[key],
            known_hosts=([asyncssh.import_public_key(each) for each in host_keys or (machine.host_key,)], [], []),
            config=None,  # None: the user's files are not read
            agent_path=None,
            preferred_auth=["publickey"],
            gss_host=None,  # nor Kerberos: a key exchange by it would compare no host key
            gss_kex=False,
            **common,
        )
    except BaseException:
        if sock is not None and not client.connected:  # else it is asyncssh's to close, when the loop has let go of it
            sock.close()
        raise
    return Connected(connection)


async def _as_the_user(machine: Machine, way: Login, common: dict[str, Any]) -> Connected:
    """Connect through each jump host in turn. As ``ssh -J`` does, each host is dialled from the one before."""
    assert machine.address is not None
    stops = await login.stops(machine.address, way, machine.host_key)
    hops: list[asyncssh.SSHClientConnection] = []
    try:
        for stop in stops:
            through = hops[-1] if hops else None  # None: nor what the configuration says, which is in `stops`
            try:
                hop = await asyncssh.connect(
                    stop.host, stop.port, tunnel=through, options=stop.options, config=None, **common
                )
            except (OSError, asyncssh.Error) as error:
                if stop is stops[-1]:
                    raise
                raise JumpFailed(stop) from error
            hops.append(hop)
    except BaseException:
        for hop in reversed(hops):
            hop.abort()
        raise
    return Connected(hops[-1], hops[:-1])
