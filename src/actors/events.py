"""The events of a pool: everything that can be observed of it, and the interface of an observer (`Observe`).

The base classes come first, then the events of nodes (each node's life, from the launch of its machine on), the events
of work (tasks and their output, broadcasts and their generations), and the events of the pool itself. A broadcast runs
as generations: a generation is one try with all ranks, on nodes that do not change meanwhile.

Each type of event is a frozen class. The component that causes or notices an event creates it; the pool's observer sets
the fields that all events have in common, and passes the event to the user. Ids (``job``, ``task``, ``node``) count
from 0 or 1 in each pool and are never reused in that pool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Protocol

from ..lazy_dataclass import dataclass

__all__ = [
    "BroadcastFinished",
    "BroadcastSubmitted",
    "BroadcastWaits",
    "BudgetMostlySpent",
    "Event",
    "GenerationLost",
    "GenerationStarted",
    "GpuSample",
    "JobEvent",
    "JobFailed",
    "LaunchFailed",
    "MapProgress",
    "NetworkSilent",
    "NodeDismissed",
    "NodeDraining",
    "NodeEvent",
    "NodeFailed",
    "NodeLate",
    "NodeLaunching",
    "NodeLost",
    "NodeNoticeWithdrawn",
    "NodeNoticed",
    "NodePreparing",
    "NodeQueued",
    "NodeReady",
    "NodeResumed",
    "NodeSampled",
    "NodeStandby",
    "NodeStarted",
    "NodeSuspect",
    "NodeUsed",
    "NodesRequested",
    "Observe",
    "PoolClosed",
    "PoolClosing",
    "PoolIdleTooLong",
    "PoolReady",
    "PoolResized",
    "PoolScaled",
    "PoolStarting",
    "PoolUsed",
    "ProfileTaken",
    "ProviderWarned",
    "RecordFailed",
    "RemakeStarted",
    "SettleFailed",
    "StackTaken",
    "Stalled",
    "TaskFinished",
    "TaskGaveUp",
    "TaskOutput",
    "TaskRetried",
    "TaskStarted",
    "TaskSubmitted",
    "TerminateFailed",
    "TrackerBehind",
    "TransferRerouted",
    "UnfinishedLine",
    "UploadProgress",
    "VersionsDiffer",
]


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events.

    Attributes:
        at: Seconds since the epoch, by the client's clock. 0.0: not yet set.
    """

    name: ClassVar[str] = "event"  # name in logs, such as "node_lost"
    at: float = field(default=0.0, kw_only=True)  # seconds since the epoch, by the client's clock; 0.0: not yet set

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@dataclass(frozen=True, slots=True)
class NodeEvent(Event):
    """The base of events of one node.

    Attributes:
        node: The number of the node.
    """

    node: int


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """The base of events of a job, except its output. An observer gets these events only if its ``tasks`` is true.

    Attributes:
        job: The number of the job.
    """

    job: int


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


@dataclass(frozen=True, slots=True)
class TaskSubmitted(JobEvent):
    task: int
    function: str = ""


@dataclass(frozen=True, slots=True)
class TaskStarted(JobEvent):
    task: int
    node: int
    number: int = 1  # which attempt of the task this is: 1, 2, ...


@dataclass(frozen=True, slots=True)
class TaskFinished(JobEvent):
    """An attempt of a task ended.

    Attributes:
        task: The number of the task.
        node: The number of the node.
        number: The number of the attempt, from 1.
        verdict: "returned", "raised", "died" (the task's process ended by itself), "terminated" (SIGTERM or SIGKILL
            ended the process), "timed_out", "killed" (by the pool), or "unsent". Unsent: a result that the pool was to
            keep, and that is among the task's arguments, is lost. The lost result is computed again and the task is
            submitted again; or the task fails.
        busy_s: Seconds that the attempt ran.
    """

    task: int
    node: int
    number: int
    verdict: str
    busy_s: float


