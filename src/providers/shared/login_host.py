"""Commands on a login host (a host that the user reaches by SSH, or this computer), and the errors of failed commands.

A failed command is classified by its error output. The error says who has to act, and what to do next.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ...lazy_dataclass import dataclass
from ..base import Address, Login
from ..errors import BadRequest, HostAway, NotAuthorized, ProviderError

if TYPE_CHECKING:
    from .ssh_stops import Passed


AGAIN_S = 5.0
COMMAND_S = 60.0  # seconds after which timeout(1) ends a command, by default
KILL_S = 5.0  # seconds from SIGTERM to SIGKILL for a command that exceeds its time
ANSWER_S = KILL_S + 10.0  # seconds to wait for the reply after a command's time is over
CONNECT_S = 10.0
ALIVE_S = 15.0
# Pauses (seconds) between tries while the login host refuses to open another session.
REFUSED_PAUSES_S = (0.2, 1.0, 3.0)
AT_ONCE = 6  # most concurrent commands; sshd's own limit, MaxSessions, is 10
REQUEST_FAILED = 0xFFFFFFFF  # error code of asyncssh for a request that failed: OPEN_REQUEST_SESSION_FAILED
TIMED_OUT = (124, 137)  # exit codes of timeout(1) when it has ended the command


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command. ``status``: its exit code; None: a signal ended it."""

    status: int | None
    stdout: str = ""
    stderr: str = ""


class Commands(Protocol):
    """A computer on which commands can be run. ``where`` names it in texts: "here", or "on login"."""

    @property
    def where(self) -> str: ...

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = COMMAND_S) -> Ended:
        """Run a command. timeout(1) ends it after ``within_s`` seconds. If this call is cancelled, the command may run
        until then.

        Raises:
            HostAway: It is unknown whether the command ran.
            NotAuthorized: The host refuses the login, or its host key is not the known one.
        """
        ...


