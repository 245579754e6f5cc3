"""Connect to a host by the user's own SSH access: find its jump hosts and their options, and connect through them.

Host keys are always checked, whatever the configuration says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh
from asyncssh.encryption import get_encryption_algs
from asyncssh.kex import get_kex_algs
from asyncssh.mac import get_mac_algs
from asyncssh.public_key import get_certificate_algs, get_public_key_algs

from ...lazy_dataclass import dataclass
from ..base import Address, Login
from . import ssh_config
from .local_command import LocalCommand
from .login_options import key_objection
from .ssh_config import ConfigMistake, Effective, Query
from .threads import in_thread

# The defaults of ssh's options UserKnownHostsFile and GlobalKnownHostsFile: see ssh(1).
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
JUMPS_AT_MOST = 8  # most jump hosts: a configuration may by mistake send a jump host through itself, without end
ENDS_S = 1.0  # seconds that a ProxyCommand has, after the connection failed, to exit and print its error
CIPHERS = (  # the first three are the fastest; a hardened server may accept only the others, in counter mode
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
_NOBODY: Any = ([], [], [])  # host keys to trust: none. With None instead, asyncssh would not check host keys at all.
_KRL = b"SSHKRL\n"  # the first bytes of a file of revoked keys (PROTOCOL.krl of OpenSSH)
_ITS_OWN = (asyncssh.HostKeyNotVerifiable, asyncssh.PermissionDenied, asyncssh.KeyImportError)


@dataclass(frozen=True, slots=True)
class Stop:
    """One host on the way to the machine: a jump host, or, as the last stop, the machine itself."""

    host: str
    port: int
    options: asyncssh.SSHClientConnectionOptions
    known_hosts: Any  # the known host keys, in the form that asyncssh accepts
    # A command line for a shell, which connects to this host; used only if this is the first host on the way.
    proxy_command: str = ""
    skipped: tuple[str, ...] = ()  # keys that the configuration names and that are not used, each with the reason

    @property
    def place(self) -> str:
        return self.host if self.port == 22 else f"{self.host} port {self.port}"

    @property
    def known_name(self) -> str:
        return self.options.host_key_alias or self.host

    def knows(self) -> bool:
        """Return whether any key is known for this host. If so, another key means that the host's key has changed."""
        matching = asyncssh.match_known_hosts(self.known_hosts, self.known_name, "", self.port)
        return any(matching[:2])


class JumpFailed(ConnectionError):
    """A connection to a jump host, or through it, failed. The error's ``__cause__`` has the reason."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(f"jump host {stop.host}")
        self.stop = stop


class ProxyCommandFailed(ConnectionError):
    """A ProxyCommand gave no connection. ``futile``: the shell could not start the command, so a retry is useless."""

    def __init__(self, text: str, *, futile: bool) -> None:
        super().__init__(text)
        self.futile = futile


# --- the hosts --------------------------------------------------------------------------------------------------------


async def stops(address: Address, way: Login, host_key: str, *, jumps_at_most: int = JUMPS_AT_MOST) -> Sequence[Stop]:
    """Return the hosts on the way to the machine, each with its login. The machine itself comes last.

    Raises:
        ConfigMistake: The configuration cannot work.
        asyncssh.Error, OSError, ValueError: A key or a known_hosts file cannot be read; ``host_key`` is not a key.
    """
    settings = await ssh_config.effective(Query(way.config, address.host, address.port, address.user))
    last = await in_thread(_stop, settings, way, host_key)
    jumps = way.jump or settings.jump
    if not jumps:
        return [last]
    if not jumps_at_most:
        raise ConfigMistake(f"more than {JUMPS_AT_MOST} jump hosts, one behind another; does one lead through itself?")
    passed: list[Stop] = []
    for text in jumps.split(","):
        hop = jump_address(text)
        if way.jump or passed:
            settings = await ssh_config.effective(Query(way.config, hop.host, hop.port, hop.user))
            passed.append(await in_thread(_stop, settings, way, ""))
        else:  # as in ssh, only the first jump host may have jump hosts of its own in the configuration (ProxyJump)
            passed += await stops(hop, way, "", jumps_at_most=jumps_at_most - 1)
    return [*passed, last]


async def jumps(way: Login) -> Sequence[Stop]:
    """Return the jump hosts for an address that is reached by a command: the last jump host runs the command.

    Raises the same errors as `stops`.
    """
    assert way.jump
    before, _, last = way.jump.rpartition(",")
    return await stops(jump_address(last), replace(way, jump=before or None), "")


def jump_address(text: str) -> Address:
    """Parse the address of a jump host: ``user@host:port``, with or without ``ssh://``."""
    user, _, place = text.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = place.partition(":") if place.count(":") == 1 else (place, "", "")
    if port and not port.isdecimal():
        raise ConfigMistake(f"the jump host {text!r} has no port after its colon: write user@host:port")
    return Address(host, int(port) if port else None, user=user or None)