@dataclass(frozen=True, slots=True)
class TaskRetried(JobEvent):
    """The task's node was lost, or the task failed and may run again (``max_restarts``). It is queued again, in front.

    Attributes:
        task: The number of the task.
        node: The number of the node.
        number: The number of the attempt that ended, from 1.
        cause: The cause, in words.
    """

    task: int
    node: int
    number: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class TaskGaveUp(JobEvent):
    """The task ended without an attempt that returned or raised.

    Attributes:
        task: The number of the task.
        reason: A value of `Reason`, such as "lost" or "cancelled".
    """

    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class BroadcastWaits(Event):
    """A broadcast waits before its ranks run. Sent after 10 s, and each time that the waiting time has doubled.

    Attributes:
        job: The number of the job.
        reason: What the broadcast lacks, such as "free ports of node 3".
        waited_s: Seconds of waiting so far.
        function: The name of the function.
        ended: Whether the wait, or the broadcast, is over.
    """

    job: int
    reason: str
    waited_s: float
    function: str = ""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class JobFailed(JobEvent):
    """A job's function raised, or its process died. A map sends one event for each failed item.

    Attributes:
        function: The name of the function; for a map, a text such as "item 3 of f". The ``job`` is then the task that
            contained the item and others.
        error: A line such as "ValueError: bad luck".
        node: The number of the node.
        ranks: The ranks of a broadcast that failed with the same error, the first on ``node``. Empty for other calls.
    """

    function: str
    error: str
    node: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MapProgress(JobEvent):
    """The progress of a map, whose tasks are jobs of their own.

    Attributes:
        function: The name of the function.
        done: The number of items whose results the caller has.
        total: The number of items. None: unknown, as the items have no length.
        ended: Whether the map is over.
        failed: The number of finished items that raised errors.
    """

    function: str
    done: int
    total: int | None
    ended: bool = False
    failed: int = 0


@dataclass(frozen=True, slots=True)
class UploadProgress(Event):
    """Arguments or functions of 64 MiB or more in total are being uploaded to nodes.

    Attributes:
        nodes: The number of nodes.
        sent_bytes: The bytes sent so far.
        total_bytes: The bytes to send in total.
        took_s: Seconds so far.
        ended: Whether the upload is over.
    """

    nodes: int
    sent_bytes: int
    total_bytes: int
    took_s: float
    ended: bool = False


@dataclass(frozen=True, slots=True)
class TransferRerouted(Event):
    """A node gets the remaining part of a large object from another source than before.

    Attributes:
        node: The node that gets the object.
        source: The node that sent the first part.
        instead: The node that sends the remaining part. None: this program sends it.
        have_bytes: The bytes that have arrived.
        size_bytes: The size of the object in bytes.
        reason: The reason, in words.
        apart: Whether the pool's nodes cannot connect to each other. If so, this program from now on sends each object
            to each node that needs it, without further events.
    """

    node: int
    source: int
    instead: int | None
    have_bytes: int
    size_bytes: int
    reason: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class RemakeStarted(Event):
    """A kept result (``keep=True``) is needed, but was freed or lost with its node: the call that made it runs again.

    Attributes:
        job: The job of the new run.
        node: The node that was lost.
        function: The name of the function.
        number: The number of this run, from 1.
        times: The largest number of such runs that is allowed.
    """

    job: int
    node: int
    function: str
    number: int
    times: int


