"""All messages of the wire protocol between client, node and worker.

A message is sent as one msgpack array ``[tag, *fields]`` in one frame (see ``codec``). ``docs/protocol.md`` is the same
list for people. Messages are named tuples: cheap to create, immutable, packed without a copy, and matched by class.
User objects are opaque ``bytes`` here; only a worker and the awaiting caller unpickle them.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import Any

from ...lazy_named_tuple import NamedTuple
from .checkpoint_messages import Joined, Kept, Replicate, Replicated, Safe, Stored
from .peer_messages import Arrived, Copy, Digest, GetRest, Keys, Pull, PutRest, Serve, Serving, Unserve
from .ranges import Name, Number, Port, Quantity, Seconds, Share, Size, Stream, Text

PROTOCOL_VERSION = 4
LOST = "lost: "  # prefix instead of a blob's name: the node could not store the blob


class Value(NamedTuple):
    """A pickled object: protocol 5, followed by its out-of-band buffers.

    ``sizes``: the sizes of the pickle (first) and of its buffers; None: there are no buffers. The bytes are in ``data``
    or, if they are large, in the blob named ``blob`` (then ``data`` is empty).
    """

    data: bytes
    sizes: tuple[Size, ...] | None = None
    blob: str | None = None


class Peer(NamedTuple):
    """The node of a generation whose machine a notice concerns. The receiver runs ranks of that generation."""

    job: Number
    generation: Number
    number: Number  # identifies the notice; another notice has another number
    node: Number  # the node's number within the generation, as in `instance_info`


class RunFlag(IntFlag):
    """Options for running a task."""

    ANNOUNCE = 1  # send `Started` when the task begins
    STREAM = 2  # the function yields: each value is sent as `Yield`, if `Credit` allows it
    ALONE = 4  # the task has input streams: no other task may wait behind it in its worker
    FRESH = 8  # run the task in a new process, which ends with the task
    LISTENS = 16  # the task's rank has a port of this node in its world; from now on the port belongs to that rank
    BESIDE = 32  # run the task in addition to the slots, which stay free for other tasks; only with FRESH
    KEEP = 64  # a result in a blob stays on the node; its `sizes` are always set


class Cause(StrEnum):
    """The cause of an attempt's end, if its function did not report a result."""

    EXIT = "exit"  # the process exited, for example by os._exit; `code` is the exit status
    SIGNAL = "signal"  # a signal that Outrider did not send killed the process; `code` is its number
    MEMORY = "memory"  # the kernel's out-of-memory killer killed the process
    LIMIT = "limit"  # the process tree exceeded the memory of its `Hold`; `code` is its size in bytes
    TIMEOUT = "timeout"  # the attempt ran longer than `timeout_s`
    KILLED = "killed"  # by a `Kill` message; the whole process tree is gone
    UNKNOWN = "unknown"  # reply to `Compare`: the node does not have the attempt, so the attempt is lost


# --- client -> node --------------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first frame of a control channel, sent on connect and on every reconnect."""

    version: Number
    session: str  # random name per pool and node: a client that sends it can resume the session
    received: Number  # reliable frames received from the node so far
    python: str  # the version, such as "3.11"
    cloudpickle: str
    lease_s: Seconds  # the node ends itself after this time without a message
    # Keys: slots: int, kind: "process" | "thread", env: {name: value}, notices: [source, ...], sample_every: seconds.
    # Ignored on a reconnect.
    setup: dict[str, Any]


class View(NamedTuple):
    """The new content of `instance_info` on this node: msgpack of the fields that do not depend on the task."""

    view: bytes


class Define(NamedTuple):
    """A function, sent once per node; `Run` refers to it by digest.

    ``code`` is its bytes; if empty, they are in ``blob``.
    """

    function: bytes
    code: bytes
    blob: str | None = None


