"""The protocols of a provider: it launches machines, reports what becomes of them, and reliably terminates them.

A `Provider` is what users configure; its `Fleet` has the machines of one pool. That is all that a provider must have.
The protocols at the end are what it may have besides: `Priced`, `Keyless`, `Containing`, `Lasting` and `Offering` of
the provider, `Quoting` and `Adopting` of its fleets. A machine that is warned before the cloud takes it says so in
`Machine.notices`.
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
        """Return whether a device satisfies the request. Its driver's name has the words of ours, as "GeForce RTX 4090"
        has RTX4090; "A100-SXM4-40GB" has no A10. A tenth less memory is enough: drivers call 16 GB 15 GB.
        """
        words, wanted = re.findall(_WORD, name.lower()), "".join(re.findall(_WORD, self.name.lower()))
        runs = ("".join(words[begin:end]) for begin in range(len(words)) for end in range(begin + 1, len(words) + 1))
        return wanted in runs and memory_gb >= 0.9 * self.memory_gb

    def __str__(self) -> str:
        least = f" of {self.memory_gb:g} GB" if self.memory_gb else ""
        return f"{self.count} {self.name}{least}"


@dataclass(frozen=True, slots=True)
class EntryPoints:
    """The programs on the machines of a provider whose machines are processes, by name: ``package.module:name``.

    They are imported in those processes. They are names and not callables, because they cross into another process, and
    providers know nothing of the layers above. Other providers ignore them.
    """

    fork_server: str = ""  # (control: socket.socket) -> Never; light, imported after the executor's code
    executor: str = ""  # (listener, forks, *, directory, same_host, accelerators, sharing): serves until it ends
    template: str = ""  # (modules, become, *, lead) -> a process that imports them, and forks fork servers
    preload: tuple[str, ...] = ()  # the modules; none: fork servers need no template
    shared: tuple[str, ...] = ()  # light modules that fork servers and workers have: imported once, before them


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A description of every machine of a pool. All quantities are minimums."""

    client_key: str  # the OpenSSH public key that may log in; empty for a provider that is `Keyless`
    nodes: int  # machines the pool wants in all: a provider that divides one computer's devices needs to know
    least: int = 1  # machines without which the pool is of no use
    accelerator: AcceleratorRequest | None = None
    vcpus: int = 0
    memory_gb: float = 0.0
    disk_gb: int = 0  # 0: as much as the machine's image needs
    architecture: Architecture | None = None  # None: the one that costs less
    max_hourly_cost: float | None = None  # USD for one machine
    allocation: Allocation = "spot-if-available"
    interconnect: Literal["efa"] | None = None
    lease_s: float = 120.0  # after its client's last word a machine ends itself
    container: str = ""  # the image of containers, where the provider has some; empty: the provider's own
    max_lifetime_s: float | None = None  # after its launch it ends itself, whoever speaks


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a machine's SSH server. If ``path``, a unix socket on this computer, is set, ignore host and port.

    So also with ``command``, whose standard streams carry the connection: it is run by the last host of
    `Login.jump`, or without one on this computer. The host is a name for people then; the login is the way to the host
    that runs the command, and the machine itself knows the pool's key, and is known by `Machine.host_key`.

    If port or user is None, the SSH configuration decides (see `Login`), else SSH's defaults.
    """

    host: str = ""
    port: int | None = None
    path: str | None = None
    user: str | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """The user's own way into a machine that does not know the pool's key. Paths of files on this computer."""

    keys: tuple[str, ...] = ()  # private keys; none: the agent's, and the usual files
    known_hosts: tuple[str, ...] = ()  # checked where the machine has no `host_key`; none: the usual files
    config: tuple[str, ...] = ()  # SSH configurations
    jump: str | None = None  # user@host:port,...: the hosts on the way


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that exists (or is about to). ``address`` is None until it can be reached."""

    id: MachineId
    address: Address | None
    host_key: str  # the OpenSSH public key to pin, "ssh-ed25519 AAAA..."; empty: the login's known_hosts know it
    executor_socket: str = ""  # where an executor runs already, as a process of this computer: nothing to ship
    ssh: bool = True  # False: the address is the executor's own socket, or the machine is a container; no SSH to it
    # Of a container: the command that runs a program in it, whose argv follows: ("podman", "exec", "-i", "NAME"). The
    # host at the address runs it, which the user's login leads to; this computer does where the address names no host.
    inside: tuple[str, ...] = ()
    private_address: str = ""  # by which the pool's machines reach each other; empty: where SSH arrives
    login: Login | None = None  # None: the pool's own key
    rotate_host_key: bool = False  # replace it at first contact: others may have seen it on its way to the machine
    patience_s: float | None = None  # unreachable for so long, it is down; None: it may still be booting
    ordered: bool = False  # its provider has an order, that of the answer to the launch: ranks follow it
    same_host: bool = False  # client and machine share memory: blobs go by file descriptor instead of over SSH
    witnesses: tuple[Address, ...] = ()  # who else answers this computer, unless its network is down
    notices: tuple[str, ...] = ()  # where it learns of its end, as docs/protocol.md names them: nobody else is asked
    lease: str = ""  # the file there which keeps it alive: whoever speaks for the client touches it; empty: it has none
    hourly_cost: float = 0.0  # USD, as long as it exists, with its volumes
    billed_at_least_s: float = 0.0  # however soon it ends
    env: Mapping[str, str] = field(default_factory=dict)  # what tasks need to use its network; the image's own wins
    facts: Mapping[str, str] = field(default_factory=dict)  # zone, type, price, ...: shown, never decided on

    @property
    def on_this_computer(self) -> bool:
        """Return whether it is processes of this computer: no network lies between, and their provider ends them."""
        return bool(self.executor_socket)

    @property
    def is_like_its_siblings(self) -> bool:
        """Return whether the next machine for the same request would have what this one has: a cluster's or a
        container's.
        """
        return bool(self.inside) or (self.address is not None and bool(self.address.command))


