"""The user's own way into a host: keys, known hosts and configuration, resolved as ``ssh`` would. Never unchecked.

And why a machine could not be reached by SSH, and what to do next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh

from ...actors.interfaces import ConnectFailed
from ...lazy_dataclass import dataclass
from ...providers.base import Address, Login, Machine
from ...providers.key_files import passphrase_advice
from ..api.errors import AuthError, HostKeyError, SpecError
from ..api.printable import plainly
from . import unreached
from .route import because, refusal

KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")  # ssh(1): UserKnownHostsFile, GlobalKnownHostsFile
JUMPS_AT_MOST = 8  # a configuration may send a jump host through itself
CONNECT_S = 10.0  # for each host on the way, where the machine has no patience of its own
ASK_METHODS_S = 5.0


@dataclass(frozen=True, slots=True)
class Stop:
    """One host on the way, the last of which is the machine itself."""

    host: str
    port: int
    options: asyncssh.SSHClientConnectionOptions
    known_hosts: Any  # as asyncssh takes it

    @property
    def place(self) -> str:
        return self.host if self.port == 22 else f"{self.host} port {self.port}"

    def knows(self) -> bool:
        """Return whether a key is known for this host; then a key that does not fit has been changed."""
        matching = asyncssh.match_known_hosts(self.known_hosts, self.host, "", self.port)
        return any(matching[:2])


class JumpFailed(ConnectionError):
    """A host on the way to the machine cannot be passed; its cause says why."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(f"jump host {stop.host}")
        self.stop = stop


async def stops(address: Address, way: Login, host_key: str, *, jumps_at_most: int = JUMPS_AT_MOST) -> Sequence[Stop]:
    """Return the hosts on the way to the machine, which is the last of them, and how to log in to each.

    Raises:
        asyncssh.Error, OSError, ValueError: a key, a configuration or a known_hosts file cannot be read.
        SpecError: a host key that was given is none.
    """
    last = await _stop(address, way, host_key)
    jumps = way.jump or _proxy_jump(last.options)
    if not jumps:
        return [last]
    if not jumps_at_most:
        raise ValueError(f"more than {JUMPS_AT_MOST} jump hosts, one behind another; does one lead through itself?")
    found: list[Stop] = []
    for text in jumps.split(","):
        user, _, place = text.strip().rpartition("@")
        hop = _address(place, user or None)
        if way.jump or found:
            found.append(await _stop(hop, way, ""))
        else:  # its own ProxyJump counts, as it does for ssh
            found += await stops(hop, way, "", jumps_at_most=jumps_at_most - 1)
    return [*found, last]


async def jumps(way: Login) -> Sequence[Stop]:
    """Return the hosts on the way of which the last one runs the command of an address. Errors are those of `stops`."""
    assert way.jump
    before, _, last = way.jump.rpartition(",")
    user, _, place = last.strip().rpartition("@")
    return await stops(_address(place, user or None), replace(way, jump=before or None), "")


async def _way(machine: Machine) -> Sequence[Stop]:
    assert machine.address is not None
    assert machine.login is not None
    if machine.address.command:
        return await jumps(machine.login)
    return await stops(machine.address, machine.login, machine.host_key)


async def _stop(address: Address, way: Login, host_key: str) -> Stop:
    wishes: dict[str, Any] = {
        "config": list(way.config) or None,
        "host": address.host,
        "agent_forwarding": False,
        "preferred_auth": "gssapi-with-mic,publickey",
        "gss_kex": False,  # with it Kerberos would vouch for the host, and its key be compared with none
        "gss_delegate_creds": False,
    }
    if address.port is not None:
        wishes["port"] = address.port
    if address.user is not None:
        wishes["username"] = address.user
    if way.keys:
        wishes |= {"client_keys": list(way.keys), "agent_path": None}
    options = await asyncssh.SSHClientConnectionOptions.construct(**wishes)
    known_hosts: Any = [str(path) for path in _files(way.known_hosts or _from_config(options, way))]
    if host_key:
        known_hosts = ([_public_key(host_key, address.host)], [], [])
    options = await asyncssh.SSHClientConnectionOptions.construct(options, **wishes, known_hosts=known_hosts or _NOBODY)
    return Stop(options.host, options.port, options, known_hosts or _NOBODY)


