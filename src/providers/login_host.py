"""Run commands on a host by SSH, as its user would, or on this computer."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ..lazy_dataclass import dataclass
from .base import Login
from .errors import BadRequest, HostAway, NotAuthorized

if TYPE_CHECKING:
    import asyncssh

AGAIN_S = 5.0
COMMAND_S = 60.0  # a command ends itself after so long
KILL_S = 5.0  # between SIGTERM and SIGKILL of a command that takes too long
ANSWER_S = KILL_S + 10.0  # after a command should have ended itself
CONNECT_S = 10.0
ALIVE_S = 15.0
REFUSED_PAUSES_S = (0.2, 1.0, 3.0)  # when the login host opens no further session
AT_ONCE = 6  # commands; sshd's MaxSessions is 10
REQUEST_FAILED = 0xFFFFFFFF  # asyncssh's own OPEN_REQUEST_SESSION_FAILED
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
TIMED_OUT = (124, 137)  # how timeout(1) ends


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command. ``status``: None: a signal ended it."""

    status: int | None
    stdout: str = ""
    stderr: str = ""


class Commands(Protocol):
    """A computer that runs commands. ``where``: "here", or "on login"."""

    @property
    def where(self) -> str: ...

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = COMMAND_S) -> Ended:
        """Run a command, which ends itself after ``within_s`` seconds. Cancelled, it may go on for as long.

        Raises:
            HostAway: nobody knows whether it ran.
            NotAuthorized: the host lets nobody in, or is not the one that was known.
        """
        ...


