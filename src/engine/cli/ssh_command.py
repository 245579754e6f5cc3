"""OpenSSH command lines that reach a machine as its pool does: with the pool's key, and with host keys checked.

No I/O.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ...lazy_dataclass import dataclass
from ...providers.base import Address, Login

ALIAS = "outrider"  # the host name under which the known_hosts file has the pinned host keys
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
_ALWAYS = {  # options of every ssh command: it must not ask questions, accept new host keys or forward anything
    "StrictHostKeyChecking": "yes",
    "BatchMode": "yes",
    "UpdateHostKeys": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "LogLevel": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Way:
    """The route to a machine by SSH.

    ``key``: the path of the pool's private key; empty: log in as ``login`` says. ``host_keys``: the host must present
    one of these; empty: the user's known_hosts are used. If ``address`` has a command, ssh connects through that
    command (a ProxyCommand), and ``login`` describes how to reach the host on which the command runs.
    """

    address: Address
    key: str = ""
    host_keys: tuple[str, ...] = ()
    login: Login | None = None

    @property
    def pins(self) -> str:
        """The text of a known_hosts file with the pinned host keys."""
        return "".join(f"{ALIAS} {key}\n" for key in self.host_keys)


def ssh_command(way: Way, pins: Path, *, terminal: bool, command: Sequence[str] = ()) -> list[str]:
    """Return the ssh command line that runs ``command`` on the machine; without a command, it opens a shell.

    ``pins``: the path of a file with the text of `Way.pins`.
    """
    login = way.login or Login()
    options = {**_ALWAYS, **_host_keys(way, login, pins)}
    config = login.config
    if way.address.command:
        # the user's SSH configuration applies to the host of the ProxyCommand, and not to the machine
        options["ProxyCommand"], config = _carried(way.address.command, login), ()
    elif login.jump:
        options["ProxyCommand"] = _through(login.jump.split(","), way.address, login)
    keys = (way.key,) if way.key else login.keys
    words = ["ssh", *_words(options, keys, config), *(["-t"] if terminal else ["-n"] if command else [])]
    return [*words, *_destination(way.address), *((shlex.join(command),) if command else ())]


def _host_keys(way: Way, login: Login, pins: Path) -> dict[str, str]:
    if way.host_keys:
        return {"UserKnownHostsFile": str(pins), "GlobalKnownHostsFile": "/dev/null", "HostKeyAlias": ALIAS}
    return _known_hosts(login)


def _known_hosts(login: Login) -> dict[str, str]:
    """Return the ssh options that name the files with known host keys.

    Returns no options if the user's SSH configuration is used, because it may name other files.
    """
    if login.known_hosts:
        files = " ".join(f'"{each}"' for each in login.known_hosts)
        return {"UserKnownHostsFile": files, "GlobalKnownHostsFile": "/dev/null"}
    return {} if login.config else dict(zip(("UserKnownHostsFile", "GlobalKnownHostsFile"), KNOWN_HOSTS, strict=True))


def _words(options: dict[str, str], keys: Sequence[str], config: Sequence[str]) -> list[str]:
    words = ["-F", config[0] if config else "none"]
    if keys:
        options = {**options, "IdentitiesOnly": "yes", "IdentityAgent": "none"}
        words += [word for key in keys for word in ("-i", key)]
    return words + [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _destination(address: Address) -> list[str]:
    words = []
    if address.port is not None:
        words += ["-p", str(address.port)]
    if address.user is not None:
        words += ["-l", address.user]
    return [*words, "--", address.host]


def _host(address: Address) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host


def _carried(command: Sequence[str], login: Login) -> str:
    """Return the ProxyCommand for an address with a command. If the login has a jump host, the command runs on that
    host.
    """
    if not login.jump:
        return shlex.join(command).replace("%", "%%")
    *before, last = login.jump.split(",")
    return _hop(before, last, login, run=shlex.join(command))


def _through(jumps: Sequence[str], to: Address, login: Login) -> str:
    """Return the ProxyCommand that connects to the address ``to`` through jump hosts.

    `ssh -J` is not used, because it would ask whether to trust the jump hosts.
    """
    *before, last = jumps
    return _hop(before, last, login, forward=f"{_host(to)}:{to.port or 22}")


def _hop(before: Sequence[str], last: str, login: Login, *, forward: str = "", run: str = "") -> str:
    """Return the command line that logs in to the host ``last``, and there connects its input and output to the address
    ``forward`` or to the command ``run``.

    ``before``: the jump hosts on the way to the host ``last``.
    """
    from ...providers.ssh import Host

    hop = Host.parse(last)
    at = Address(hop.name, hop.port, user=hop.user)
    options = {**_ALWAYS, **_known_hosts(login)}
    if before:
        options["ProxyCommand"] = _through(before, at, login)
    words = ["ssh", *_words(options, login.keys, login.config), *(["-W", forward] if forward else ["-T"])]
    return shlex.join([*words, *_destination(at), *([run] if run else [])]).replace("%", "%%")