class Run(NamedTuple):
    """One attempt of one task. An ``attempt`` number is never used twice in a pool: no other fencing is needed."""

    attempt: Number
    function: bytes
    args: Value
    job: Number
    number: Number  # 1 for the first attempt of this task
    timeout_s: Seconds | None
    flags: Number
    world: bytes | None  # msgpack of the generation's fields of `instance_info`; None: a single task


class Kill(NamedTuple):
    """A request to kill an attempt's process tree. The answer is `Ended(KILLED)`, or a result that was sent earlier."""

    attempt: Number


class Recall(NamedTuple):
    """A request to return attempts that have not started. The answer is `Returned`, with those attempts."""

    attempts: tuple[Number, ...]


class Drop(NamedTuple):
    """A request to drop blobs that are not needed any more."""

    blobs: tuple[str, ...]


class Adopt(NamedTuple):
    """The name of a blob that the node can open at ``path`` (client and node run on one machine as one user)."""

    blob: str
    path: str
    size_bytes: Size


class Lend(NamedTuple):
    """The blobs to which an attempt refers; its `Run` follows.

    Other attempts may refer to them, too: the node keeps them.
    """

    attempt: Number
    blobs: tuple[str, ...]


class Refer(NamedTuple):
    """Values in blobs for an attempt, whose `Run` follows: its arguments refer to the values by ``names``."""

    attempt: Number
    names: tuple[str, ...]
    values: tuple[Value, ...]


class MoveToDisk(NamedTuple):
    """A request to move blobs from memory to disk, under the same names. The node reports failures by `NotMoved`."""

    blobs: tuple[str, ...]


class Hold(NamedTuple):
    """The resources that an attempt, whose `Run` follows, holds while it runs. 0: none, or no limit.

    The attempt's process sees ``gpus`` devices of its own. It is killed if its process tree exceeds ``memory_bytes``.
    """

    attempt: Number
    millicpus: Number
    memory_bytes: Size
    gpus: Number


class StopAt(NamedTuple):
    """A request to stop the ranks of this generation at their ``check``-th stop check."""

    job: Number
    generation: Number
    check: Number


class ShowStacks(NamedTuple):
    """A request for the stacks of all running attempts.

    The answers are a `Stacks` for each, and a last one without an attempt. The answer contains no text for an attempt
    that has begun or taken a step within the last ``quiet_us``.
    """

    number: Number  # identifies the request; the answers repeat it
    quiet_us: Number


class Profile(NamedTuple):
    """A request for a profile of a running attempt, under this name. The answer is `Profiled`.

    The profile ends after ``steps`` steps of the task (0: no limit), after ``seconds``, or with the attempt.
    """

    attempt: Number
    profile: Name
    steps: Number
    seconds: Seconds


class PortsTaken(NamedTuple):
    """The number of the node's ports that the client has taken, in the order of their numbers. The answer is `Ports`.

    ``unsent``: the taken ports whose attempts are not sent yet.
    """

    taken: Number
    unsent: tuple[Port, ...]


class Bye(NamedTuple):
    """The end of the pool: the node kills all processes, removes all files, and exits."""


# --- client <-> running task -----------------------------------------------------------------------------------------


class Input(NamedTuple):
    """The next item of an argument that is streamed to a running task; ``item`` None: the stream has ended."""

    attempt: Number
    stream: Stream
    item: Value | None
    # set if the client's iterator raised an exception: the pickled exception; ``item`` is None
    error: bytes | None = None


class Credit(NamedTuple):
    """The permission to send ``count`` more items of a stream. Stream -1 is a generator's output, 0.. are its inputs.

    ``count`` 0: no more items at all; a generator is closed and ends as `Done`.
    """

    attempt: Number
    stream: Stream
    count: Number  # type: ignore[assignment]  # hides tuple.count(), which is not needed


# --- node -> client --------------------------------------------------------------------------------------------------


