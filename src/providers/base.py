"""The protocols of a provider, which launches machines, reports what happens to them, and reliably terminates them.

Users configure a `Provider`; its `Fleet` has the machines of one pool. Every provider must implement these two.
The protocols at the end are optional: `Priced`, `Keyless`, `Containing`, `Lasting` and `Offering` for the provider,
`Quoting` and `Adopting` for its fleets. `Machine.notices` names the sources of a machine's preemption notices.
``docs/providers/writing-one.md`` leads to a provider of 60 lines; ``contract`` has the checks that each must pass.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Literal, NewType, Protocol, Self, runtime_checkable

from ..lazy_dataclass import dataclass
from .errors import ProviderError

MachineId = NewType("MachineId", str)
Architecture = Literal["x86_64", "arm64"]
_WORD = r"[a-z0-9]+"
Allocation = Literal["spot", "on-demand", "spot-if-available", "cheapest"]


@dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """A request for at least ``count`` accelerators of ``name`` per machine, each with at least ``memory_gb``."""

    name: str
    count: int = 1
    memory_gb: float = 0.0

    def fits(self, name: str, memory_gb: float) -> bool:
        """Return whether a device satisfies the request.

        The name of the request must occur as words in the driver's name: RTX4090 fits "GeForce RTX 4090", but A10 does
        not fit "A100-SXM4-40GB". The memory may be a tenth less than requested, because drivers report 15 GB for 16 GB.
        """
        words, wanted = re.findall(_WORD, name.lower()), "".join(re.findall(_WORD, self.name.lower()))
        runs = ("".join(words[begin:end]) for begin in range(len(words)) for end in range(begin + 1, len(words) + 1))
        return wanted in runs and memory_gb >= 0.9 * self.memory_gb

    def __str__(self) -> str:
        least = f" of {self.memory_gb:g} GB" if self.memory_gb else ""
        return f"{self.count} {self.name}{least}"


@dataclass(frozen=True, slots=True)
class EntryPoints:
    """The programs that a provider starts when its machines are processes, by name: ``package.module:name``.

    Each machine's process imports them by name. They are no callables, because they cross a process boundary and
    because the providers layer must not import the layers above. Providers with other machines ignore them.
    """

    # (control: socket.socket) -> Never. Imports little; itself imported after the executor's code.
    fork_server: str = ""
    executor: str = ""  # (listener, forks, *, directory, same_host, accelerators, sharing): serves until the node ends
    template: str = ""  # (modules, become, *, lead) -> a process that imports the modules and forks fork servers
    preload: tuple[str, ...] = ()  # modules for the template to import; empty: fork servers need no template
    shared: tuple[str, ...] = ()  # small modules of fork servers and workers, imported once, before both


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A description of every machine of a pool. All quantities are minimums."""

    client_key: str  # the OpenSSH public key that may log in; empty for a `Keyless` provider
    nodes: int  # number of machines of the whole pool; a provider divides one computer's devices by it
    least: int = 1  # the fewest machines with which the pool can work
    accelerator: AcceleratorRequest | None = None
    vcpus: int = 0
    memory_gb: float = 0.0
    disk_gb: int = 0  # 0: the size of the machine's image
    architecture: Architecture | None = None  # None: the cheaper one
    max_hourly_cost: float | None = None  # USD for one machine
    allocation: Allocation = "spot-if-available"
    interconnect: Literal["efa"] | None = None
    lease_s: float = 120.0  # seconds without a renewal by the client after which a machine ends itself
    container: str = ""  # container image, for providers of containers; empty: the provider's default
    # Seconds after its launch at which a machine ends itself, even if its lease is renewed.
    max_lifetime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a machine's SSH server.

    Host and port are ignored if ``path``, a unix socket on this computer, is set. They are ignored, too, if ``command``
    is set: its standard streams carry the connection. The last host of `Login.jump` runs the command, or this computer
    if there is no jump host. In this case the host is only a name to display; the login applies to the host that runs
    the command; the machine itself accepts the pool's key and is verified by `Machine.host_key`.

    If port or user is None, the SSH configuration decides (see `Login`), else SSH's defaults.
    """

    host: str = ""
    port: int | None = None
    path: str | None = None
    user: str | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """The user's own SSH access to a machine that does not accept the pool's key. Paths are on this computer."""

    keys: tuple[str, ...] = ()  # private key files; empty: the agent's keys and the usual files
    known_hosts: tuple[str, ...] = ()  # files for machines without a `host_key`; empty: the usual files
    config: tuple[str, ...] = ()  # SSH configuration files
    jump: str | None = None  # the jump hosts, in order: user@host:port,...


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that exists or is about to. ``address`` is None until the machine can be reached."""

    id: MachineId
    address: Address | None
    host_key: str  # the OpenSSH public key to pin, "ssh-ed25519 AAAA..."; empty: the login's known_hosts files have it
    executor_socket: str = ""  # socket of an executor that already runs on this computer; nothing needs to be installed
    # False: the machine has no SSH server. The address is the executor's own socket, or the machine is a container.
    ssh: bool = True
    # For a container: the command that runs a program inside, to be followed by the program's argv, such as
    # ("podman", "exec", "-i", "NAME"). The host at the address runs this command, after a login with the user's access;
    # if the address names no host, this computer runs it.
    inside: tuple[str, ...] = ()
    private_address: str = ""  # address for the pool's other machines; empty: the address for SSH
    login: Login | None = None  # None: log in with the pool's own key
    # Replace the host key after the first connection, since others may have seen it during the launch.
    rotate_host_key: bool = False
    # Seconds after which an unreachable machine counts as down; None: it may still boot.
    patience_s: float | None = None
    ordered: bool = False  # ranks follow the order in which the launch returned the machines
    same_host: bool = False  # client and machine share memory: blobs are passed as file descriptors instead of over SSH
    witnesses: tuple[Address, ...] = ()  # other servers whose silence means that this computer's network is down
    notices: tuple[str, ...] = ()  # sources of preemption notices, as named in docs/protocol.md; no others are polled
    # File on the machine that the client touches to keep the machine alive; empty: the machine has no lease.
    lease: str = ""
    hourly_cost: float = 0.0  # USD, with the volumes, for as long as the machine exists
    billed_at_least_s: float = 0.0  # least billed seconds, however soon the machine ends
    # Variables that tasks need to use the network; the image's own values win.
    env: Mapping[str, str] = field(default_factory=dict)
    # Zone, type, price, ...: only displayed, no decision depends on them.
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_this_computer(self) -> bool:
        """Return whether this machine is a group of processes on this computer, which its provider can end
        without SSH.
        """
        return bool(self.executor_socket)

    @property
    def is_like_its_siblings(self) -> bool:
        """Return whether the next machine for the same request would have the same hardware and software, as in a
        cluster or for containers.
        """
        return bool(self.inside) or (self.address is not None and bool(self.address.command))


