"""The protocols of a provider, which launches machines, reports what happens to them, and reliably ends them.

Users configure a `Provider`; its `Fleet` has the machines of one pool. Every provider must implement these two. The
protocols at the end are optional: `Priced`, `Keyless`, `Containing`, `Lasting` and `Offering` for the provider,
`Quoting` and `Adopting` for its fleets. ``docs/providers/writing-one.md`` shows how to write a provider of 60 lines;
``contract`` has the checks that each provider must pass.
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

    Each machine's process imports its programs by name. The programs are not passed as callables, because they cross a
    process boundary, and because the modules of providers must not import the modules above them. Providers whose
    machines are no processes of this computer ignore these fields.
    """

    # The program of a process that forks a node's workers: a function (control: socket.socket) -> Never. Its module
    # imports little, and is imported after the executor's module.
    fork_server: str = ""
    # The server of a node: a function (listener, forks, *, directory, same_host, accelerators, sharing) that runs until
    # the node ends.
    executor: str = ""
    # A class, called as (modules, become, *, lead). Its object is a process that imports the modules once, and forks
    # the fork servers of all nodes.
    template: str = ""
    preload: tuple[str, ...] = ()  # modules for the template process to import; empty: fork servers need no template
    # Small modules that fork servers and workers use; imported once, before any of these processes is forked.
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The requirements of a pool for each of its machines. All quantities are minimums."""

    client_key: str  # the OpenSSH public key that may log in; empty for a `Keyless` provider
    # Number of machines of the whole pool; a provider whose machines share one computer divides the devices by it.
    nodes: int
    least: int = 1  # the fewest machines with which the pool can work
    accelerator: AcceleratorRequest | None = None
    vcpus: int = 0
    memory_gb: float = 0.0
    disk_gb: int = 0  # GB; 0: the size of the machine's image
    architecture: Architecture | None = None  # None: whichever is cheaper
    max_hourly_cost: float | None = None  # USD per hour for one machine; None: no limit
    allocation: Allocation = "spot-if-available"
    interconnect: Literal["efa"] | None = None
    lease_s: float = 120.0  # seconds; a machine ends itself if its client has not renewed its lease for this long
    container: str = ""  # container image, for providers of containers; empty: the provider's default
    # A machine ends itself this long (seconds) after its launch, even if its client still renews its lease.
    max_lifetime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a machine's SSH server.

    Three forms are possible: host and port; ``path``, a unix socket on this computer; or ``command``, a program whose
    standard streams carry the connection. With path or command, host and port are ignored.

    The last host of `Login.jump` runs the command; if there is no jump host, this computer runs it. If there is a
    command, ``host`` is only a name to display, and the `Login` is for the host that runs the command. The machine
    itself accepts the pool's key, and is verified by `Machine.host_key`.

    If port or user is None, the SSH configuration decides (see `Login`), else SSH's defaults.
    """

    host: str = ""
    port: int | None = None
    path: str | None = None
    user: str | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """The user's own SSH access to a machine, if the machine does not accept the pool's key. Paths are on this
    computer.
    """

    keys: tuple[str, ...] = ()  # private key files; empty: the SSH agent's keys and the usual files
    known_hosts: tuple[str, ...] = ()  # known_hosts files, for machines without a `host_key`; empty: the usual files
    config: tuple[str, ...] = ()  # SSH configuration files
    jump: str | None = None  # the jump hosts, in order: user@host:port,...


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that exists or will exist. ``address`` is None until the machine can be reached."""

    id: MachineId
    address: Address | None
    host_key: str  # the OpenSSH public key to pin, "ssh-ed25519 AAAA..."; empty: the login's known_hosts files have it
    # Socket of an executor that already runs on this computer, so nothing has to be installed.
    executor_socket: str = ""
    # False: the machine has no SSH server. The address is the executor's own socket, or the machine is a container.
    ssh: bool = True
    # For a container: the command that runs a program inside, to be followed by the program's argv, such as
    # ("podman", "exec", "-i", "NAME"). The host at the address runs this command, after a login with the user's access;
    # if the address names no host, this computer runs it.
    inside: tuple[str, ...] = ()
    # The address at which the pool's other machines reach this one; empty: the address for SSH.
    private_address: str = ""
    login: Login | None = None  # None: log in with the pool's own key
    # Replace the host key after the first connection: others may have seen the first one during the launch.
    rotate_host_key: bool = False
    # Seconds after which a machine counts as down if it cannot be reached; None: it may still boot.
    patience_s: float | None = None
    ordered: bool = False  # whether ranks follow the order in which the launch returned the machines
    # Whether client and machine share memory: blobs (large values) are then passed as file descriptors, not over SSH.
    same_host: bool = False
    # Other servers; if they do not answer either, this computer's own network is down.
    witnesses: tuple[Address, ...] = ()
    # The sources of preemption notices that are polled, by their names in docs/protocol.md.
    notices: tuple[str, ...] = ()
    # A file on the machine: by touching it, the client renews the lease. Empty: the machine has no lease.
    lease: str = ""
    hourly_cost: float = 0.0  # USD per hour, including the volumes, for as long as the machine exists
    billed_at_least_s: float = 0.0  # seconds that are billed at least, even if the machine ends sooner
    # Environment variables that tasks need to use the network. A variable of the image takes precedence.
    env: Mapping[str, str] = field(default_factory=dict)
    # Zone, type, price and other facts, only to display: no decision depends on them.
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_this_computer(self) -> bool:
        """Return whether this machine is a group of processes on this computer. Its provider can end these processes
        without SSH.
        """
        return bool(self.executor_socket)

    @property
    def is_like_its_siblings(self) -> bool:
        """Return whether another machine for the same request would have the same hardware and software, as in a
        cluster or for containers.
        """
        return bool(self.inside) or (self.address is not None and bool(self.address.command))


@dataclass(frozen=True, slots=True)
class MachineQueued:
    """A launched machine does not exist yet: it waits in a queue, such as the job queue of a cluster.

    The fleet sends this event as soon as possible, if it can together with the launch, and again when a field changes.
    The boot timeout (``Pool(boot_timeout=...)``) starts at the machine's `MachineStarted`, or at its `MachineReachable`
    if there was no `MachineStarted`. For a machine without a `MachineQueued`, it starts at the launch.
    """

    id: MachineId
    reason: str  # the reason for waiting, as a clause to display: "job 4711 pending: Priority"
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
    """The machine no longer exists, or will never exist, by the provider's report. So the pool need not try to connect
    to it.

    ``error``: why a launched machine could not be created, if the provider learns the reason only after the launch.
    This error counts as a launch error: without `ProviderError.retry_after_s` no replacement is launched, and a pool
    that waits for this machine fails with the error.
    """

    id: MachineId
    cause: str  # a clause to display: "killed by signal 9", "spot interruption"
    error: ProviderError | None = None


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """A notice that the cloud will take the machine away in ``seconds``. ``seconds`` is None: ``source`` has withdrawn
    its notice.
    """

    id: MachineId
    source: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning to display, as one clause. No decision of the pool depends on it."""

    text: str

    @classmethod
    def of_surplus(cls, count: int, most: int) -> Self:
        """Return the warning that the pool adopts only ``most`` machines, so ``count`` further living machines are
        ended.
        """
        machines = "further machine of the pool is" if count == 1 else "further machines of the pool are"
        return cls(f"{count} {machines} ended: nodes={most}")