class Welcome(NamedTuple):
    """The answer to `Hello`. ``resumed`` False: the node does not know this session, because it is a new executor."""

    version: Number
    resumed: bool
    received: Number  # reliable frames received from the client so far
    # Keys: hostname, pid, python, cloudpickle, cpus, memory_bytes, sharing, addresses, accelerators: [[type,
    # memory_gb], ...]
    facts: dict[str, Any]
    blobs: tuple[str, ...]  # names of the blobs on this node
    # Free TCP ports, bound and not listening, for generations whose head is this node. The first has the number 0; on a
    # reconnect, it has the number in the next `Ports`, which the node sends as the answer to `PortsTaken`.
    ports: tuple[Port, ...]


class Refused(NamedTuple):
    """The answer to `Hello` if the node refuses the client: another version, or another session is active.

    The node then closes the channel.
    """

    reason: str
    facts: dict[str, Any]


class Started(NamedTuple):
    attempt: Number


class Done(NamedTuple):
    """The function returned. ``duration_us`` covers only the function itself."""

    attempt: Number
    value: Value
    duration_us: Number


class Failed(NamedTuple):
    """The function raised, or the function, its arguments or its result could not be (un)pickled (see ``phase``)."""

    attempt: Number
    phase: str  # "load" (function or arguments), "call", "dump" (the result)
    kind: str  # the exception's qualified type, "package.module.Name"
    message: str
    traceback: str
    error: Value | None  # the pickled exception; None if it cannot be pickled
    duration_us: Number
    # on the node, the version of the package that defines the exception's type (for a builtin: of Python)
    version: str = ""
    ago_us: Number = 0  # time between the exception and this message, in which sessions of plugins end


class Ended(NamedTuple):
    """The attempt ended without a result: its process tree is gone, or it answered after its timeout."""

    attempt: Number
    cause: Cause
    code: Number
    detail: str  # further details for people; often empty
    ago_us: Number = 0  # time between the process's death and this message, in which its child processes end


class Returned(NamedTuple):
    attempts: tuple[Number, ...]


class Yield(NamedTuple):
    attempt: Number
    item: Value


class Output(NamedTuple):
    """Lines that a task printed. ``dropped``: bytes that were lost before them.

    If a text does not end in a newline, the next output of the same stream may continue its line.
    """

    attempt: Number
    stream: Stream  # 1 stdout, 2 stderr
    text: bytes
    dropped: Number


class Logged(NamedTuple):
    """Records that an attempt has logged (see `log_records`). ``dropped``: the number of records lost before them.

    With a ``blob`` there is exactly one record, of an artifact; the blob is its content.
    """

    attempt: Number
    records: bytes
    dropped: Number
    blob: str | None = None


class Stacks(NamedTuple):
    """The stacks of an attempt's processes, or the reason why there are none. ``attempt`` None: the end of the answers.

    ``quiet_us``: the time since the attempt took its last step, or began.
    """

    number: Number
    attempt: Number | None
    text: Text
    quiet_us: Number


class Profiled(NamedTuple):
    """A report that the profile of an attempt has ended or failed. A task may also take a profile without a request.

    ``artifact``: the name of the profile, which the attempt has logged before; empty if there is none. ``problem``: for
    people, why there is none, or which parts are missing.
    """

    attempt: Number
    profile: Name
    artifact: Name
    problem: Text


class StopChecks(NamedTuple):
    """The highest number of stop checks that a rank of this generation on this node has made."""

    job: Number
    generation: Number
    number: Number  # the number of the notice to which this is the answer
    checks: Number


class Unfit(NamedTuple):
    """An announcement that the executor ends by itself, with everything it runs.

    ``reason`` is one clause for people.
    """

    reason: str
    has_run: bool  # whether a worker has taken an attempt, other than one with the flag BESIDE


class Ports(NamedTuple):
    """All free ports that the node offers now. The node numbers ports in the order in which it opens them, from 0."""

    first: Number  # the number of the first port in ``ports``
    ports: tuple[Port, ...]


