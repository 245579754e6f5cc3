"""`SSH`: machines that the user already has. A pool creates none: it uses hosts, and leaves them as they were."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from functools import partial
from pathlib import Path

import anyio

from ..lazy_dataclass import dataclass
from .base import Address, EntryPoints, LaunchRequest, Login, Machine, MachineEvent, MachineId, MachineOffer
from .errors import BadRequest, NoCapacity, UnknownOption
from .shared.login_options import key_objection, known_hosts_of
from .shared.option_names import checking_options, shown
from .shared.paths import StrPath, expanded, no_file

CONNECT_TIMEOUT_S = 10.0
LONGEST_S = 1e9  # seconds, the longest timeout that system calls accept
CONFIG = "~/.ssh/config"
WITNESSES_AT_MOST = 8


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True)
class Host:
    """One machine. For a field that is None, the provider's value applies.

    Without that value, the SSH configuration applies, else ssh's own default.

    The SSH configuration is used only if the provider reads it (``SSH(config=...)``).

    Args:
        name: The name or address, as in ``ssh name``.
        port: The port of its SSH server.
        user: The login name.
        key: A private key file, also for jump hosts.
        host_key: The machine's public key, ``"ssh-ed25519 AAAA..."``, which is checked instead of known_hosts.
        jump: The jump hosts, as ``"user@bastion:22"``; several are separated by commas, the first to connect to first.
        address: The address at which the pool's other hosts reach this host. Default: the address that SSH connected
            to.
    """

    name: str  # a host name, an address, or the name after "Host" in the SSH configuration
    port: int | None = None
    user: str | None = None
    key: StrPath | None = None
    host_key: str | None = None
    jump: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if "@" in self.name or self.name.count(":") == 1:
            raise ValueError(f"Host({self.name!r}): the name alone; user= and port= are arguments of their own")
        if not self.name or self.name.startswith("-") or any(c.isspace() or c == "\0" for c in self.name):
            raise ValueError(f"Host({self.name!r}): it is no name of a host")
        if self.port is not None and not 0 < self.port < 65536:
            raise ValueError(f"Host({self.name!r}): port is from 1 to 65535, not {self.port}")

    @classmethod
    def parse(cls, text: str) -> Host:
        """Parse ``host``, ``user@host``, ``host:port`` or ``[2001:db8::1]:22``, with or without ``ssh://``.

        Raises:
            ValueError: The text has none of these forms.
        """
        user, at, rest = text.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
        if "://" in rest:
            raise ValueError(f"{text!r} is a URL, and no host: write {rest.partition('://')[2].partition('/')[0]!r}")
        if rest.startswith("["):
            name, bracket, port = rest[1:].partition("]")
            if not bracket or (port and not port.startswith(":")):
                raise ValueError(f"{text!r}: an address in brackets is followed by nothing, or by :port")
            port = port[1:]
        elif rest.count(":") == 1:
            name, _, port = rest.partition(":")
        else:  # no port; the text may be an IPv6 address
            name, port = rest, ""
        if not name or any(c.isspace() for c in text.strip()) or (at and not user):
            raise ValueError(f"{text!r} is not a host: write host, user@host, host:port or [address]:port")
        if name.startswith("-") or user.startswith("-"):
            raise ValueError(f"{text!r} is not a host: a name does not begin with a dash")
        return cls(name, _port(port, text) if port else None, user or None)

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{f'{self.user}@' if self.user else ''}{name}{f':{self.port}' if self.port else ''}"


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, init=False)
class SSH:
    """Nodes on hosts that exist already, over your own SSH access.

    A pool keeps a cache on each host (``$OUTRIDER_CACHE``, or ``~/.cache/outrider``) and leaves nothing else there.

    Args:
        hosts: Names, ``"user@host:port"`` or `Host`. A pool takes as many as it needs nodes, in this order, and skips
            hosts that are down.
        user: The login name, for hosts without a user of their own.
        key: A private key file without a passphrase, for hosts without a key of their own. Default: the keys of the SSH
            agent, and the usual files in ``~/.ssh``.
        jump: The jump hosts, for hosts without their own, as ``"user@bastion:22"``; several are separated by commas,
            the first to connect to first.
        known_hosts: Files to check host keys against. Default: yours and the computer's. A host that is in none of
            these files is refused.
        config: True reads ``~/.ssh/config``; or the path of another file.
        connect_timeout: Seconds after which a host that does not answer counts as down for the moment. Default: 10.
        notices: Where hosts learn of a preemption, such as ``"aws"`` or ``"slurm,USR1=120"``. Default: nowhere.

    Raises:
        ValueError: An option can never work, such as a repeated host.
        TypeError: The option does not exist.
    """

    hosts: tuple[Host, ...]
    known_hosts: tuple[str, ...]
    config: tuple[str, ...]
    connect_timeout: float
    notices: tuple[str, ...]

    def __init__(
        self,
        hosts: Iterable[str | Host],
        *,
        user: str | None = None,
        key: StrPath | None = None,
        jump: str | None = None,
        known_hosts: StrPath | Sequence[StrPath] | None = None,
        config: bool | StrPath = False,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        notices: Sequence[str] = (),
    ) -> None:
        if isinstance(hosts, str | Host):
            names = [each.strip() for each in hosts.split(",") if each.strip()] if isinstance(hosts, str) else [hosts]
            raise ValueError(f"SSH(hosts=...) takes a list: write SSH(hosts={names!r})")
        if not isinstance(hosts, Iterable):
            raise ValueError(f"SSH(hosts=...) takes a list of names and Host(...), not {shown(hosts)}")
        chosen = tuple(_host(each, user, key, jump) for each in hosts)
        if not chosen:
            raise ValueError("SSH(hosts=...) is empty: there is nothing to run on")
        places = [(host.name, host.port) for host in chosen]
        for host in chosen:
            if places.count((host.name, host.port)) > 1:
                raise ValueError(f"SSH(hosts=...): {host} is there twice; for several tasks on a host use Worker(...)")
        if not 0 < connect_timeout < LONGEST_S:
            within = f"more than 0 seconds and less than {LONGEST_S:g}"
            raise ValueError(f"SSH(connect_timeout=...) must be {within}, not {shown(connect_timeout)}")
        object.__setattr__(self, "hosts", chosen)
        object.__setattr__(self, "known_hosts", known_hosts_of(known_hosts, "SSH"))
        object.__setattr__(self, "config", _config(config))
        if isinstance(notices, str):
            raise ValueError(f"SSH(notices=...) takes a list: write SSH(notices=[{notices!r}])")
        named = tuple(notices) if isinstance(notices, Iterable) else (notices,)
        if not all(isinstance(each, str) for each in named):
            raise ValueError(f"SSH(notices=...) takes a list of names, not {shown(notices)}")
        object.__setattr__(self, "connect_timeout", float(connect_timeout))
        object.__setattr__(self, "notices", named)

    @property
    def name(self) -> str:
        """The name of the provider."""
        return "ssh"

    @property
    def local(self) -> bool:
        """Return whether the nodes are on this computer."""
        return False

    @property
    def free(self) -> bool:
        """Return whether machines cost nothing."""
        return True

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return the hosts in the order in which they are used. Their hardware is unknown until the first connection.

        Raises:
            BadRequest: There are too few hosts, or the request has requirements that hosts cannot be chosen by.
        """
        _refuse_what_nobody_can_choose(request)
        self.refuse_too_few(request)
        return [MachineOffer(kind=str(host), place=host.name, hourly_usd=0.0) for host in self.hosts]

    def refuse_too_few(self, request: LaunchRequest) -> None:
        """Raise an error if a request needs more nodes than there are hosts."""
        if request.least > len(self.hosts):
            raise BadRequest(
                f"the pool needs {request.least} nodes, and SSH(hosts=...) has {len(self.hosts)}",
                advice=f"Name more hosts, or ask for fewer by Pool(nodes={len(self.hosts)}).",
            )

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[SSHFleet]:  # noqa: ARG002
        """Open a fleet of these hosts."""
        fleet = SSHFleet(self, pool)
        try:
            yield fleet
        finally:
            fleet.close()


