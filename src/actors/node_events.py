"""Events of a pool's machines: each node's life from its launch on, and how much of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ..lazy_dataclass import dataclass
from .event_bases import Event, NodeEvent


@dataclass(frozen=True, slots=True)
class NodesRequested(Event):
    count: int


@dataclass(frozen=True, slots=True)
class LaunchFailed(Event):
    """The provider launched no machine, or too few.

    Attributes:
        error: The error of the provider.
        failures: The number of failures in a row.
        retry_in_s: Seconds until the pool tries again. None: it does not.
    """

    error: str
    failures: int
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLaunching(NodeEvent):
    machine: str = ""
    hourly_cost: float = 0.0  # USD
    facts: Mapping[str, str] = field(default_factory=dict)  # the provider's facts about it: pid, zone, type, ...


@dataclass(frozen=True, slots=True)
class NodeQueued(NodeEvent):
    """The node's machine waits in its provider's queue, as a job of a cluster does. It costs nothing.

    Sent when the wait begins, and again when ``reason`` or ``starts_at`` has changed. Then comes `NodeStarted`,
    `NodeReady`, or an end of the node.

    Attributes:
        reason: The reason of the wait, in the provider's words.
        starts_at: The unix time of the expected start. None: not known.
    """

    reason: str
    starts_at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeStarted(NodeEvent):
    """The machine of a queued node runs, and its time to boot begins.

    Attributes:
        waited_s: Seconds that it waited in the queue.
    """

    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeLate(NodeEvent):
    """The node is a straggler; the pool asks for another machine.

    The machine of the two that is ready first works; the other one is dismissed.

    Attributes:
        waited_s: Seconds since the launch.
        others_s: Seconds after which other machines of the launch had answered.
    """

    waited_s: float
    others_s: float


@dataclass(frozen=True, slots=True)
class NodePreparing(NodeEvent):
    """A step of installing the image on the node: an event when it begins, for each log line, and at its end.

    Attributes:
        phase: "probe", "upload", "python", "apt", "packages", "files", "volumes", "run" or "executor".
        text: The log line.
        took_s: Seconds that the step took, at its end; else None.
    """

    phase: str
    text: str = ""
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReady(NodeEvent):
    """The node can run tasks.

    Attributes:
        rank: The rank at this moment. It changes when a node before this one joins or leaves.
        ready: The number of ready nodes.
        wanted: The number of nodes that the pool grows to.
        machine: The id of the machine.
        hostname: The name of the host.
        address: The address of the host.
        accelerators: The number of devices.
        took_s: Seconds since the launch.
        seat: Does not change while the node is ready; ranks follow the order of seats (`actors.seats`). None: the
            record of an older version.
    """

    rank: int
    ready: int
    wanted: int
    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0
    took_s: float = 0.0  # since it was launched
    seat: int | None = None


@dataclass(frozen=True, slots=True)
class VersionsDiffer(NodeEvent):
    """A node has other package versions than this program. Sent once for each such set of versions.

    Attributes:
        versions: Triples of a name, the version here, and the version there.
        table: The same for people, with the possible consequences.
    """

    versions: tuple[tuple[str, str, str], ...]
    table: str


@dataclass(frozen=True, slots=True)
class NodeStandby(NodeEvent):
    """The node is ready and stands by without work. When it takes the place of a lost node, `NodeReady` follows.

    Attributes:
        machine: The id of the machine.
        hostname: The name of the host.
        address: The address of the host.
        accelerators: The number of devices.
    """

    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class NodeSuspect(NodeEvent):
    """The node's connection is lost or silent; the pool tries to reconnect for a while.

    Attributes:
        cause: The cause, in words.
        silent: Whether the connection is open but delivers nothing.
    """

    cause: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True)
class NodeResumed(NodeEvent):
    """A suspect node answered in time, and nothing was lost."""


@dataclass(frozen=True, slots=True)
class NodeNoticed(NodeEvent):
    """The node has a preemption notice: the cloud will take its machine.

    Attributes:
        source: Where the notice comes from, as in `Preemption`.
        seconds: Seconds until then.
    """

    source: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeNoticeWithdrawn(NodeEvent):
    source: str


@dataclass(frozen=True, slots=True)
class NodeDraining(NodeEvent):
    """The node finishes its running tasks and gets no new work."""


@dataclass(frozen=True, slots=True)
class NodeDismissed(NodeEvent):
    """The node is no longer needed and is shut down in order."""


@dataclass(frozen=True, slots=True)
class NodeFailed(NodeEvent):
    """The node never became ready.

    Attributes:
        cause: The cause, in words.
    """

    cause: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost(NodeEvent):
    """A ready node was lost.

    Attributes:
        cause: The cause, in words.
        noticed: Whether the cloud had announced it by a preemption notice.
    """

    cause: str = ""
    noticed: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The use of one GPU of a node.

    Attributes:
        index: The number of the GPU, as nvidia-smi counts.
        utilisation: The part of the driver's last interval in which the GPU ran anything, from 0 to 1. None: not
            reported.
        memory_bytes: The memory in use.
        memory_total_bytes: The memory in all.
        watts: The power. None: not reported.
    """

    index: int  # as nvidia-smi counts them
    utilisation: float | None
    memory_bytes: int
    memory_total_bytes: int
    watts: float | None


@dataclass(frozen=True, slots=True)
class NodeSampled(NodeEvent):
    """The use of a node: of its machine, or of its container if that has limits. Not shown by consoles and logs.

    Attributes:
        seconds: The seconds since the sample before.
        cpu: The use of all ``cpus`` in that time, from 0 to 1.
        cpus: The number of processors.
        memory_bytes: The memory in use.
        memory_total_bytes: The memory in all.
        disk_bytes: The use of the disk with the work folder.
        disk_total_bytes: The size of that disk.
        received_bytes: The bytes that came over its network in that time.
        sent_bytes: The bytes that left over its network in that time.
        gpus: A sample of each GPU.
    """

    seconds: float
    cpu: float
    cpus: float
    memory_bytes: int
    memory_total_bytes: int
    disk_bytes: int  # of the disk with the work folder
    disk_total_bytes: int
    received_bytes: int
    sent_bytes: int
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeUsed(NodeEvent):
    """The use of a node from its machine's start to its end, from the provider's accounting, sent at the pool's end.

    Attributes:
        machine: The id of the machine.
        seconds: The seconds from start to end.
        cpus: The number of processors.
        cpu_s: Seconds of processor time. Divided by ``seconds`` times ``cpus``, it is the CPU efficiency.
        memory_bytes: The highest use of memory. None: not known.
        memory_total_bytes: The memory that was requested. None: not known.
    """

    machine: str
    seconds: float
    cpus: float
    cpu_s: float
    memory_bytes: int | None
    memory_total_bytes: int | None