@dataclass(frozen=True, slots=True)
class LaunchUnsure:
    """A launch got no response. Until `LaunchSettled`, up to ``count`` machines of this launch may exist and cost
    money.
    """

    id: MachineId  # an id for the launch itself; no machine has this id
    count: int
    hourly_cost: float  # USD per hour: the most that all machines of the launch together cost
    asked_at: float  # time of the launch request, by `anyio.current_time`
    text: str  # the text to display


@dataclass(frozen=True, slots=True)
class LaunchSettled:
    """The outcome of a launch that was reported as `LaunchUnsure` is now known: its machines are reported by their own
    ids, have ended, or never existed.
    """

    id: MachineId


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """The resources that a machine has used, by the provider's accounting. Sent after the machine's end, while the
    fleet closes.

    The CPU efficiency is ``cpu_s`` / (``seconds`` * ``cpus``). ``memory_bytes`` is the peak. ``memory_total_bytes`` is
    the memory that the machine had, or that the request named. None: unknown.
    """

    id: MachineId
    seconds: float
    cpus: float
    cpu_s: float
    memory_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class UsageUnknown:
    """No `MachineUsage` will be sent for some or all machines. ``why``: a clause to display."""

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
        """Create up to ``count`` machines. It is no error if fewer are created, but it is one if none is.

        If this call is cancelled, it may have created machines. The fleet reports them in ``events``, and ends them
        when it is closed.

        Raises:
            ProviderError: Nothing was created.
        """
        ...

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End these machines and return when the provider confirms. Idempotent; unknown ids are ignored."""
        ...

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        """Report to the fleet that this machine did not become a node, and is being terminated.

        ``for_good``: True: the machine itself is at fault, and must not be used again.
        """
        ...

    def events(self) -> AsyncIterator[MachineEvent]:
        """Yield the events of all machines, in order, from the opening of the fleet on. Only one caller may iterate
        over them.
        """
        ...


@runtime_checkable
class Provider(Protocol):
    """A source of machines, as the user configured it. Immutable. Several pools may use one provider at once."""

    @property
    def name(self) -> str: ...

    @property
    def local(self) -> bool:
        """Return whether the machines are on this very computer, and use this process's own Python and packages."""
        ...

    def open(self, pool: str, entry_points: EntryPoints, /) -> AbstractAsyncContextManager[Fleet]:
        """Return a context manager for a pool's fleet. Leaving its block ends every machine that the fleet ever
        launched.

        The end is shielded from cancellation, and confirmed by the provider.

        Both this call and entering the block are quick, and the caller always enters the block. Both start the work
        that need not wait for the first ``launch``; the caller imports modules in the meantime. Errors are raised on
        entering. If ``local`` is true, this call may be made outside of an event loop; entering needs a loop. Leaving
        may take long if the cloud does not respond. ``events`` continues until leaving is done, so that the pool can
        report progress.

        Raises:
            NotGone: Raised on leaving; something may still exist.
        """
        ...