class Here:
    """The commands of this computer."""

    where = "here"

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = COMMAND_S) -> Ended:
        words = _limited(argv, within_s)
        try:
            with anyio.fail_after(within_s + ANSWER_S):
                done = await anyio.run_process(words, input=stdin, check=False)
        except TimeoutError as error:
            raise HostAway(f"{argv[0]} did not end in time", retry_after_s=AGAIN_S) from error
        except FileNotFoundError as error:
            raise BadRequest(
                f"There is no {words[0]} here, with which Outrider limits how long commands take",
                code="NoTimeout",
                advice="Have the PATH of this program lead to it: it is one of coreutils' programs.",
            ) from error
        except OSError as error:
            raise HostAway(f"{argv[0]} cannot be started here: {error}", retry_after_s=AGAIN_S) from error
        status = done.returncode if done.returncode >= 0 else None
        return Ended(status, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Place:
    """A host as the user names it, and how to get in."""

    host: str
    port: int | None = None
    user: str | None = None
    login: Login = field(default_factory=Login)

    @classmethod
    def parse(cls, text: str, login: Login) -> Place:
        """Read ``host``, ``user@host`` or ``user@host:port``; a ValueError has no name of an option."""
        user, _, rest = text.rpartition("@")
        name, port = rest, ""
        if rest.startswith("["):
            name, _, port = rest[1:].partition("]")
            port = port.removeprefix(":")
        elif rest.count(":") == 1:
            name, _, port = rest.partition(":")
        if not name or name.startswith("-") or any(c.isspace() for c in text) or (port and not _is_port(port)):
            raise ValueError("write host, user@host or user@host:port, as for ssh")
        return cls(name, int(port) if port else None, user or None, login)

    @classmethod
    def of_option(cls, option: str, text: str, login: Login) -> Place:
        """Read a host; a ValueError names the ``option``, such as ``"Slurm(host=...)"``."""
        try:
            return cls.parse(text, login)
        except ValueError as error:
            raise ValueError(f"{option}: {text!r}: {error}") from None

    @property
    def text(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{f'{self.user}@' if self.user else ''}{host}{f':{self.port}' if self.port else ''}"


class LoginHost:
    """One SSH connection to a host, made when a command needs it, and made anew when it is lost."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: asyncssh.SSHClientConnection | None = None
        self._connecting = anyio.Lock()
        self._turns = anyio.Semaphore(AT_ONCE)

    @property
    def where(self) -> str:
        return f"on {self._place.host}"

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = COMMAND_S) -> Ended:
        import asyncssh

        command = shlex.join(_limited(argv, within_s))
        async with self._turns:
            pauses_s = iter(REFUSED_PAUSES_S)
            while True:
                connection = await self._connected()
                try:
                    with anyio.fail_after(within_s + ANSWER_S):
                        done = await connection.run(command, input=stdin, encoding=None)
                except (OSError, TimeoutError, asyncssh.Error) as error:
                    pause_s = next(pauses_s, None) if _nothing_ran(error) else None
                    if pause_s is None:
                        if not _nothing_ran(error):
                            self._forget(connection)
                        raise HostAway(
                            f"The connection to {self._place.host} was lost: {error}", retry_after_s=AGAIN_S
                        ) from error
                    await anyio.sleep(pause_s)
                else:
                    break
        if done.exit_status is None and done.exit_signal is None:
            raise HostAway(f"The connection to {self._place.host} was lost", retry_after_s=AGAIN_S)
        return Ended(None if done.exit_signal else done.exit_status, _text(done.stdout), _text(done.stderr))

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._connection = await _connect(self._place)
            return self._connection

    def _forget(self, connection: asyncssh.SSHClientConnection) -> None:
        """Close a connection that has failed, and not the one that others may have made since."""
        if self._connection is connection:
            self._connection = None
        connection.abort()

    async def close(self) -> None:
        if self._connection is not None:
            self._forget(self._connection)


@asynccontextmanager
async def opened_commands(places: Sequence[Place]) -> AsyncIterator[Sequence[Commands]]:
    """Open the commands of hosts, or without any those of this computer. Hosts are connected to when they are asked."""
    hosts = [LoginHost(each) for each in places]
    try:
        yield hosts or [Here()]
    finally:
        with anyio.CancelScope(shield=True):
            for each in hosts:
                await each.close()


def _nothing_ran(error: BaseException) -> bool:
    """Return whether no session was opened. The connection is not to blame: other commands go on in it."""
    import asyncssh

    # asyncssh says that a request failed also where the connection was lost after the command had been sent.
    return isinstance(error, asyncssh.ChannelOpenError) and error.code != REQUEST_FAILED


async def _connect(place: Place) -> asyncssh.SSHClientConnection:
    import asyncssh

    try:
        return await asyncssh.connect(place.host, **await _options(place))
    except asyncssh.HostKeyNotVerifiable as error:
        raise NotAuthorized(
            f"The host key of {place.host} is not the one that is known here, or none is: {error}",
            code="HostKey",
            advice=f"Log in once with `ssh {place.host}` and compare the key with what the site publishes.",
        ) from error
    except asyncssh.PermissionDenied as error:
        raise NotAuthorized(
            f"{place.text} does not let this user in: {error}",
            code="Login",
            advice=f"`ssh -o BatchMode=yes {place.text} true` must work: add your key there, or to the agent.",
        ) from error
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, asyncssh.ConfigParseError) as error:
        raise BadRequest(f"The way to {place.text} cannot be read from its files: {error}") from error
    except (OSError, asyncssh.Error) as error:
        raise HostAway(f"{place.text} cannot be reached: {error}", retry_after_s=AGAIN_S, code="Unreached") from error


async def _options(place: Place) -> dict[str, Any]:
    """Return how asyncssh is to connect. Host keys are always checked."""
    import asyncssh

    login = place.login
    wishes: dict[str, Any] = {
        "config": list(login.config) or None,
        "agent_forwarding": False,
        "preferred_auth": "gssapi-with-mic,publickey",
        "gss_kex": False,  # with it Kerberos would vouch for the host, and its key be compared with none
        "gss_delegate_creds": False,
        "connect_timeout": CONNECT_S,
        "login_timeout": CONNECT_S,
        "keepalive_interval": ALIVE_S,
    }
    wishes |= {} if place.port is None else {"port": place.port}
    wishes |= {} if place.user is None else {"username": place.user}
    wishes |= {"client_keys": list(login.keys), "agent_path": None} if login.keys else {}
    wishes |= {"tunnel": login.jump} if login.jump else {}
    said: Any = None
    if login.config and not login.known_hosts:
        said = (await asyncssh.SSHClientConnectionOptions.construct(host=place.host, **wishes)).known_hosts
    nobody: Any = ([], [], [])  # never None, with which asyncssh would check nothing
    return {**wishes, "known_hosts": _files(login.known_hosts or said or KNOWN_HOSTS) or nobody}


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def _files(paths: Sequence[object]) -> list[str]:
    found = (Path(str(each)).expanduser() for each in paths)
    return [str(each) for each in found if each.is_file()]


def _text(data: object) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else str(data or "")


def _limited(argv: Sequence[str], within_s: float) -> list[str]:
    return ["timeout", f"--kill-after={KILL_S:g}", f"{within_s:g}", *argv]
