"""Events of a pool's work: tasks and their output, broadcasts and their generations."""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from .event_bases import Event, JobEvent


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