@dataclass(frozen=True, slots=True)
class MachineQueued:
    """A launched machine does not exist yet: it waits for its turn, as a job of a cluster does in the queue.

    Sent as soon as that is known, with the launch if possible, and again when anything of it has changed. The time in
    which it must boot (``Pool(boot_timeout=...)``) begins with its `MachineStarted`, or with its `MachineReachable`
    where that does not come. For a machine of which this is never said, it begins with its launch.
    """

    id: MachineId
    reason: str  # one clause for people: "job 4711 pending: Priority"
    starts_at: float | None = None  # when it is expected to start, in unix time; None: not known


@dataclass(frozen=True, slots=True)
class MachineStarted:
    """A machine that was queued runs from now on, and boots."""

    id: MachineId


@dataclass(frozen=True, slots=True)
class MachineReachable:
    """A launched machine now has its address."""

    machine: Machine


@dataclass(frozen=True, slots=True)
class MachineGone:
    """The provider's word that the machine does not exist any more, or never will: no need to try to reach it.

    ``error``: why a machine that was launched never becomes one, where the provider learns that afterwards only. It
    counts as an error of the launch: without `ProviderError.retry_after_s` no other machine is asked for in its place,
    and a pool that waits for it fails with it.
    """

    id: MachineId
    cause: str  # one clause for people: "killed by signal 9", "spot interruption"
    error: ProviderError | None = None


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """A notice that the cloud will take the machine in ``seconds``; None: ``source`` has withdrawn its notice."""

    id: MachineId
    source: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning for people, on which nothing is decided. Its text is one clause."""

    text: str

    @classmethod
    def of_surplus(cls, count: int, most: int) -> Self:
        """Return the warning that ``count`` living machines are ended, because the pool adopts ``most``."""
        machines = "further machine of the pool is" if count == 1 else "further machines of the pool are"
        return cls(f"{count} {machines} ended: nodes={most}")


@dataclass(frozen=True, slots=True)
class LaunchUnsure:
    """A launch whose answer did not come: up to ``count`` machines of it may exist, and cost, until `LaunchSettled`."""

    id: MachineId  # of the launch: no machine has it
    count: int
    hourly_cost: float  # USD, of all of them together, at most
    asked_at: float  # when it was asked for, by `anyio.current_time`
    text: str  # for people


@dataclass(frozen=True, slots=True)
class LaunchSettled:
    """The machines of that launch are known by their own ids from now on, or have ended, or never were."""

    id: MachineId


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """The use of a machine, by the provider's own count. Told while the fleet is left, when the machine has ended.

    ``cpu_s`` of ``seconds`` times ``cpus`` is its CPU efficiency. ``memory_bytes``: the most that was used at a time,
    of ``memory_total_bytes`` that there was, or was asked for; None: nobody knows.
    """

    id: MachineId
    seconds: float
    cpus: float
    cpu_s: float
    memory_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class UsageUnknown:
    """No `MachineUsage` will be told of some machines, or of all. ``why``: in one clause for people."""

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
    """An opened provider: one pool's machines."""

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Create up to ``count`` machines; fewer is an answer, none raises.

        Cancelling may leave machines behind that only ``events`` and leaving the context know of, and take care of.

        Raises:
            ProviderError: nothing was created.
        """
        ...

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End these machines and return when the provider confirms. Idempotent; unknown ids are fine."""
        ...

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        """Report that this machine did not become a node and is being terminated. ``for_good``: it never will, for a
        reason of its own, and must not be given again.
        """
        ...

    def events(self) -> AsyncIterator[MachineEvent]:
        """Yield the events of all machines in order, beginning when the fleet is opened. There may be one consumer."""
        ...


