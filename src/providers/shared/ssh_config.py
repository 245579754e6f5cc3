"""The effective SSH configuration of one host, as OpenSSH's own client computes it: ``ssh -G``.

If there is no OpenSSH client, or if there are several files, asyncssh's parser reads the configuration; it supports
fewer options. An option that has ssh's default value is not passed to asyncssh, so asyncssh's own default applies.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...lazy_dataclass import dataclass
from .paths import expanded
from .threads import in_thread

# Seconds to keep a result: long enough for the retries of a connection, and for a jump host that many hosts share.
KEPT_S = 30.0
READ_S = 20.0  # seconds that ``ssh -G`` may take; a `Match exec` or a DNS server may hang
AT_ONCE = 8  # most concurrent ``ssh -G`` processes; each takes 7 ms
PORT = 22
# Errors of ``ssh -G`` after which asyncssh reads the configuration instead: a user without a name in the system, a
# client before OpenSSH 6.8, and a jump host that would jump through itself.
_UNUSABLE = re.compile(r"No user exists for uid|usage:|(unknown|illegal|invalid) option|jumphost loop", re.IGNORECASE)
_MISTAKE = re.compile(r"line \d+|terminating, |Can't open user config|keyword|Bad ", re.IGNORECASE)
_TOKEN = re.compile(r"%(.)")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


class ConfigMistake(ValueError):
    """An error in the user's configuration; the text names the line or option, and what to do."""


class Query(NamedTuple):
    """A host whose configuration is to be read, from the files ``config``. If ``port`` or ``user`` is None, the
    configuration decides.
    """

    config: tuple[str, ...]
    host: str
    port: int | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """The SSH options for one host. A field that is empty or None is not set by the configuration."""

    host: str
    port: int | None = None
    user: str | None = None
    jump: str = ""
    proxy_command: str = ""  # a command line for a shell; its tokens, such as %h, are replaced
    identity_files: tuple[str, ...] | None = None
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str | None = None  # the SSH agent's socket; empty: use no agent; None: the usual socket
    known_hosts: tuple[str, ...] = ()
    revoked_keys: str = ""
    # Further options of a connection, by their names in asyncssh.
    more: Mapping[str, Any] = field(default_factory=dict)
    # Configuration files for asyncssh to read; asyncssh then uses only the options that the other fields do not set.
    read_by_asyncssh: tuple[str, ...] = ()


async def effective(query: Query) -> Effective:
    """Return the SSH configuration of a host. Without configuration files, it has only the values of ``query``. Safe to
    cancel.

    Raises:
        ConfigMistake: The configuration cannot work.
        OSError: The configuration cannot be computed at present, for example because DNS does not respond.
    """
    if not query.config:
        return Effective(query.host, query.port, query.user)
    loop = asyncio.get_running_loop()
    reader = _readers.get(loop)
    if reader is None:
        reader = _readers[loop] = _Reader()
    return await reader.read(query)