def _stop(settings: Effective, way: Login, host_key: str) -> Stop:
    wishes: dict[str, Any] = {
        **_supported(settings),
        "config": list(settings.read_by_asyncssh) or None,
        "host": settings.host,
        "tunnel": None,
        "proxy_command": None,
        "agent_forwarding": False,
        "preferred_auth": "gssapi-with-mic,publickey",
        "gss_kex": False,  # a Kerberos key exchange would use no host key, so none could be checked
        "gss_delegate_creds": False,
        "request_pty": False,  # a terminal would change the bytes that are received
    }
    if settings.port is not None:
        wishes["port"] = settings.port
    if settings.user is not None:
        wishes["username"] = settings.user
    keys = _keys(settings, way)
    known_hosts: Any = _known_hosts(settings, way)
    if host_key:
        known_hosts = ([asyncssh.import_public_key(host_key)], [], [])
    known_hosts = known_hosts or _NOBODY
    options = asyncssh.SSHClientConnectionOptions(**wishes, **keys.options, known_hosts=known_hosts)
    return Stop(options.host, options.port, options, known_hosts, settings.proxy_command, keys.skipped)


def _supported(settings: Effective) -> dict[str, Any]:
    """Return the options of the configuration for asyncssh, without algorithms that asyncssh does not have."""
    options: dict[str, Any] = dict(settings.more)
    if not settings.read_by_asyncssh:
        options.setdefault("encryption_algs", CIPHERS)
    names: dict[str, Sequence[bytes]] = {
        "encryption_algs": get_encryption_algs(),
        "kex_algs": get_kex_algs(),
        "mac_algs": get_mac_algs(),
        "server_host_key_algs": [*get_certificate_algs(), *get_public_key_algs()],
        "signature_algs": get_public_key_algs(),
    }
    for option, present in names.items():
        wanted = options.get(option)
        if wanted is None:
            continue
        options[option] = [each for each in wanted if each.encode() in present]
        if not options[option]:
            word = next(name for name, its in ssh_config.ALGORITHMS.items() if its == option)
            raise ConfigMistake(
                f"Of the algorithms that the SSH configuration allows for {settings.host} as {word} "
                f"({', '.join(wanted)}) Outrider has none: add one of {b', '.join(present[:6]).decode()}"
            )
    return options


# --- keys -------------------------------------------------------------------------------------------------------------


class _Keys(NamedTuple):
    options: dict[str, Any]  # options of an asyncssh connection that say which keys to use
    skipped: tuple[str, ...] = ()


class _NoKeys(list[Any]):
    """An empty list that counts as true. If the list of keys counted as false, asyncssh would use the usual key
    files.
    """

    def __bool__(self) -> bool:
        return True