class NotMoved(NamedTuple):
    """A report that a blob stays in memory, because the node's disk is full or cannot be written."""

    blob: str
    reason: Text


# --- both ways ------------------------------------------------------------------------------------------------------


class PreemptionNotice(NamedTuple):
    """A notice that a machine will be taken in ``seconds``; None: the notice is withdrawn.

    Without ``peer``, it concerns the node's own machine: the node has detected it, or the client has received it from
    the provider. With ``peer``, it is the soonest notice about any machine of a generation, sent by the client; None:
    there is no such notice any more. The node answers it by `StopChecks`.
    """

    source: Name
    seconds: Seconds | None
    peer: Peer | None = None


class GpuSample(NamedTuple):
    """One GPU in a `Sampled`. None: the driver does not report the value."""

    device: Number  # the GPU's index, as in nvidia-smi
    utilisation: Share | None
    memory_bytes: Size
    memory_total_bytes: Size
    watts: Quantity | None


class Sampled(NamedTuple):
    """The use of the node's machine since the last sample. Neither counted nor kept for a reconnect."""

    seconds: Seconds  # time since the last sample
    cpu: Share  # share of all processors that was used
    cpus: Quantity
    memory_bytes: Size
    memory_total_bytes: Size
    disk_bytes: Number
    disk_total_bytes: Number
    received_bytes: Number  # network traffic since the last sample
    sent_bytes: Number
    gpus: tuple[GpuSample, ...]


# --- both ways, neither counted nor kept for a reconnect --------------------------------------------------------------


class Ack(NamedTuple):
    """The number of reliable frames received so far. It is the first frame of every write."""

    received: Number


class Ping(NamedTuple):
    sent_ms: Number
    frames: Number = 0  # reliable frames sent before this one; 0: unknown


class Pong(NamedTuple):
    sent_ms: Number
    clock_us: Number = 0  # the node's unix time when it received the `Ping`; 0: unknown
    frames: Number = 0  # reliable frames sent before this one; 0: unknown
    attempts: tuple[Number, ...] = ()  # `attempt_digest` of the node's attempts; empty: unknown


class Compare(NamedTuple):
    """All attempts that the client has sent to this node and that have not ended.

    For each of them that the node does not have, it answers `Ended` (`Cause.UNKNOWN`). It kills its attempts that are
    not in the list.
    """

    attempts: tuple[Number, ...]


# --- the first frame of a bulk channel, after which the channel carries only the blob's bytes -------------------------


class Put(NamedTuple):
    """client -> node: ``size_bytes`` bytes follow. The answer is `Have` when all of them are stored."""

    blob: str
    size_bytes: Size


class Get(NamedTuple):
    """client -> node: a request for a blob. The answer is `Have` and the bytes, or `Missing`."""

    blob: str


class Have(NamedTuple):
    blob: str
    size_bytes: Size


class Missing(NamedTuple):
    blob: str


_Orders = View | Define | Run | Kill | Recall | Compare | Hold | StopAt | ShowStacks | Profile | PortsTaken
_Blobs = Drop | Adopt | Lend | Refer | MoveToDisk | Replicate | Safe
_Peers = Keys | Serve | Unserve | Pull | Copy | Digest
ToNode = Hello | _Orders | _Blobs | _Peers | Bye | Input
_Answers = Started | Done | Failed | Ended | Returned | Yield | Output | Logged | Sampled | Stacks | Profiled
_Checkpoints = Kept | Stored | Joined | Replicated
ToClient = Welcome | Refused | _Answers | StopChecks | Ports | Unfit | NotMoved | _Checkpoints | Serving | Arrived
BothWays = Credit | PreemptionNotice | Ack | Ping | Pong
Bulk = Put | PutRest | Get | Have | Missing
Message = ToNode | ToClient | BothWays | Bulk | GetRest
