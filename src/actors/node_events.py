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
    """The provider launched no machine, or too few; it is asked again ``retry_in_s`` later, or (None) not again."""

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
    """The node's machine waits in its provider's queue for its turn, as a job of a cluster does. It costs nothing.

    Sent when that begins, and again when ``reason`` or ``starts_at`` has changed. ``reason``: in the provider's words.
    ``starts_at``: when it is expected to start, in unix time; None: not known. Then comes `NodeStarted`, or `NodeReady`
    or an end of the node.
    """

    reason: str
    starts_at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeStarted(NodeEvent):
    """The machine of a node that was queued runs: its time to boot begins. ``waited_s``: it was in the queue."""

    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeLate(NodeEvent):
    """The node is a straggler: others had answered ``others_s`` after their launch. Another machine is asked for.

    Whichever of the two is ready first works; the other one is dismissed.
    """

    waited_s: float
    others_s: float


@dataclass(frozen=True, slots=True)
class NodePreparing(NodeEvent):
    """A step of bringing the image onto the node: an event when it begins, per log line, and at its end (`took_s`).

    ``phase``: "probe", "upload", "python", "apt", "packages", "files", "volumes", "run" or "executor".
    """

    phase: str
    text: str = ""
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReady(NodeEvent):
    """The node can run tasks; ``ready`` of ``wanted`` nodes can.

    ``rank``: at this moment. It changes when a node before this one joins or leaves; the ``seat`` does not, as long as
    the node is ready, and ranks follow the order of seats (`actors.seats`). None: a record of an older version.
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
    """A node has other package versions than this program. Reported once for each such set of versions.

    ``versions``: (what, here, there); ``table`` says the same for people, with the possible consequences.
    """

    versions: tuple[tuple[str, str, str], ...]
    table: str


@dataclass(frozen=True, slots=True)
class NodeStandby(NodeEvent):
    """The node is ready and stands by without work. When it takes the place of a lost node, `NodeReady` follows."""

    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class NodeSuspect(NodeEvent):
    """The node's connection is lost or (``silent``) delivers nothing; reconnecting is tried for a while."""

    cause: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True)
class NodeResumed(NodeEvent):
    """A suspect node answered in time, and nothing was lost."""


@dataclass(frozen=True, slots=True)
class NodeNoticed(NodeEvent):
    """The node has a preemption notice: the cloud will take its machine in ``seconds``."""

    source: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeNoticeWithdrawn(NodeEvent):
    source: str


@dataclass(frozen=True, slots=True)
class NodeDraining(NodeEvent):
    """The node finishes what it runs and gets no new work."""


@dataclass(frozen=True, slots=True)
class NodeDismissed(NodeEvent):
    """The node is no longer wanted and is shut down in order."""


@dataclass(frozen=True, slots=True)
class NodeFailed(NodeEvent):
    """The node never became ready."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost(NodeEvent):
    """A ready node was lost. ``noticed``: the cloud had announced it by a preemption notice."""

    cause: str = ""
    noticed: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU of a node. ``utilisation``: 0 to 1, the part of the driver's last interval in which it ran anything.

    None: the driver does not say.
    """

    index: int  # as nvidia-smi counts them
    utilisation: float | None
    memory_bytes: int
    memory_total_bytes: int
    watts: float | None


@dataclass(frozen=True, slots=True)
class NodeSampled(NodeEvent):
    """The use of a node in the ``seconds`` before: of its machine, or of its container where that has limits.

    ``cpu``: 0 to 1 of all ``cpus``. ``received_bytes`` and ``sent_bytes`` went over its network meanwhile. Consoles and
    logs do not show this event.
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
    """The use of a node from its machine's start to its end, as its provider's accounting has it.

    Told at the pool's end. ``cpu_s``: processor time; of ``seconds`` times ``cpus`` it is the CPU efficiency.
    ``memory_bytes``: the most at a time, of ``memory_total_bytes`` that were asked for. None: not known.
    """

    machine: str
    seconds: float
    cpus: float
    cpu_s: float
    memory_bytes: int | None
    memory_total_bytes: int | None