def _public_key(text: str, host: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_public_key(text)
    except asyncssh.KeyImportError as error:
        raise SpecError(
            f"Host({host!r}, host_key={text!r}) is not a public key: give the line that `ssh-keyscan {host}` prints, "
            'from its "ssh-..." on, when you have compared it with the host\'s own /etc/ssh/ssh_host_*_key.pub.'
        ) from error


_NOBODY: Any = ([], [], [])  # never None, with which asyncssh would check nothing


def _from_config(options: asyncssh.SSHClientConnectionOptions, way: Login) -> Sequence[str]:
    """``UserKnownHostsFile`` and ``GlobalKnownHostsFile`` where the configuration has them."""
    said: Any = options.known_hosts
    return list(map(str, said)) if way.config and said else KNOWN_HOSTS


def _files(paths: Sequence[str]) -> list[Path]:
    return [path for path in (Path(each).expanduser() for each in paths) if path.is_file()]


def _proxy_jump(options: asyncssh.SSHClientConnectionOptions) -> str | None:
    jump: Any = options.tunnel
    return jump if isinstance(jump, str) and jump.lower() != "none" else None


def _address(place: str, user: str | None) -> Address:
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        return Address(host, int(port[1:]) if port else None, user=user)
    host, _, port = place.partition(":") if place.count(":") == 1 else (place, "", "")
    return Address(host, int(port) if port else None, user=user)


# --- why not ----------------------------------------------------------------------------------------------------------


async def ssh_refusal(machine: Machine, error: BaseException) -> ConnectFailed:  # noqa: PLR0911  a table
    """Do as `route.refusal`, for what `ssh.connect` raises too."""
    stop, error = None, plainly(error)
    if isinstance(error, JumpFailed) and error.__cause__ is not None:
        stop, error = error.stop, error.__cause__
    place, by_pool = _place(machine, stop), _by_the_pool(machine, stop)
    match error:
        case asyncssh.HostKeyNotVerifiable() if machine.rotate_host_key:
            # Until the cloud's first boot has put our key there, its SSH server answers with one of its own.
            failed = ConnectFailed(story := await _host_key_story(machine, stop, error))
            failed.__cause__ = HostKeyError(story)  # which the user gets when its time is over
            return failed
        case asyncssh.HostKeyNotVerifiable():
            return because(HostKeyError(await _host_key_story(machine, stop, error)), systematic=by_pool)
        case asyncssh.PermissionDenied():
            return because(AuthError(await _login_story(machine, stop, error)), systematic=by_pool)
        case asyncssh.KeyImportError() | asyncssh.KeyEncryptionError():
            return because(AuthError(_key_story(machine, place, str(error))))
        case asyncssh.Error() | OSError() if not by_pool and machine.address is not None:
            return await _unreached(machine, stop, error, place)
        case TimeoutError(errno=None):
            return ConnectFailed(f"{place} did not answer within {machine.patience_s or CONNECT_S:g} s")
        case asyncssh.ConnectionLost():
            return ConnectFailed(f"{place} closed the connection before it was logged in: {error}")
        case _:
            return refusal(machine, error, place)


async def _unreached(  # noqa: PLR0911  a table
    machine: Machine, stop: Stop | None, error: BaseException, place: str
) -> ConnectFailed:
    """Return the error for a host of the user's own on which no SSH server was reached."""
    assert machine.address is not None
    assert machine.login is not None
    try:
        way = await _way(machine)
    except (OSError, ValueError, asyncssh.Error):  # perhaps the very error: a file cannot be read any more
        return refusal(machine, error, place)
    at = stop or way[-1]
    if unreached.no_such_name(error):
        return _futile(_name_story(at.host, machine.login))
    if isinstance(error, asyncssh.ChannelOpenError) and len(way) > 1:
        return ConnectFailed(f"{place} is not reached from the jump host before it: {error.reason}")
    if told := unreached.story(error, place, at.host, at.port):
        return ConnectFailed(told)
    direct = at.place == way[0].place and not at.options.proxy_command
    if direct and (other := await _no_server(at, error, place)) is not None:
        return other
    if isinstance(error, TimeoutError):
        within_s = machine.patience_s or CONNECT_S
        ways = f"see that it is on, and that each firewall on the way lets port {at.port} through"
        return ConnectFailed(f"{place} did not answer within {within_s:g} s: {ways}")
    if isinstance(error, asyncssh.ConnectionLost):
        return ConnectFailed(f"{place} closed the connection before it was logged in: {error}")
    return refusal(machine, error, place)


async def _no_server(at: Stop, error: BaseException, place: str) -> ConnectFailed | None:
    """Ask the port once more what listens there; return None where it may be an SSH server."""
    if not isinstance(error, ConnectionError | TimeoutError | asyncssh.ConnectionLost):
        return None
    said = await unreached.said_instead(at.host, at.port)
    if said:
        how = f"give the port of that host's, as in Host({at.host!r}, port=22)"
        return _futile(f"{place} is no SSH server, as what listens there says {said!r}: {how}.")
    if said is None:
        return None
    return ConnectFailed(
        f"{place} takes connections and says nothing, where an SSH server would say that it is one: see whether the "
        "port is right"
    )


def _futile(story: str) -> ConnectFailed:
    failed = ConnectFailed(story, futile=True)
    failed.__cause__ = SpecError(story)
    return failed


def _name_story(host: str, way: Login) -> str:
    files = "" if way.config else " A name of ~/.ssh/config is known with SSH(config=True)."
    return f"There is no host of the name {host}, in the DNS or in /etc/hosts: look for a misspelling.{files}"


def _key_story(machine: Machine, place: str, error: str) -> str:
    keys = () if machine.login is None else machine.login.keys
    which = f"The private key {keys[0]}" if keys else "A private key that your SSH configuration names"
    if "assphrase" in error:
        add = f"ssh-add {keys[0]}" if keys else "ssh-add"
        return f"{which}, for {place}, has a passphrase, which nobody is asked for here: {passphrase_advice(add)}"
    return f"{which}, for {place}, cannot be read ({error}): `ssh-keygen -y -f` with it says whether it is whole."


def _by_the_pool(machine: Machine, stop: Stop | None) -> bool:
    """Return whether the host that an error is about is let in by, and known by, the pool's own keys."""
    address = machine.address
    return machine.login is None or address is None or (bool(address.command) and stop is None)


def _place(machine: Machine, stop: Stop | None) -> str:
    """The machine; or the host on the way to it that an error is about."""
    if machine.login is None or machine.address is None:
        return f"machine {machine.id}"
    address = machine.address
    if address.command and not address.host:
        place = f"machine {machine.id}"
    else:
        place = address.host if address.port is None else f"{address.host} port {address.port}"
    return place if stop is None else f"{stop.place}, on the way to {place},"


async def _host_key_story(machine: Machine, stop: Stop | None, error: BaseException) -> str:
    if _by_the_pool(machine, stop):
        return f"Machine {machine.id} shows another host key than the one pinned for it, and is not trusted: {error}"
    place, given = _place(machine, stop), "." if stop else ", or give Host(..., host_key=...)."
    if machine.host_key and stop is None:
        return (
            f"{place} shows another host key than the one that Host(..., host_key=...) gives. Either that is of "
            "another host, or somebody answers in its place: compare it with the host's own "
            "/etc/ssh/ssh_host_*_key.pub."
        )
    stop = stop or (await _way(machine))[-1]
    if stop.knows():
        forget = stop.host if stop.port == 22 else f"[{stop.host}]:{stop.port}"
        return (
            f"{place} shows another host key than the one you know it by. Either it was set up anew, or somebody "
            f"answers in its place: ask whoever runs it, and then forget the old key with `ssh-keygen -R '{forget}'`."
        )
    port = "" if stop.port == 22 else f"-p {stop.port} "
    return (
        f"The host key of {place} is not known here, so it is not trusted: log in once with "
        f"`ssh {port}{stop.host}`{given}"
    )


async def _login_story(machine: Machine, stop: Stop | None, error: BaseException) -> str:
    if _by_the_pool(machine, stop):
        return f"Machine {machine.id} does not accept this pool's key: {error}"
    assert machine.login is not None
    way = await _way(machine)
    place, stop = _place(machine, stop), stop or way[-1]
    methods = await _methods(stop) if stop.place == way[0].place else ()  # others are not reached from here
    who = f"{stop.options.username}@{place}"
    if methods and "publickey" not in methods:
        return (
            f"{who} does not take keys, only {' or '.join(methods)}: have `PubkeyAuthentication` turned on there. "
            "Outrider never asks for a password."
        )
    used = ", ".join(machine.login.keys) or "your agent's keys and those in ~/.ssh"
    return f"{who} accepts none of {used}: add the public key there with `ssh-copy-id`, or give SSH(user=, key=)."


async def _methods(stop: Stop) -> Sequence[str]:
    try:
        async with asyncio.timeout(ASK_METHODS_S):
            return await asyncssh.get_server_auth_methods(
                stop.host, stop.port, username=stop.options.username, config=None
            )
    except (OSError, asyncssh.Error, TimeoutError):
        return ()