def _keys(settings: Effective, way: Login) -> _Keys:
    """Return the keys for the login. If the configuration names files that cannot be used, skip them, as ssh does."""
    if way.keys:
        return _Keys({"client_keys": list(way.keys), "agent_path": None})
    options: dict[str, Any] = {} if settings.agent is None else {"agent_path": settings.agent}
    skipped: list[str] = []
    certificates = [each for each in settings.certificate_files if _readable(each, "CertificateFile", skipped)]
    if settings.identity_files is None:
        return _Keys(options | ({"client_certs": certificates} if certificates else {}), tuple(skipped))
    pairs, identities = _NoKeys(), list[bytes]()
    for path in settings.identity_files:
        if not _readable(path, "IdentityFile", skipped):
            continue
        if public := _public(path):
            identities.append(public)
        try:
            pairs += asyncssh.load_keypairs(path, certlist=certificates)
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, asyncssh.KeyGenerationError, OSError) as error:
            # No problem if the file is a public key: the SSH agent has the private key.
            if not public or not _is_public(path):
                skipped.append(f"{path} {key_objection(Path(path)) or f'cannot be read ({error})'}")
    identities += [pair.public_data for pair in pairs]
    if settings.identities_only:
        options |= {"agent_identities": identities} if identities else {"agent_path": ""}
    return _Keys(options | {"client_keys": pairs, "client_certs": []}, tuple(skipped))


def _readable(path: str, option: str, skipped: list[str]) -> bool:
    if os.access(path, os.R_OK) and Path(path).is_file():
        return True
    skipped.append(f"{option} {path} {'cannot be read' if os.path.exists(path) else 'is not there'}")  # noqa: PTH110
    return False


def _public(path: str) -> bytes:
    """Return the public key in a file, or in the file with ``.pub`` added to its name; empty: unknown."""
    for each in (path, f"{path}.pub"):
        try:
            return asyncssh.read_public_key(each).public_data
        except (asyncssh.KeyImportError, OSError, ValueError):
            continue
    return b""


def _is_public(path: str) -> bool:
    try:
        asyncssh.read_public_key(path)
    except (asyncssh.KeyImportError, OSError, ValueError):
        return False
    return True


# --- host keys --------------------------------------------------------------------------------------------------------


def _known_hosts(settings: Effective, way: Login) -> Any:
    """Return the known host keys. Invalid lines of the files are skipped, as ssh does."""
    files = way.known_hosts or (settings.known_hosts if way.config else ()) or KNOWN_HOSTS
    paths = [path for path in (Path(each).expanduser() for each in files) if path.is_file()]
    lines = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
    lines += [f"@revoked * {line}" for line in _revoked(settings.revoked_keys)]
    entries = [line for line in lines if len(line.split()) >= (4 if line.startswith("@") else 3)]
    return asyncssh.import_known_hosts("\n".join([*entries, ""])) if entries else None


def _revoked(path: str) -> list[str]:
    if not path:
        return []
    try:
        revoked = Path(path).read_bytes()
    except OSError as error:
        raise ConfigMistake(
            f"RevokedHostKeys names {path}, which cannot be read ({error.strerror}): no host is trusted then"
        ) from error
    if revoked.startswith(_KRL):
        raise ConfigMistake(
            f"RevokedHostKeys names {path}, which is a key revocation list in binary, and Outrider reads public keys "
            "alone, one a line: give a file of these"
        )
    return [line for line in revoked.decode(errors="replace").splitlines() if not line.startswith("#")]


# --- the connections --------------------------------------------------------------------------------------------------


class Dialling(asyncssh.SSHClient):
    """An SSH client that records whether its connection was established, so that asyncssh now owns the socket."""

    connected = False

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:  # noqa: ARG002
        self.connected = True