@dataclass(frozen=True, slots=True)
class TaskOutput(Event):
    """A task wrote whole lines, or a part of a line that is longer than 64 KiB.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank that wrote the text; 0 outside of broadcasts.
        stream: "stdout" or "stderr".
        text: The text as the task wrote it, with its control characters; Outrider's consoles and logs remove these. If
            carriage returns redrew a line for more than half a second, only the line's last state.
        function: The name of the function.
        dropped: The number of bytes that were lost before this text.
        ranks: The number of ranks; 1 outside of broadcasts.
    """

    job: int
    node: int
    rank: int
    stream: str
    text: str
    function: str = ""
    dropped: int = 0
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class UnfinishedLine(Event):
    """A task has begun a line and not ended it for half a second, as a progress bar or a row of dots does.

    The next event of this type with the same job, rank and stream replaces this one; when the line ends, a `TaskOutput`
    event has the whole line.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank that wrote the line; 0 outside of broadcasts.
        stream: "stdout" or "stderr".
        text: The line so far.
        function: The name of the function.
        ranks: The number of ranks; 1 outside of broadcasts.
    """

    job: int
    node: int
    rank: int
    stream: str
    text: str
    function: str = ""
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """A task, or all running ranks of a broadcast, gave no sign of life, such as output or a step, for long.

    A `StackTaken` event for the task, or for each rank, follows.

    Attributes:
        job: The number of the job.
        generation: The number of the generation; 0 outside of broadcasts.
        ranks: The running ranks.
        quiet_s: Seconds without a sign of life.
        rank: The rank for which the other ranks wait. None: it cannot be determined.
        reason: Why the other ranks seem to wait for ``rank``.
        function: The name of the function.
        restart: Whether the task runs again because of the stall.
    """

    job: int
    generation: int
    ranks: tuple[int, ...]
    quiet_s: float
    rank: int | None
    reason: str
    function: str
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ProfileTaken(Event):
    """The profile of a task, or of a rank of a broadcast, is complete, or could not be taken.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank; 0 outside of broadcasts.
        profile: The name of the profile; profiles that were taken together have the same name.
        artifact: The name of the artifact that contains the profile. Empty: no artifact was made.
        said: Why there is no artifact, or what the profile lacks.
        function: The name of the function.
        ranks: The number of ranks; 1 outside of broadcasts.
        generation: The number of the generation; 0 outside of broadcasts.
        clock_offset_s: Seconds by which the node's clock is ahead of this program's. None: unknown.
        clock_error_s: The uncertainty of ``clock_offset_s``, in seconds. None: unknown.
    """

    job: int
    node: int
    rank: int
    profile: str
    artifact: str
    said: str = ""
    function: str = ""
    ranks: int = 1
    generation: int = 0  # 0: the profile's task is not part of a broadcast
    clock_offset_s: float | None = None
    clock_error_s: float | None = None


@dataclass(frozen=True, slots=True)
class StackTaken(Event):
    """The stacks of a task, or of a rank of a broadcast, were taken. The content is the same as in `TaskStack`.

    Stacks that were taken together have the same ``at``.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank; 0 outside of broadcasts.
        text: The stacks.
        function: The name of the function.
        ranks: The number of ranks; 1 outside of broadcasts.
        generation: The number of the generation; 0 outside of broadcasts.
    """

    job: int
    node: int
    rank: int
    text: str
    function: str = ""
    ranks: int = 1
    generation: int = 0  # 0: the task is not part of a broadcast


# --- broadcasts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BroadcastSubmitted(JobEvent):
    function: str = ""


@dataclass(frozen=True, slots=True)
class GenerationStarted(JobEvent):
    """A generation of a broadcast begins to run ranks: all ranks or, after a node's loss, perhaps only the lost ranks.

    Attributes:
        generation: The number of the generation, from 1.
        nodes: The nodes; each runs the same number of ranks.
        ranks: The ranks that begin.
        head: The node of rank 0.
        head_port: A free port of that node.
    """

    generation: int
    nodes: tuple[int, ...]
    ranks: tuple[int, ...]
    head: int = 0
    head_port: int = 0


@dataclass(frozen=True, slots=True)
class GenerationLost(JobEvent):
    """The generation lost nodes; ``on_loss`` decides whether the other ranks' work is discarded or kept.

    Attributes:
        generation: The number of the generation.
        nodes: The lost nodes. Empty: a rank failed by itself, and all ranks run again (``max_restarts``).
        cause: The cause, in words.
    """

    generation: int
    nodes: tuple[int, ...]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class BroadcastFinished(JobEvent):
    """The broadcast ended.

    Attributes:
        generation: The number of the last generation.
        verdicts: For each rank, the ``verdict`` of `TaskFinished` or the ``reason`` of `TaskGaveUp`.
    """

    generation: int
    verdicts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolStarting(Event):
    """The pool opens.

    Attributes:
        pool: The name of the pool.
        provider: The name of the provider.
        wanted: The number of nodes that the pool grows to.
        least: The number of nodes with which the pool is ready.
    """

    pool: str
    provider: str
    wanted: int
    least: int