@runtime_checkable
class Provider(Protocol):
    """A source of machines, as the user configured it. Immutable; one may serve many pools at once."""

    @property
    def name(self) -> str: ...

    @property
    def local(self) -> bool:
        """Return whether the machines are this very computer, with this process's own Python and packages."""
        ...

    def open(self, pool: str, entry_points: EntryPoints, /) -> AbstractAsyncContextManager[Fleet]:
        """Enter to get a pool's fleet; leaving terminates every machine it ever launched, shielded and confirmed.

        This is quick, and so is entering, which the caller does in any case: they start what can be started before the
        first ``launch``, and the caller imports meanwhile. Errors are raised by entering. Where ``local`` holds, this
        may be called outside of an event loop; entering is always within one.
        Leaving may take long where the cloud does not answer: the fleet's ``events`` go on until it is done, so that
        somebody can be told.

        Raises:
            NotGone: by leaving; something may be left.
        """
        ...


# --- what a provider may have besides ---------------------------------------------------------------------------------


@runtime_checkable
class Priced(Protocol):
    """A provider that says whether its machines cost money. One that does not say so is taken to cost some."""

    @property
    def free(self) -> bool:
        """Return whether nothing of it costs money. Then every limit on prices holds."""
        ...


@runtime_checkable
class Keyless(Protocol):
    """A provider that says whether its machines are reached without SSH. One that does not say so is given a key."""

    @property
    def keyless(self) -> bool:
        """Return whether no machine of it needs `LaunchRequest.client_key`, which is empty then."""
        ...


@runtime_checkable
class Containing(Protocol):
    """A provider that says whether its machines are containers. One that does not say so has none."""

    @property
    def containers(self) -> bool:
        """Return whether `LaunchRequest.container` says which image they have, if it says one."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """A provider that says whether its machines outlive their client. One that does not say so ends them with it."""

    @property
    def outlives(self) -> bool:
        """Return whether another client may take the machines over (`Pool.attach`): its fleets are `Adopting` then."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOffer:
    """One kind of machine in one place at one price, as it would be asked for. None: not known."""

    kind: str  # "g5.xlarge", or a host's name
    place: str = ""  # a zone, "us-east-1a"
    region: str = ""
    market: str = ""  # "spot" or "on-demand"; empty: neither
    hourly_usd: float | None = None  # of one machine, with its disk and address
    vcpus: int | None = None
    memory_gb: float | None = None
    architecture: str = ""
    accelerator: str = ""
    accelerators: int | None = None
    stock: str = ""  # how many the cloud says that it has: "3", "low"; empty: it does not say
    attempt: int = 1  # offers of one attempt are asked for together, those of the next when it gives too few


@runtime_checkable
class Offering(Protocol):
    """A provider that says which machines it would ask for, without asking for any: `outrider offers` shows them."""

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return what would be tried for the request now, in that order. Nothing is created.

        Raises:
            ProviderError: there never will be such a machine here, and what comes close; or the cloud does not answer.
        """
        ...


@runtime_checkable
class Quoting(Protocol):
    """A fleet that knows prices before it launches. Of several `Spec`, the cheapest is asked first."""

    async def quote(self, request: LaunchRequest) -> float | None:
        """Return what one such machine costs now, in USD per hour; None: none is to be had.

        Raises:
            ProviderError
        """
        ...


@runtime_checkable
class Adopting(Protocol):
    """A fleet that can take over the machines of a dead client of the same pool. See `Lasting`."""

    async def adopt(self, known: Sequence[Machine], most: int, *, lease_s: float | None = None) -> Sequence[Machine]:
        """Take over machines, before the first launch: return the first ``most`` of ``known`` that still exist, which
        are this fleet's from now on. All else that the pool has is ended, which is not waited for; `Warned.of_surplus`
        among its events counts the machines beyond ``most``. ``lease_s``: the longest lease that any of the pool's
        machines was launched with; None: not known.

        Raises:
            ProviderError: also when the pool is not where this fleet is.
        """
        ...