class Here:
    """Runs commands on this computer."""

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
    """A host as the user names it, with the keys and files to log in there."""

    host: str
    port: int | None = None
    user: str | None = None
    login: Login = field(default_factory=Login)

    @classmethod
    def parse(cls, text: str, login: Login) -> Place:
        """Parse ``host``, ``user@host`` or ``user@host:port``. A ValueError does not name the option that has
        the text.
        """
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
        """Parse a host. A ValueError names the ``option``, such as ``"Slurm(host=...)"``."""
        try:
            return cls.parse(text, login)
        except ValueError as error:
            raise ValueError(f"{option}: {text!r}: {error}") from None

    @property
    def text(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{f'{self.user}@' if self.user else ''}{host}{f':{self.port}' if self.port else ''}"


class LoginHost:
    """One SSH connection to a host. It is opened when a command first needs it, and again after it was lost."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: Passed | None = None
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

    async def _connected(self) -> Passed:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._connection = await _connect(self._place)
            return self._connection

    def _forget(self, connection: Passed) -> None:
        """Close a connection that has failed. If another task has already opened a new connection, keep that one."""
        if self._connection is connection:
            self._connection = None
        connection.abort()

    async def close(self) -> None:
        if self._connection is not None:
            self._forget(self._connection)


@asynccontextmanager
async def opened_commands(places: Sequence[Place]) -> AsyncIterator[Sequence[Commands]]:
    """Open `Commands` for each of these hosts; without hosts, for this computer. The connection to a host is made at
    its first command.
    """
    hosts = [LoginHost(each) for each in places]
    try:
        yield hosts or [Here()]
    finally:
        with anyio.CancelScope(shield=True):
            for each in hosts:
                await each.close()


def _nothing_ran(error: BaseException) -> bool:
    """Return whether the host refused to open a session, so that the command did not run. Other commands can still use
    the connection.
    """
    import asyncssh

    # REQUEST_FAILED proves nothing: asyncssh also reports it if the connection was lost after the command had been
    # sent.
    return isinstance(error, asyncssh.ChannelOpenError) and error.code != REQUEST_FAILED


async def _connect(place: Place) -> Passed:
    """Connect with the user's own SSH access, as the provider `SSH` does. Host keys are always checked.

    Raises:
        ProviderError: The host refuses the login, has another key than the known one, or cannot be reached.
    """
    import asyncssh

    from .ssh_stops import JumpFailed, dial, stops

    options: dict[str, Any] = {
        "connect_timeout": CONNECT_S,
        "login_timeout": CONNECT_S,
        "keepalive_interval": ALIVE_S,
    }
    try:
        way = await stops(Address(place.host, place.port, user=place.user), place.login, "")
        return await dial(way, options, to=way[-1])
    except JumpFailed as error:
        raise _refusal(f"{error.stop.place}, on the way to {place.text},", error.__cause__ or error) from error
    except (OSError, ValueError, asyncssh.Error) as error:
        raise _refusal(place.text, error) from error


def _refusal(host: str, error: BaseException) -> ProviderError:  # noqa: PLR0911  a table
    import asyncssh

    from .ssh_config import ConfigMistake
    from .ssh_stops import ProxyCommandFailed

    match error:
        case asyncssh.HostKeyNotVerifiable() if "revoked" in str(error):
            return NotAuthorized(
                f"{host} shows a host key that is revoked (@revoked in known_hosts, or RevokedHostKeys)",
                code="HostKey",
                advice="Ask whoever runs the host for its new key.",
            )
        case asyncssh.HostKeyNotVerifiable():
            return NotAuthorized(
                f"The host key of {host} is not the one that is known here, or none is: {error}",
                code="HostKey",
                advice=f"Log in once with `ssh {host}` and compare the key with what the site publishes.",
            )
        case asyncssh.PermissionDenied():
            return NotAuthorized(
                f"{host} does not let this user in: {error}",
                code="Login",
                advice=f"`ssh -o BatchMode=yes {host} true` must work: add your key there, or to the agent.",
            )
        case asyncssh.KeyExchangeFailed():
            advice = "Allow one that both have by Ciphers, MACs or KexAlgorithms of your SSH configuration."
            return BadRequest(f"{host} and Outrider have no algorithm in common: {error}", advice=advice)
        case ConfigMistake() | asyncssh.KeyImportError() | asyncssh.KeyEncryptionError():
            return BadRequest(f"The way to {host} cannot be read from its files: {error}")
        case ProxyCommandFailed(futile=True):
            return BadRequest(f"{host} cannot be reached: {error}")
        case _:
            return HostAway(f"{host} cannot be reached: {error}", retry_after_s=AGAIN_S, code="Unreached")


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def _text(data: object) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else str(data or "")


def _limited(argv: Sequence[str], within_s: float) -> list[str]:
    return ["timeout", f"--kill-after={KILL_S:g}", f"{within_s:g}", *argv]


# --- errors of failed commands ----------------------------------------------------------------------------------------


# Exit codes of a shell whose command was ended by a signal: 128 plus the signal's number. 255 is not one of them:
# sbatch itself exits with 255.
SIGNALLED = range(129, 128 + 64 + 1)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a failure whose output matches one of the ``patterns``. ``words``: the meaning, as a clause.

    ``again_s``: seconds after which a retry may succeed; None: no retry can succeed.
    """

    kind: type[ProviderError]
    words: str
    advice: str
    patterns: tuple[str, ...]  # regular expressions; upper and lower case count as equal
    again_s: float | None = None


def meant(text: str, meanings: Iterable[Meaning], sentence: Callable[[str], str]) -> ProviderError | None:
    """Return the error for a failed command's output ``text``, by the first `Meaning` with a matching pattern.

    None: no pattern matches. ``sentence``: a function that makes the error's message from `Meaning.words`.
    """
    for each in meanings:
        if re.search("|".join(each.patterns), text, re.IGNORECASE):
            return each.kind(sentence(each.words), retry_after_s=each.again_s, advice=each.advice)
    return None


def interrupted(command: str, ended: Ended, where: str, quoted: str = "") -> HostAway | None:
    """Return the error for a command that a time limit or a signal has ended; None: the command exited by itself."""
    if ended.status in TIMED_OUT:
        return HostAway(f"{command} {where} did not end in time{quoted}", retry_after_s=AGAIN_S, code="TimedOut")
    if ended.status is None or ended.status in SIGNALLED:
        return HostAway(f"A signal ended {command} {where}{quoted}", retry_after_s=AGAIN_S, code="Signal")
    return None