class _Reader:
    """Runs ``ssh -G`` once for each host, and keeps the result for `KEPT_S`. Each event loop has a reader of
    its own.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._answers: dict[object, tuple[float, asyncio.Future[Effective]]] = {}

    async def read(self, query: Query) -> Effective:
        now = asyncio.get_running_loop().time()
        key = (query, tuple(map(_version, query.config)))
        until, answer = self._answers.get(key, (0.0, None))
        if answer is None or until < now:
            self._answers = {each: kept for each, kept in self._answers.items() if kept[0] >= now}
            answer = asyncio.ensure_future(self._run(query))
            answer.add_done_callback(lambda over: self._over(key, over))
            self._answers[key] = now + KEPT_S, answer
        return await asyncio.shield(answer)

    def _over(self, key: object, over: asyncio.Future[Effective]) -> None:
        """Drop a result that failed, so that the next connection runs ``ssh -G`` again."""
        if over.cancelled() or over.exception() is not None:
            self._answers.pop(key, None)

    async def _run(self, query: Query) -> Effective:
        async with self._turns:
            return await in_thread(_read, query, abandon=True)


_readers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Reader] = WeakKeyDictionary()


def _version(path: str) -> tuple[int, int]:
    """Return a value that differs when the file has changed: its modification time and size."""
    try:
        state = os.stat(path)  # noqa: PTH116 - the path is a str
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size


# --- OpenSSH's client -------------------------------------------------------------------------------------------------


def _read(query: Query) -> Effective:
    program = shutil.which("ssh")
    if program is None or len(query.config) != 1:
        return _read_by_asyncssh(query)
    [config] = query.config
    command = _command(program, query)
    status, output, errors = _run(command)
    if status == 0 and "\nhostname " in f"\n{output}":
        base = _defaults(program)
        return of_output(output, base, query, tokens_of(output, query))
    if _UNUSABLE.search(errors) or status == 0:
        return _read_by_asyncssh(query)
    words = "; ".join(line for line in errors.splitlines() if line.strip()) or f"ssh ended with status {status}"
    if _MISTAKE.search(errors):
        again = f"`ssh -G -F {config} {query.host}` says whether it is mended"
        raise ConfigMistake(f"The SSH configuration has a mistake, as ssh says ({words}): {again}")
    raise ConnectionError(f"the SSH configuration of {query.host} could not be computed ({words})")


def _command(program: str, query: Query) -> list[str]:
    port = [] if query.port is None else ["-p", str(query.port)]
    user = [] if query.user is None else ["-l", query.user]
    return [program, "-G", "-T", "-F", *query.config, *port, *user, "--", query.host]


def _run(argv: Sequence[str]) -> tuple[int, str, str]:
    """Return a command's exit status, output and error output. Raises OSError if it takes too long or cannot start."""
    with subprocess.Popen(  # noqa: S603
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=READ_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            text = "look for a `Match exec` that hangs, or a name that the DNS does not answer for"
            raise ConnectionError(f"ssh has not computed the configuration within {READ_S:g} s: {text}") from None
    return process.returncode, output, errors


@cache
def _defaults(program: str) -> Mapping[str, tuple[str, ...]]:
    """Return the options that ``ssh -G`` shows without any configuration file: ssh's defaults."""
    return options_of(_run([program, "-G", "-T", "-F", "none", "localhost"])[1])


def options_of(output: str) -> dict[str, tuple[str, ...]]:
    """Parse the output of ``ssh -G``: first word of a line, in lower case -> the values."""
    options: dict[str, tuple[str, ...]] = {}
    for line in output.splitlines():
        name, _, value = line.partition(" ")
        if value:
            options[name.lower()] = (*options.get(name.lower(), ()), value)
    return options


def tokens_of(output: str, query: Query) -> dict[str, str]:
    """Return what ssh_config(5)'s tokens, such as %h, stand for, from the output of ``ssh -G`` for a host."""
    options = options_of(output)
    host, port, user = (options[name][0] for name in ("hostname", "port", "user"))
    jump = options.get("proxyjump", ("",))[0]
    local, home = socket.gethostname(), os.path.expanduser("~")  # noqa: PTH111 - the path is a str
    identity = hashlib.sha1(f"{local}{host}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest()
    return {
        "%": "%",
        "C": identity,
        "d": home,
        "h": host,
        "i": str(os.getuid()),
        "j": jump,
        "k": options.get("hostkeyalias", (query.host,))[0],
        "L": local.partition(".")[0],
        "l": local,
        "n": query.host,
        "p": port,
        "r": user,
        "u": _local_user(user),
    }


def _local_user(otherwise: str) -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return otherwise


def of_output(output: str, base: Mapping[str, tuple[str, ...]], query: Query, tokens: Mapping[str, str]) -> Effective:
    """Return the options that ``ssh -G`` shows with other values than ``base`` (ssh's defaults). No I/O; it reads
    environment variables.
    """
    options = options_of(output)
    own = {name: values for name, values in options.items() if values != base.get(name)}

    def one(name: str) -> str:
        """Return the value of an option; empty: the option is not set, or is set to ``none``."""
        value = own.get(name, ("",))[0]
        return "" if value.lower() == "none" else value

    def paths(name: str) -> tuple[str, ...]:
        return tuple(_path(each, tokens) for each in own.get(name, ()) if each.lower() != "none")

    known: list[str] = []
    if "userknownhostsfile" in own or "globalknownhostsfile" in own:
        for name in ("userknownhostsfile", "globalknownhostsfile"):
            known += _split_paths(options.get(name, ("",))[0])
    only = one("identitiesonly") == "yes"
    if only and "identityfile" not in own:
        own["identityfile"] = options.get("identityfile", ())
    if one("proxyusefdpass") == "yes":
        raise ConfigMistake(
            f"ProxyUseFdpass is set for {query.host}, and Outrider takes no descriptor from a ProxyCommand: leave it "
            "out, and have the command carry the connection itself, as `nc %h %p` does"
        )
    return Effective(
        host=options["hostname"][0],
        port=int(options["port"][0]),
        user=options["user"][0],
        jump=_replaced(one("proxyjump"), tokens),
        proxy_command=_replaced(one("proxycommand"), tokens),
        identity_files=paths("identityfile") if "identityfile" in own else None,
        certificate_files=paths("certificatefile"),
        identities_only=only,
        agent=_agent(own.get("identityagent", ("SSH_AUTH_SOCK",))[0]),
        known_hosts=tuple(known),
        revoked_keys=_path(one("revokedhostkeys"), tokens) if one("revokedhostkeys") else "",
        more=_more(own, one),
    )


def _more(own: Mapping[str, Sequence[str]], one: Callable[[str], str]) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if one("hostkeyalias"):
        more["host_key_alias"] = one("hostkeyalias")
    if one("addressfamily") in _FAMILIES:
        more["family"] = _FAMILIES[one("addressfamily")]
    if one("bindaddress"):
        more["local_addr"] = (one("bindaddress"), 0)
    if one("pkcs11provider"):
        more["pkcs11_provider"] = one("pkcs11provider")
    if one("pubkeyauthentication") in {"no", "false"}:
        more["public_key_auth"] = False
    size, _, seconds = one("rekeylimit").partition(" ")
    if size.isdecimal() and int(size):
        more["rekey_bytes"] = int(size)
    if seconds.isdecimal() and int(seconds):
        more["rekey_seconds"] = int(seconds)
    if "setenv" in own:
        more["env"] = list(own["setenv"])
    if "sendenv" in own:
        more["send_env"] = list(dict.fromkeys(own["sendenv"]))
    for name, option in ALGORITHMS.items():
        if one(name):
            more[option] = tuple(one(name).split(","))
    return more


_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
ALGORITHMS = {
    "ciphers": "encryption_algs",
    "kexalgorithms": "kex_algs",
    "macs": "mac_algs",
    "hostkeyalgorithms": "server_host_key_algs",
    "pubkeyacceptedalgorithms": "signature_algs",
    "pubkeyacceptedkeytypes": "signature_algs",  # the name of the option before OpenSSH 8.5
}


def _agent(value: str) -> str | None:
    """Return the agent's socket that ``IdentityAgent`` names, by a variable or a path. Empty: no agent. None: the usual
    socket.
    """
    if value == "SSH_AUTH_SOCK":
        return None
    if value.lower() == "none":
        return ""
    return os.environ.get(value[1:], "") if value.startswith("$") else str(expanded(value))


def _path(text: str, tokens: Mapping[str, str]) -> str:
    variables = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), text)
    return str(expanded(_replaced(variables, tokens)))