@dataclass(frozen=True, slots=True)
class MachineQueued:
    """A launched machine does not exist yet: it waits in a queue, such as the job queue of a cluster.

    The fleet sends this event as soon as possible, best with the launch, and again when one of the fields changes.
    The boot timeout (``Pool(boot_timeout=...)``) starts at the machine's `MachineStarted`, or at its `MachineReachable`
    if there was no `MachineStarted`. For a machine without this event, the boot timeout starts at the launch.
    """

    id: MachineId
    reason: str  # a clause to display: "job 4711 pending: Priority"
    starts_at: float | None = None  # expected start, in unix time; None: unknown


@dataclass(frozen=True, slots=True)
class MachineStarted:
    """A machine that was queued has started and boots."""

    id: MachineId


@dataclass(frozen=True, slots=True)
class MachineReachable:
    """A launched machine can now be reached at its address."""

    machine: Machine


@dataclass(frozen=True, slots=True)
class MachineGone:
    """The provider reports that the machine no longer exists or never will, so no connection needs to be tried.

    ``error``: why a launched machine could not be created, for providers that learn the reason only after the launch.
    This error counts as a launch error: without `ProviderError.retry_after_s` no replacement is launched, and a pool
    that waits for this machine fails with the error.
    """

    id: MachineId
    cause: str  # a clause to display: "killed by signal 9", "spot interruption"
    error: ProviderError | None = None


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """A notice that the cloud will take the machine in ``seconds``; None: ``source`` has withdrawn its notice."""

    id: MachineId
    source: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning to display, as one clause. No decision depends on it."""

    text: str

    @classmethod
    def of_surplus(cls, count: int, most: int) -> Self:
        """Return the warning that ``count`` living machines are ended, because the pool adopts ``most``."""
        machines = "further machine of the pool is" if count == 1 else "further machines of the pool are"
        return cls(f"{count} {machines} ended: nodes={most}")


@dataclass(frozen=True, slots=True)
class LaunchUnsure:
    """A launch without a response: up to ``count`` of its machines may exist, and cost, until `LaunchSettled`."""

    id: MachineId  # identifies the launch; no machine has this id
    count: int
    hourly_cost: float  # USD, the most that all these machines cost together
    asked_at: float  # time of the launch request, by `anyio.current_time`
    text: str  # to display


@dataclass(frozen=True, slots=True)
class LaunchSettled:
    """The outcome of a `LaunchUnsure` is known: its machines are known by their own ids, have ended, or never
    existed.
    """

    id: MachineId


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """The resource use of a machine by the provider's accounting. Sent after the machine's end, while the fleet closes.

    The CPU efficiency is ``cpu_s`` / (``seconds`` * ``cpus``). ``memory_bytes`` is the peak; ``memory_total_bytes`` is
    what the machine had or the request named. None: unknown.
    """

    id: MachineId
    seconds: float
    cpus: float
    cpu_s: float
    memory_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class UsageUnknown:
    """No `MachineUsage` will arrive for some or all machines. ``why``: a clause to display."""

    why: str


MachineEvent = (
    MachineQueued
    | MachineStarted
    | MachineReachable
    | MachineGone
    | PreemptionNotice
    | Warned
    | LaunchUnsure
    | LaunchSettled
    | MachineUsage
    | UsageUnknown
)


class Fleet(Protocol):
    """The machines of one pool, at an opened provider."""

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Create up to ``count`` machines. Fewer are no error, but no machine at all raises.

        Cancellation may leave machines that this call does not return. The fleet reports them in ``events``, and
        closing the fleet ends them.

        Raises:
            ProviderError: Nothing was created.
        """
        ...

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End these machines and return when the provider confirms. Idempotent; unknown ids are ignored."""
        ...

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        """Report that this machine did not become a node and is being terminated.

        ``for_good``: the machine itself is unfit and must not be lent again.
        """
        ...

    def events(self) -> AsyncIterator[MachineEvent]:
        """Yield the events of all machines in order, from the opening of the fleet on. There may be one consumer."""
        ...


@runtime_checkable
class Provider(Protocol):
    """A source of machines, as the user configured it. Immutable; one provider may serve many pools at once."""

    @property
    def name(self) -> str: ...

    @property
    def local(self) -> bool:
        """Return whether the machines are this very computer, with this process's own Python and packages."""
        ...

    def open(self, pool: str, entry_points: EntryPoints, /) -> AbstractAsyncContextManager[Fleet]:
        """Return a context manager for a pool's fleet. Leaving it terminates every machine that the fleet ever
        launched; the termination is shielded from cancellation and confirmed.

        Both this call and entering are quick, and the caller always enters. They start what can start before the first
        ``launch``, while the caller imports modules. Errors are raised by entering. If ``local`` is true, this call may
        be made outside of an event loop; entering needs a loop. Leaving may take long if the cloud does not respond.
        ``events`` continues until leaving is done, so that the pool can report progress.

        Raises:
            NotGone: Raised by leaving; something may still exist.
        """
        ...