@dataclass(frozen=True, slots=True)
class PoolReady(Event):
    """The pool is ready for work, as enough nodes are ready; the remaining nodes may follow.

    Attributes:
        ready: The number of ready nodes.
        wanted: The number of nodes that the pool grows to.
        took_s: Seconds since the start of the pool.
    """

    ready: int
    wanted: int
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolResized(Event):
    """The pool grows or shrinks to another number of nodes."""

    wanted: int


@dataclass(frozen=True, slots=True)
class PoolScaled(Event):
    """A pool with ``scale="load"`` changes its number of nodes.

    Attributes:
        wanted: The new number.
        before: The previous number.
        reason: The reason, in words.
    """

    wanted: int
    before: int
    reason: str


@dataclass(frozen=True, slots=True)
class PoolClosing(Event):
    """The pool takes no new work, and releases its machines."""


@dataclass(frozen=True, slots=True)
class PoolUsed(Event):
    """The used share of all nodes' processors and memory. A `NodeUsed` event for each node comes before.

    Sent at the end of a pool whose provider has accounting data, or gives a reason for having none. A value that is
    None is not known.

    Attributes:
        nodes: The number of nodes with accounting data.
        cpu: The used share of the processors' time, from 0 to 1.
        memory: The used share of memory, at the peak of each node, from 0 to 1.
        unknown: Why some nodes, or all, have no accounting data.
    """

    nodes: int
    cpu: float | None
    memory: float | None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class PoolClosed(Event):
    """The last event of a pool. If any machine may still be running, a `ProviderWarned` event came before."""


@dataclass(frozen=True, slots=True)
class BudgetMostlySpent(Event):
    """Four fifths of ``max_cost`` are spent. The pool ends when all of ``max_cost`` is spent.

    Attributes:
        spent: The cost so far, in USD.
        limit: The ``max_cost``, in USD.
        hourly: The current cost per hour, in USD.
    """

    spent: float
    limit: float
    hourly: float


@dataclass(frozen=True, slots=True)
class PoolIdleTooLong(Event):
    """The pool has been idle for its ``max_idle`` or longer, and is being ended.

    Attributes:
        idle_s: The idle time in seconds.
        limit_s: The ``max_idle`` in seconds.
        gpus: The number of GPUs.
        use: The highest use of any GPU in that time, from 0 to 1; without GPUs, the highest number of processors of a
            node that were in use.
    """

    idle_s: float
    limit_s: float
    gpus: int
    use: float


@dataclass(frozen=True, slots=True)
class NetworkSilent(Event):
    """Every connection to a node is silent, perhaps because this computer's own network fails.

    As long as no other host answers either, the pool waits for the nodes until their leases end.
    """

    nodes: int


@dataclass(frozen=True, slots=True)
class TerminateFailed(Event):
    """Terminating machines failed several times; the pool will try again, at the latest when it ends.

    Attributes:
        machines: The ids of the machines.
        error: The last error.
    """

    machines: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class ProviderWarned(Event):
    """The provider has a warning for people, in one clause. The pool does not react to the warning.

    For example, the provider has had no news of the machines for long, or could not delete a resource that costs
    nothing.
    """

    text: str


@dataclass(frozen=True, slots=True)
class RecordFailed(Event):
    """The record of the run can no longer be written, for example on a full disk. The pool continues."""

    error: str


@dataclass(frozen=True, slots=True)
class TrackerBehind(Event):
    """A tracker has not received all data of the run when the pool ends.

    Attributes:
        tracker: The name of the tracker.
        points: About how many points the tracker has not received.
        problem: The reason, if it is known.
        command: The command that sends the missing data. Empty: nothing can be sent.
    """

    tracker: str
    points: int
    problem: str
    command: str


@dataclass(frozen=True, slots=True)
class SettleFailed(Event):
    """The end of a job could not be reported to its caller while the pool closed; this is a defect in Outrider."""

    error: str


class Observe(Protocol):
    """An observer: a callable that gets each event; it must be quick and must not raise."""

    tasks: bool  # whether the observer wants the events of single jobs (`JobEvent`), which cost time for every task

    def __call__(self, event: Event, /) -> None: ...

    def wants(self, job: int) -> bool:
        """Return whether the observer wants the events of this job. Called only if ``tasks`` is true."""
        ...