def _replaced(text: str, tokens: Mapping[str, str]) -> str:
    return _TOKEN.sub(lambda match: tokens.get(match[1], match[0]), text)


def _split_paths(text: str) -> list[str]:
    """Split a line of paths at the spaces. Words are one path with spaces if a file with that name exists."""
    words, paths = text.split(" "), list[str]()
    while words:
        most = range(len(words), 1, -1)
        length = next((n for n in most if os.path.isfile(expanded(" ".join(words[:n])))), 1)  # noqa: PTH113
        paths.append(" ".join(words[:length]))
        del words[:length]
    return [path for path in paths if path and path.lower() != "none"]


# --- without OpenSSH's client -----------------------------------------------------------------------------------------


def _read_by_asyncssh(query: Query) -> Effective:
    import asyncssh

    wishes: dict[str, Any] = {"config": list(query.config), "host": query.host, "client_keys": None}
    wishes |= {} if query.port is None else {"port": query.port}
    wishes |= {} if query.user is None else {"username": query.user}
    try:
        options: Any = asyncssh.SSHClientConnectionOptions(**wishes)
    except asyncssh.ConfigParseError as error:
        raise ConfigMistake(
            f"The SSH configuration cannot be read ({error}): mend that line, or install OpenSSH's client here, whose "
            "own parser is used then"
        ) from error
    get = options.config.get
    identities, jump = get("IdentityFile"), get("ProxyJump")
    known = [*(get("UserKnownHostsFile") or ()), *(get("GlobalKnownHostsFile") or ())]
    agent = get("IdentityAgent", "SSH_AUTH_SOCK")
    return Effective(
        host=query.host,
        port=query.port,
        user=query.user,
        jump=jump if isinstance(jump, str) and jump.lower() != "none" else "",
        proxy_command=get("ProxyCommand") or "",
        identity_files=None if identities is None else tuple(str(expanded(each)) for each in identities),
        certificate_files=tuple(str(expanded(each)) for each in get("CertificateFile") or ()),
        identities_only=bool(get("IdentitiesOnly")),
        agent=_agent(agent or "none"),
        known_hosts=tuple(known),
        read_by_asyncssh=query.config,
    )
