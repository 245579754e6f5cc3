"""The events of a pool's nodes: each node's life from the launch of its machine on, and its use of resources."""

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
        retry_in_s: Seconds until the pool tries again. None: the pool does not try again.
    """

    error: str
    failures: int
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLaunching(NodeEvent):
    machine: str = ""
    hourly_cost: float = 0.0  # USD per hour
    # facts about the machine from its provider: pid, zone, type, ...
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeQueued(NodeEvent):
    """The node's machine waits in its provider's queue, as a job of a cluster does. A waiting machine costs nothing.

    Sent when the wait begins, and again when ``reason`` or ``starts_at`` has changed. The wait ends with `NodeStarted`,
    `NodeReady`, or an event for the end of the node.

    Attributes:
        reason: The reason of the wait, in the provider's words.
        starts_at: The Unix time of the expected start. None: not known.
    """

    reason: str
    starts_at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeStarted(NodeEvent):
    """The machine of a queued node now runs, and its time to boot begins.

    Attributes:
        waited_s: Seconds for which the machine was in the queue.
    """

    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeLate(NodeEvent):
    """The node is a straggler: other machines launched with it answered long ago. The pool launches a substitute.

    The first of the two machines that becomes ready is used; the other machine is dismissed.

    Attributes:
        waited_s: Seconds since the launch.
        others_s: Seconds from the launch until the other machines of the same launch had answered.
    """

    waited_s: float
    others_s: float


@dataclass(frozen=True, slots=True)
class NodePreparing(NodeEvent):
    """A step of installing the image on the node. Sent when the step begins, for each log line, and when the step ends.

    Attributes:
        phase: "probe", "upload", "python", "apt", "packages", "files", "volumes", "run" or "executor".
        text: The log line.
        took_s: Seconds that the step took, in the event for the step's end. None in the other events.
    """

    phase: str
    text: str = ""
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReady(NodeEvent):
    """The node can run tasks.

    Attributes:
        rank: The rank at this moment. It changes when a node with a lower rank joins or leaves.
        ready: The number of ready nodes.
        wanted: The number of nodes that the pool grows to.
        machine: The id of the machine.
        hostname: The name of the host.
        address: The address of the host.
        accelerators: The number of devices.
        took_s: Seconds since the launch.
        seat: The position in the order of ranks (`actors.seats`). It does not change while the node is ready. None: the
            record comes from an older version.
    """

    rank: int
    ready: int
    wanted: int
    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0
    took_s: float = 0.0  # seconds since the launch
    seat: int | None = None


@dataclass(frozen=True, slots=True)
class VersionsDiffer(NodeEvent):
    """A node has package versions other than this program's. Sent once for each distinct set of versions.

    Attributes:
        versions: Triples: name of the package, version in this program, version on the node.
        table: The versions as a table for people, with the possible consequences.
    """

    versions: tuple[tuple[str, str, str], ...]
    table: str


@dataclass(frozen=True, slots=True)
class NodeStandby(NodeEvent):
    """The node is ready and stands by without work. When it replaces a lost node, `NodeReady` follows.

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
    """The node's connection is lost or silent; the pool tries to reconnect for a limited time.

    Attributes:
        cause: The cause, in words.
        silent: Whether the connection is open but delivers nothing.
    """

    cause: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True)
class NodeResumed(NodeEvent):
    """A suspect node was connected again in time, and nothing was lost."""


@dataclass(frozen=True, slots=True)
class NodeNoticed(NodeEvent):
    """The node has a preemption notice: the cloud will take its machine.

    Attributes:
        source: The source of the notice, as in `Preemption`.
        seconds: Seconds until the machine is taken.
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
    """The node is no longer needed and is shut down in an orderly way."""


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
        noticed: Whether a preemption notice came before the loss.
    """

    cause: str = ""
    noticed: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The use of one GPU of a node.

    Attributes:
        index: The number of the GPU, as in nvidia-smi.
        utilisation: The fraction of the GPU driver's last sampling interval in which the GPU ran anything, from 0 to 1.
            None: not reported.
        memory_bytes: The memory in use.
        memory_total_bytes: The total memory.
        watts: The power. None: not reported.
    """

    index: int  # number of the GPU, as in nvidia-smi
    utilisation: float | None
    memory_bytes: int
    memory_total_bytes: int
    watts: float | None


@dataclass(frozen=True, slots=True)
class NodeSampled(NodeEvent):
    """The use of a node's machine, or of its container if the container has limits. Not shown by consoles and logs.

    Attributes:
        seconds: The seconds since the previous sample.
        cpu: The use of all ``cpus`` since the previous sample, from 0 to 1.
        cpus: The number of processors.
        memory_bytes: The memory in use.
        memory_total_bytes: The total memory.
        disk_bytes: The used space of the disk that has the work folder.
        disk_total_bytes: The size of that disk.
        received_bytes: The bytes received over the node's network since the previous sample.
        sent_bytes: The bytes sent over the node's network since the previous sample.
        gpus: A sample of each GPU.
    """

    seconds: float
    cpu: float
    cpus: float
    memory_bytes: int
    memory_total_bytes: int
    disk_bytes: int  # used space of the disk that has the work folder
    disk_total_bytes: int
    received_bytes: int
    sent_bytes: int
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeUsed(NodeEvent):
    """The use of a node from its machine's start to its end, by the provider's accounting. Sent when the pool ends.

    Attributes:
        machine: The id of the machine.
        seconds: The seconds from the machine's start to its end.
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