# --- optional protocols -----------------------------------------------------------------------------------------------


@runtime_checkable
class Priced(Protocol):
    """A provider that reports whether its machines cost money. Without this protocol, they are assumed to."""

    @property
    def free(self) -> bool:
        """Return whether all machines are free, so that every price limit is met."""
        ...


@runtime_checkable
class Keyless(Protocol):
    """A provider that reports whether its machines are reached without SSH. Without this protocol, it gets a key."""

    @property
    def keyless(self) -> bool:
        """Return whether no machine needs `LaunchRequest.client_key`, which then is empty."""
        ...


@runtime_checkable
class Containing(Protocol):
    """A provider that reports whether its machines are containers. Without this protocol, they are not."""

    @property
    def containers(self) -> bool:
        """Return whether the machines are containers, whose image `LaunchRequest.container` may name."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """A provider that reports whether its machines outlive their client. Without this protocol, they end with it."""

    @property
    def outlives(self) -> bool:
        """Return whether another client can adopt the machines (`Pool.attach`). If true, the fleets are `Adopting`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOffer:
    """One kind of machine in one place at one price, as a launch would request it. None: unknown."""

    kind: str  # "g5.xlarge", or a host's name
    place: str = ""  # a zone, such as "us-east-1a"
    region: str = ""
    market: str = ""  # "spot" or "on-demand"; empty: neither
    hourly_usd: float | None = None  # price of one machine with its disk and address
    vcpus: int | None = None
    memory_gb: float | None = None
    architecture: str = ""
    accelerator: str = ""
    accelerators: int | None = None
    stock: str = ""  # the cloud's own indication of its stock: "3", "low"; empty: none
    attempt: int = 1  # number of the launch attempt; a later attempt follows if an earlier one gives too few machines


@runtime_checkable
class Offering(Protocol):
    """A provider that lists the machines it would request, without a request. `outrider offers` displays them."""

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return the offers that a launch would try now, in that order. Nothing is created.

        Raises:
            ProviderError: No machine here can ever fit (the error names the closest ones), or the cloud does not
                respond.
        """
        ...


@runtime_checkable
class Quoting(Protocol):
    """A fleet that knows prices before a launch. With several `Spec`, the pool tries the cheapest first."""

    async def quote(self, request: LaunchRequest) -> float | None:
        """Return the current price of one such machine in USD per hour; None: none is available.

        Raises:
            ProviderError
        """
        ...


@runtime_checkable
class Adopting(Protocol):
    """A fleet that can take over the machines of a dead client of the same pool. See `Lasting`."""

    async def adopt(self, known: Sequence[Machine], most: int, *, lease_s: float | None = None) -> Sequence[Machine]:
        """Take over machines, before the first launch. Return the first ``most`` of the ``known`` machines that still
        exist; they now belong to this fleet. All other machines of the pool are ended in the background. The event
        `Warned.of_surplus` has the number of machines beyond ``most``. ``lease_s``: the longest lease of the pool's
        machines in seconds; None: unknown.

        Raises:
            ProviderError: The provider failed, or the pool is in another place than this fleet.
        """
        ...