# --- optional protocols -----------------------------------------------------------------------------------------------


@runtime_checkable
class Priced(Protocol):
    """A provider that reports whether its machines cost money. A provider without this protocol is assumed to cost
    money.
    """

    @property
    def free(self) -> bool:
        """Return whether all machines are free, so that every price limit is met."""
        ...


@runtime_checkable
class Keyless(Protocol):
    """A provider that reports whether its machines are reached without SSH. A provider without this protocol gets an
    SSH key.
    """

    @property
    def keyless(self) -> bool:
        """Return whether no machine needs `LaunchRequest.client_key`. If true, that field is empty."""
        ...


@runtime_checkable
class Containing(Protocol):
    """A provider that reports whether its machines are containers. Without this protocol, they are assumed to
    be none.
    """

    @property
    def containers(self) -> bool:
        """Return whether the machines are containers, whose image `LaunchRequest.container` may name."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """A provider that reports whether its machines outlive their client. Without this protocol, they end with their
    client.
    """

    @property
    def outlives(self) -> bool:
        """Return whether another client can adopt the machines of a dead client (`Pool.attach`). If true, the fleets
        are `Adopting`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOffer:
    """One kind of machine in one zone at one price, as a launch would request it. A field that is None is unknown."""

    kind: str  # "g5.xlarge", or a host's name
    place: str = ""  # a zone, such as "us-east-1a"
    region: str = ""
    market: str = ""  # "spot" or "on-demand"; empty: the provider has no such markets
    hourly_usd: float | None = None  # USD per hour for one machine, with its disk and address
    vcpus: int | None = None
    memory_gb: float | None = None
    architecture: str = ""
    accelerator: str = ""
    accelerators: int | None = None
    stock: str = ""  # how many are left, in the cloud's own words: "3", "low"; empty: the cloud does not say
    # 1 for the first attempt of a launch; the next attempt follows if the ones before give too few machines.
    attempt: int = 1


@runtime_checkable
class Offering(Protocol):
    """A provider that can list the machines that it would request, without launching any. `outrider offers` displays
    the list.
    """

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return the offers that a launch would try now, in the order of trying. Nothing is created.

        Raises:
            ProviderError: No machine here can ever fit (the error names the closest machines), or the cloud does not
                respond.
        """
        ...


@runtime_checkable
class Quoting(Protocol):
    """A fleet that knows prices before a launch. A pool with several `Spec` tries the cheapest first."""

    async def quote(self, request: LaunchRequest) -> float | None:
        """Return the current price, in USD per hour, of one machine that meets the request; None: no such machine is
        available.

        Raises:
            ProviderError
        """
        ...


@runtime_checkable
class Adopting(Protocol):
    """A fleet that can take over the machines of a dead client of the same pool. See `Lasting`."""

    async def adopt(self, known: Sequence[Machine], most: int, *, lease_s: float | None = None) -> Sequence[Machine]:
        """Take over machines of a dead client, before the first launch. Return those that now belong to this fleet.

        These are the first ``most`` of the ``known`` machines that still exist. All other machines of the pool are
        ended in the background; the event `Warned.of_surplus` has the number of machines beyond ``most``. ``lease_s``:
        the longest lease of the pool's machines in seconds; None: unknown.

        Raises:
            ProviderError: The provider failed, or the pool is in another place (such as another region, account or
                host) than this fleet.
        """
        ...