@dataclass(frozen=True, slots=True)
class Passed:
    """The open connections to all hosts on the way to the machine. The last is the connection to the machine."""

    connections: Sequence[asyncssh.SSHClientConnection]
    command: LocalCommand | None  # the ProxyCommand of the first connection; None: there is none

    @property
    def connection(self) -> asyncssh.SSHClientConnection:
        return self.connections[-1]

    def is_closed(self) -> bool:
        return self.connection.is_closed()

    async def run(self, command: str, **options: Any) -> asyncssh.SSHCompletedProcess:
        """Run a command on the machine; see `asyncssh.SSHClientConnection.run`."""
        return await self.connection.run(command, **options)

    def abort(self) -> None:
        _abort(self.connections, self.command)


def _abort(connections: Sequence[asyncssh.SSHClientConnection], command: LocalCommand | None) -> None:
    for connection in reversed(connections):
        connection.abort()
    if command is not None:
        command.end()


async def dial(
    stops: Sequence[Stop],
    options: dict[str, Any],
    *,
    to: Stop | None = None,
    client: Callable[[], Dialling] = Dialling,
    on_connection: Callable[[asyncssh.SSHClientConnection], object] = lambda _: None,
) -> Passed:
    """Connect to the jump hosts in their order, then to the machine. As with ``ssh -J``, each connection goes through
    the one before. Safe to cancel.

    ``options``: asyncssh's options for all connections. ``on_connection``: called with each new connection.

    Raises:
        JumpFailed: The connection to a host failed. For the host ``to``, the original error is raised instead.
    """
    connections: list[asyncssh.SSHClientConnection] = []
    command: LocalCommand | None = None
    try:
        for stop in stops:
            try:
                if not connections and stop.proxy_command:
                    command = _started(stop)
                    connection = await _through_command(stop, options, command, client)
                else:
                    through = connections[-1] if connections else None
                    connection = await asyncssh.connect(
                        stop.host,
                        stop.port,
                        tunnel=through,
                        client_factory=client,
                        options=stop.options,
                        config=None,
                        **options,
                    )
            except (OSError, asyncssh.Error) as error:
                if stop is to:
                    raise
                raise JumpFailed(stop) from error
            on_connection(connection)
            connections.append(connection)
    except BaseException:  # also if cancelled: leave no connection and no ProxyCommand open
        _abort(connections, command)
        raise
    return Passed(connections, command)


def _started(stop: Stop) -> LocalCommand:
    """Start the ProxyCommand that connects to a host. As with ssh, the user's shell runs the command by exec."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    try:
        return LocalCommand([shell, "-c", f"exec {stop.proxy_command}"])
    except OSError as error:
        raise ProxyCommandFailed(f"the shell {shell} cannot be started: {error.strerror}", futile=True) from error


async def _through_command(
    stop: Stop, options: dict[str, Any], command: LocalCommand, client: Callable[[], Dialling]
) -> asyncssh.SSHClientConnection:
    sock, dialling = command.socket, client()
    try:
        return await asyncssh.connect(
            stop.host,
            stop.port,
            sock=sock,
            client_factory=lambda: dialling,
            options=stop.options,
            config=None,
            **options,
        )
    except _ITS_OWN:
        raise
    except (OSError, asyncssh.Error) as error:
        raise await _failed(stop, error, command) from error
    finally:
        if not dialling.connected:
            sock.close()


async def _failed(stop: Stop, error: Exception, command: LocalCommand) -> ProxyCommandFailed:
    lost = not isinstance(error, TimeoutError)
    status = await command.status(ENDS_S if lost else 0.0)
    lines = [line.strip() for line in command.said.decode(errors="replace").splitlines() if line.strip()]
    words = f", and printed: {'; '.join(lines)}" if lines else ", and printed no error"
    shown = f"its ProxyCommand `{stop.proxy_command}`"
    if status is None:
        return ProxyCommandFailed(f"{shown} has reached no SSH server ({error or 'in time'}){words}", futile=False)
    how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
    text = f"{shown} {how} before an SSH server was reached{words}"
    return ProxyCommandFailed(text, futile=status in {126, 127})
