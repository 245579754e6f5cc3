"""The user's own way into a host: keys, known hosts and configuration, resolved as ``ssh`` would. Never unchecked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from ...providers.base import Address, Login
from ..api.errors import SpecError

KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")  # ssh(1): UserKnownHostsFile, GlobalKnownHostsFile
JUMPS_AT_MOST = 8  # a configuration may send a jump host through itself


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


async def stops(address: Address, way: Login, host_key: str) -> Sequence[Stop]:
    """Return the hosts on the way to the machine, which is the last of them, and how to log in to each.

    Raises:
        asyncssh.Error, OSError, ValueError: a key, a configuration or a known_hosts file cannot be read.
        SpecError: a host key that was given is none.
    """
    last = await _stop(address, way, host_key)
    jumps = way.jump or _proxy_jump(last.options)
    if not jumps:
        return [last]
    found: list[Stop] = []
    for text in jumps.split(","):
        user, _, place = text.strip().rpartition("@")
        hop = await _stop(_address(place, user or None), way, "")
        further = None if way.jump or found else _proxy_jump(hop.options)
        if further is not None:
            deeper = Login(way.keys, way.known_hosts, way.config, further)
            found += (await stops(_address(place, user or None), deeper, ""))[:-1]
        found.append(hop)
        if len(found) > JUMPS_AT_MOST:
            raise ValueError(f"{address.host}: more than {JUMPS_AT_MOST} jump hosts; does one lead through itself?")
    return [*found, last]


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