@dataclass(slots=True)
class SSHFleet:
    """The hosts that one pool may use, a `providers.base.Fleet`. The host that was free for longest is used first."""

    provider: SSH
    pool: str
    _free: deque[Host] = field(init=False)
    _lent: dict[MachineId, Host] = field(init=False, default_factory=dict)
    _unusable: dict[Host, str] = field(init=False, default_factory=dict)
    # Hosts that did not answer at the last try, with the reason.
    _down: dict[Host, str] = field(init=False, default_factory=dict)
    # Whether the pool has given back any host that had become a node.
    _was_of_use: bool = field(init=False, default=False)
    _ended: anyio.Event = field(init=False, default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._free = deque(self.provider.hosts)

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Return up to ``count`` free hosts as machines.

        Whether a host is down is unknown until the pool connects to the host.

        Raises:
            BadRequest: The pool needs more hosts than the provider has, or the request has requirements that hosts
                cannot be chosen by.
            NoCapacity: No host is free. A retry cannot succeed if too few hosts are usable, or if so many hosts never
                answered that too few are left.
        """
        hosts = self.provider.hosts
        _refuse_what_nobody_can_choose(request)
        self.provider.refuse_too_few(request)
        if not self._free:
            enough = request.least <= len(hosts) - len(self._unusable) and self._lent
            raise NoCapacity(
                self._none_free(), retry_after_s=1.0 if enough else None, advice="Mend them, or name others."
            )
        if not self._was_of_use and request.least > len(hosts) - len(self._unusable) - len(self._down):
            raise NoCapacity(self._none_answers(), advice="SSH(connect_timeout=...) waits longer for hosts that start.")
        chosen = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        machines = [self._machine(host) for host in chosen]
        for machine, host in zip(machines, chosen, strict=True):
            self._lent[machine.id] = host
            self._down.pop(host, None)
        return machines

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """Take hosts back from the pool. Their executors were asked to end, or will end with their lease."""
        for machine in ids:
            host = self._lent.pop(machine, None)
            if host is None or host in self._unusable:
                continue
            self._free.append(host)
            self._was_of_use = self._was_of_use or host not in self._down

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        host = self._lent.get(machine)
        if host is not None:
            (self._unusable if for_good else self._down)[host] = cause

    async def events(self) -> AsyncIterator[MachineEvent]:
        """Yield nothing, until the pool ends: no cloud reports the end of these hosts."""
        await self._ended.wait()
        nothing: tuple[MachineEvent, ...] = ()
        for event in nothing:
            yield event

    def close(self) -> None:
        self._lent.clear()
        self._ended.set()

    def _machine(self, host: Host) -> Machine:
        provider = self.provider
        return Machine(
            id=MachineId(f"{self.pool}/{host}"),
            address=Address(host.name, host.port, user=host.user),
            host_key=host.host_key or "",
            private_address=host.address or "",
            login=Login(
                keys=(_path(host.key),) if host.key is not None else (),
                known_hosts=provider.known_hosts,
                config=provider.config,
                jump=host.jump,
            ),
            patience_s=provider.connect_timeout,
            witnesses=tuple(_first_stop(other) for other in provider.hosts if other != host)[:WITNESSES_AT_MOST],
            notices=provider.notices,
        )

    def _none_answers(self) -> str:
        down, total = self._down, len(self.provider.hosts)
        which = "The only host that was given" if total == 1 else f"{len(down)} of the {total} given hosts"
        return f"{which} cannot be reached: {_causes(down)}"

    def _none_free(self) -> str:
        usable = len(self.provider.hosts) - len(self._unusable)
        if not usable:
            return f"None of the given hosts can be used: {_causes(self._unusable)}"
        which = (
            f"All {usable} given hosts that can be used are"
            if usable > 1
            else "The only given host that can be used is"
        )
        return f"{which} in use{'; not usable: ' if self._unusable else ''}{_causes(self._unusable)}"


def _causes(hosts: Mapping[Host, str]) -> str:
    return "; ".join(cause if host.name in cause else f"{host}: {cause}" for host, cause in hosts.items())


def _refuse_what_nobody_can_choose(request: LaunchRequest) -> None:
    """Raise an error for requirements that SSH hosts cannot be chosen by.

    Accelerators, processors and memory are not checked here: hosts report them after the connection.
    """
    for option in ("disk_gb", "architecture", "interconnect"):
        if getattr(request, option):
            raise BadRequest(f"SSH takes hosts as they are: leave {option} out, and name the hosts that have it")


def _first_stop(host: Host) -> Address:
    """Return the address of the first SSH server on the way to ``host``: its first jump host, or the host itself."""
    first = Host.parse(host.jump.split(",")[0]) if host.jump else host
    return Address(first.name, first.port, user=first.user)


def _host(name: str | Host, user: str | None, key: StrPath | None, jump: str | None) -> Host:
    if not isinstance(name, str | Host):
        raise ValueError(f"SSH(hosts=...) takes names and Host(...), not {shown(name)}")
    try:
        host = Host.parse(name) if isinstance(name, str) else name
        for hop in (host.jump or jump or "").split(","):
            if hop:
                Host.parse(hop)
    except ValueError as error:
        raise ValueError(f"SSH(hosts=...): {error}") from None
    if host.key is None:
        host = replace(host, key=key)
    if host.key is not None and (why := key_objection(Path(_path(host.key)))):
        raise ValueError(f"SSH: the key {host.key} of {host} {why}.")
    return replace(host, user=host.user or user, jump=host.jump or jump)


def _config(option: bool | StrPath) -> tuple[str, ...]:
    if option is False:
        return ()
    file = _path(CONFIG if option is True else option)
    if why := no_file(file):
        raise ValueError(f"SSH(config=...): {why}")
    return (file,)


def _path(path: StrPath) -> str:
    return str(expanded(path))


def _port(text: str, whole: str) -> int:
    if not text.isdecimal() or len(text) > 5 or not 0 < int(text) < 65536:
        raise ValueError(f"{whole!r}: {text} is not a port")
    return int(text)
