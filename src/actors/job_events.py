"""Events of a pool's work: tasks and what they write, broadcasts and their generations."""

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
    number: int = 1  # which attempt of the task this is


@dataclass(frozen=True, slots=True)
class TaskFinished(JobEvent):
    """An attempt of a task ended.

    Attributes:
        task: The number of the task.
        node: The number of the node.
        number: The attempt, from 1.
        verdict: "returned", "raised", "died" (its process), "terminated" (its process, by SIGTERM or SIGKILL),
            "timed_out", "killed" (by the pool) or "unsent": a kept result among its arguments is lost. That result is
            computed again, and then the task is submitted again, or the task fails.
        busy_s: Seconds that it ran.
    """

    task: int
    node: int
    number: int
    verdict: str
    busy_s: float


@dataclass(frozen=True, slots=True)
class TaskRetried(JobEvent):
    """The task's node was lost, or the task failed and has ``max_restarts`` left; it is queued again, in front.

    Attributes:
        task: The number of the task.
        node: The number of the node.
        number: The attempt that ended, from 1.
        cause: The cause, in words.
    """

    task: int
    node: int
    number: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class TaskGaveUp(JobEvent):
    """The task ended without an outcome of an attempt.

    Attributes:
        task: The number of the task.
        reason: A value of `Reason`, such as "lost" or "cancelled".
    """

    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class BroadcastWaits(Event):
    """A broadcast waits before its ranks run. Sent after 10 s, and whenever the wait has doubled.

    Attributes:
        job: The number of the job.
        reason: The missing thing, such as "free ports of node 3".
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
    """A job's function raised, or its process died. Of a map, one event for each failed item.

    Attributes:
        function: The name of the function; of a map, such as "item 3 of f". The ``job`` is then the task that the item
            shared with others.
        error: A line such as "ValueError: bad luck".
        node: The number of the node.
        ranks: The ranks of a broadcast that failed alike, the first of them on ``node``. Empty for any other call.
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
        total: The number of items. None: they have no length.
        ended: Whether the map is over.
        failed: The number of items done that gave errors.
    """

    function: str
    done: int
    total: int | None
    ended: bool = False
    failed: int = 0


@dataclass(frozen=True, slots=True)
class UploadProgress(Event):
    """Arguments or functions of 64 MiB and more are on their way to nodes.

    Attributes:
        nodes: The number of nodes.
        sent_bytes: The bytes that were sent.
        total_bytes: The bytes in all.
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
    """A node gets the rest of a large object from another source.

    Attributes:
        node: The node that gets the object.
        source: The node that sent it so far.
        instead: The node that sends the rest. None: this program.
        have_bytes: The bytes that had arrived.
        size_bytes: The bytes of the object.
        reason: The reason, in words.
        apart: Whether the pool's nodes do not reach each other. From now on this program sends each object to each of
            them, without further events.
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
    """A kept result is needed, and was freed or lost with its node: its call runs again.

    Attributes:
        job: The job of the new run.
        node: The node that is lost.
        function: The name of the function.
        number: The number of this run, from 1.
        times: The most runs.
    """

    job: int
    node: int
    function: str
    number: int
    times: int


@dataclass(frozen=True, slots=True)
class TaskOutput(Event):
    """A task wrote whole lines, or a piece of a line longer than 64 KiB.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank that wrote it; 0 outside of broadcasts.
        stream: "stdout" or "stderr".
        text: The text as the task wrote it, including control characters, which Outrider's consoles and logs remove. Of
            a line that was redrawn by carriage returns over more than half a second, the last state.
        function: The name of the function.
        dropped: Bytes that were lost before it.
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
    """A task has begun a line and not ended it for half a second: a progress bar, dots.

    The next such event of the same job, rank and stream replaces it; when the line ends, `TaskOutput` has all of it.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank that wrote it; 0 outside of broadcasts.
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
    """A task, or all running ranks of a broadcast, gave no sign of life: no line, no step.

    A `StackTaken` of each follows.

    Attributes:
        job: The number of the job.
        generation: The generation; 0 outside of broadcasts.
        ranks: The running ranks.
        quiet_s: Seconds without a sign of life.
        rank: The rank that the others wait for. None: it cannot be determined.
        reason: Why it is that rank.
        function: The name of the function.
        restart: Whether the task runs again because of this.
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
    """The profile of a task, or of a rank of a broadcast, is over, or could not be taken.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank; 0 outside of broadcasts.
        profile: The name of the profile; profiles that were taken together share it.
        artifact: The name of the artifact with the profile. Empty: there is none.
        said: Why there is none, or what it lacks.
        function: The name of the function.
        ranks: The number of ranks; 1 outside of broadcasts.
        generation: The generation; 0 outside of broadcasts.
        clock_offset_s: Seconds by which the node's clock is ahead of this program's. None: unknown.
        clock_error_s: The uncertainty of that, in seconds. None: unknown.
    """

    job: int
    node: int
    rank: int
    profile: str
    artifact: str
    said: str = ""
    function: str = ""
    ranks: int = 1
    generation: int = 0  # 0: it is no part of a broadcast
    clock_offset_s: float | None = None
    clock_error_s: float | None = None


@dataclass(frozen=True, slots=True)
class StackTaken(Event):
    """The stacks of a task, or of a rank of a broadcast, were taken, as in `TaskStack`.

    Stacks that were taken together have the same ``at``.

    Attributes:
        job: The number of the job.
        node: The number of the node.
        rank: The rank; 0 outside of broadcasts.
        text: The stacks.
        function: The name of the function.
        ranks: The number of ranks; 1 outside of broadcasts.
        generation: The generation; 0 outside of broadcasts.
    """

    job: int
    node: int
    rank: int
    text: str
    function: str = ""
    ranks: int = 1
    generation: int = 0  # 0: it is no part of a broadcast


# --- broadcasts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BroadcastSubmitted(JobEvent):
    function: str = ""


@dataclass(frozen=True, slots=True)
class GenerationStarted(JobEvent):
    """A generation of a broadcast begins to run ranks: all or, after a loss, perhaps only the lost ones.

    Attributes:
        generation: The number of the generation, from 1.
        nodes: The nodes, each for the same number of ranks.
        ranks: The ranks that run.
        head: The node of rank 0.
        head_port: A free port there.
    """

    generation: int
    nodes: tuple[int, ...]
    ranks: tuple[int, ...]
    head: int = 0
    head_port: int = 0


@dataclass(frozen=True, slots=True)
class GenerationLost(JobEvent):
    """The generation lost these nodes; ``on_loss`` decides whether the other ranks' work is void or kept.

    Attributes:
        generation: The number of the generation.
        nodes: The lost nodes. Empty: a rank failed by itself, and runs again with the others (``max_restarts``).
        cause: The cause, in words.
    """

    generation: int
    nodes: tuple[int, ...]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class BroadcastFinished(JobEvent):
    """The broadcast ended.

    Attributes:
        generation: The last generation.
        verdicts: By rank, the ``verdict`` of `TaskFinished` or the ``reason`` of `TaskGaveUp`.
    """

    generation: int
    verdicts: tuple[str, ...]
