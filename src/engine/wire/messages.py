"""Every message of the wire protocol between client, node and worker.

A message travels as one msgpack array ``[tag, *fields]`` in one frame (see ``codec``). ``docs/protocol.md`` is the
same list for people. Messages are named tuples: cheap to make, immutable, packed without a copy, and matched by class.
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
LOST = "lost: "  # prefix of the name of a blob that is nowhere, because the node had no room for it


class Value(NamedTuple):
    """A pickled object: protocol 5, its buffers behind it.

    ``sizes`` cuts the bytes into the pickle (first) and its out-of-band buffers; None: the pickle alone. The bytes are
    ``data``, or the blob named ``blob`` (then ``data`` is empty): small values ride in the frame, large ones in a blob.
    """

    data: bytes
    sizes: tuple[Size, ...] | None = None
    blob: str | None = None


class Peer(NamedTuple):
    """The node of a generation whose machine a notice is about. The receiver runs ranks of that generation."""

    job: Number
    generation: Number
    number: Number  # another notice has another number
    node: Number  # the number within the generation, as in `instance_info`


class RunFlag(IntFlag):
    """Options of how a task is to be run."""

    ANNOUNCE = 1  # say `Started`
    STREAM = 2  # the function yields: each value goes out as `Yield`, by `Credit`
    ALONE = 4  # it has input streams: no other task may wait behind it in its worker
    FRESH = 8  # in a process of its own that ends with it
    LISTENS = 16  # its rank has a port of this node in its world, and it belongs to that rank from now on
    BESIDE = 32  # beside the slots, which stay free for tasks; comes with FRESH
    KEEP = 64  # a result in a blob stays there: its `sizes` are given in any case


class Cause(StrEnum):
    """The cause of an attempt's end that its function did not report."""

    EXIT = "exit"  # the process called os._exit; `code` is the status
    SIGNAL = "signal"  # the process was killed by a signal that was not ours; `code` is its number
    MEMORY = "memory"  # the kernel's out-of-memory killer
    LIMIT = "limit"  # its process tree held more memory than its `Hold` says; `code` is how many bytes
    TIMEOUT = "timeout"  # ran longer than `timeout_s`
    KILLED = "killed"  # by `Kill`; its whole process tree is gone
    UNKNOWN = "unknown"  # the answer to `Compare`: the node has no such attempt, and is lost by that


# --- client -> node --------------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first frame of a control channel, on connect and on every reconnect."""

    version: Number
    session: str  # random, per pool and node: a client that knows it can resume
    received: Number  # reliable frames received so far from the node
    python: str  # "3.11"
    cloudpickle: str
    lease_s: Seconds  # the node ends itself after so long without a message
    # slots: int, kind: "process" | "thread", env: {name: value}, notices: [source, ...], sample_every: seconds;
    # ignored on reconnect
    setup: dict[str, Any]


class View(NamedTuple):
    """The content of `instance_info` on this node from now on: msgpack of the fields that do not depend on the task."""

    view: bytes


class Define(NamedTuple):
    """A function, once per node: `Run` names it by digest. ``code`` is its bytes; empty: the blob named ``blob`` is."""

    function: bytes
    code: bytes
    blob: str | None = None


class Run(NamedTuple):
    """One attempt of one task. ``attempt`` is never used twice in a pool, which is all the fencing there is."""

    attempt: Number
    function: bytes
    args: Value
    job: Number
    number: Number  # 1 for the first attempt of this task
    timeout_s: Seconds | None
    flags: Number
    world: bytes | None  # msgpack of the generation's fields of `instance_info`; None: the task is a world of its own


class Kill(NamedTuple):
    """Kills an attempt's process tree; answered by `Ended(KILLED)`, or by the result that was faster."""

    attempt: Number


class Recall(NamedTuple):
    """Asks for attempts that have not started; answered by `Returned` with those that had not."""

    attempts: tuple[Number, ...]


class Drop(NamedTuple):
    """Drops obsolete blobs."""

    blobs: tuple[str, ...]


class Adopt(NamedTuple):
    """Names a blob that this machine can open at ``path`` (client and node on one machine, one user)."""

    blob: str
    path: str
    size_bytes: Size


class Lend(NamedTuple):
    """Names blobs that an attempt refers to, whose `Run` follows; other attempts may as well: the node keeps them."""

    attempt: Number
    blobs: tuple[str, ...]


class Refer(NamedTuple):
    """Lends values in blobs to an attempt, whose `Run` follows: its arguments refer to them by ``names``."""

    attempt: Number
    names: tuple[str, ...]
    values: tuple[Value, ...]


class MoveToDisk(NamedTuple):
    """Moves blobs from the node's memory to its disk, under the same names. `NotMoved` says which have not."""

    blobs: tuple[str, ...]


class Hold(NamedTuple):
    """Says what an attempt, whose `Run` follows, holds of the node while it runs. Its process sees ``gpus`` devices of
    its own, and is ended when its tree holds more memory. 0: nothing is held.
    """

    attempt: Number
    millicpus: Number
    memory_bytes: Size
    gpus: Number


class StopAt(NamedTuple):
    """Stops the ranks of this generation at their ``check``-th stop check."""

    job: Number
    generation: Number
    check: Number


class ShowStacks(NamedTuple):
    """Asks for the stacks of all attempts that run; answered by a `Stacks` for each, and one without an attempt.

    Of an attempt that has begun or taken a step within the last ``quiet_us`` no stack is taken: its answer has no text.
    """

    number: Number  # of the question, which the answers repeat
    quiet_us: Number


class Profile(NamedTuple):
    """Asks for a profile of an attempt that runs, under this name; answered by `Profiled`.

    It ends after so many ``steps`` of the task (0: they do not end it), after ``seconds``, or with the attempt.
    """

    attempt: Number
    profile: Name
    steps: Number
    seconds: Seconds


class PortsTaken(NamedTuple):
    """Says how many of the node's ports the client has taken, in the order of their numbers; answered by `Ports`.

    ``unsent``: those of them whose attempts will still come.
    """

    taken: Number
    unsent: tuple[Port, ...]


class Bye(NamedTuple):
    """Ends the pool: the node kills all processes, removes all files, and exits."""


# --- client <-> running task -----------------------------------------------------------------------------------------


class Input(NamedTuple):
    """The next item of an argument that is streamed to a running task; ``item`` None: the stream ended."""

    attempt: Number
    stream: Stream
    item: Value | None
    error: bytes | None = None  # with item None: the client's iterator raised this (pickled exception)


class Credit(NamedTuple):
    """Lets the sender of a stream send ``count`` more items. Stream -1 is a generator's output, 0.. its inputs.

    ``count`` 0: no more at all; a generator is closed and ends as `Done`.
    """

    attempt: Number
    stream: Stream
    count: Number  # type: ignore[assignment]  # a tuple's count() is not missed


# --- node -> client --------------------------------------------------------------------------------------------------


class Welcome(NamedTuple):
    """Answers `Hello`. ``resumed`` False: the node knows nothing of this session (a fresh executor)."""

    version: Number
    resumed: bool
    received: Number  # reliable frames received so far from the client
    # hostname, pid, python, cloudpickle, cpus, memory_bytes, sharing, addresses, accelerators: [[type, memory_gb], ...]
    facts: dict[str, Any]
    blobs: tuple[str, ...]  # that this node holds
    # Free TCP ports kept (bound, not listening) for generations whose head is this node; the first has the number 0,
    # or on a reconnect that of `Ports`, which the node sends when it is asked.
    ports: tuple[Port, ...]


class Refused(NamedTuple):
    """Answers `Hello` with a reason, and closes: another version, another session in charge."""

    reason: str
    facts: dict[str, Any]


class Started(NamedTuple):
    attempt: Number


class Done(NamedTuple):
    """The function returned. ``duration_us`` is the time in the function alone."""

    attempt: Number
    value: Value
    duration_us: Number


class Failed(NamedTuple):
    """The function raised, or its arguments or result could not be (un)pickled (then ``phase`` says which)."""

    attempt: Number
    phase: str  # "load" (function or arguments), "call", "dump" (the result)
    kind: str  # the exception's qualified type, "package.module.Name"
    message: str
    traceback: str
    error: Value | None  # the pickled exception; None: it cannot be pickled
    duration_us: Number
    version: str = ""  # the node's version of the package of the exception's type (Python's own for a builtin)
    ago_us: Number = 0  # how long before this message the function raised: plugins' sessions end in between


class Ended(NamedTuple):
    """The attempt is over without a result: its process tree is gone, or it answered after its timeout."""

    attempt: Number
    cause: Cause
    code: Number
    detail: str  # what cause and code do not say, for people; often empty
    ago_us: Number = 0  # how long before this message its process died: what that had started ends in between


class Returned(NamedTuple):
    attempts: tuple[Number, ...]


class Yield(NamedTuple):
    attempt: Number
    item: Value


class Output(NamedTuple):
    """Lines that a task printed. ``dropped`` bytes were lost before them.

    A text that ends in no newline is continued by the next output of the attempt's stream, or its line ends there.
    """

    attempt: Number
    stream: Stream  # 1 stdout, 2 stderr
    text: bytes
    dropped: Number


class Logged(NamedTuple):
    """Records that an attempt has logged (see `log_records`). ``dropped``: how many were lost before them.

    With a ``blob`` it is one record, of an artifact, whose content the blob is.
    """

    attempt: Number
    records: bytes
    dropped: Number
    blob: str | None = None


class Stacks(NamedTuple):
    """The stacks of an attempt's processes, or why there are none. ``attempt`` None: that was all.

    ``quiet_us``: how long ago the attempt has taken its last step, or has begun.
    """

    number: Number
    attempt: Number | None
    text: Text
    quiet_us: Number


class Profiled(NamedTuple):
    """Reports that the profile of an attempt is over, or that there is none. A task may take one without a request.

    ``artifact``: the name of the profile, logged before by the attempt; empty: there is none. ``problem``: why there is
    none, or what it lacks, for people.
    """

    attempt: Number
    profile: Name
    artifact: Name
    problem: Text


class StopChecks(NamedTuple):
    """The largest number of stop checks that a rank of this generation on this node has made."""

    job: Number
    generation: Number
    number: Number  # of the notice that this answers
    checks: Number


class Unfit(NamedTuple):
    """Announces that the executor ends by itself, with everything it runs. ``reason`` is one clause for people."""

    reason: str
    has_run: bool  # some worker of it has taken an attempt that did not run BESIDE its slots


class Ports(NamedTuple):
    """All free ports that the node offers now. It numbers ports in the order in which it opens them, from 0 on."""

    first: Number  # the number of the first of these ports
    ports: tuple[Port, ...]


class NotMoved(NamedTuple):
    """Says that a blob stays in the node's memory, as its disk has no room for it, or cannot be written."""

    blob: str
    reason: Text


# --- both ways ------------------------------------------------------------------------------------------------------


class PreemptionNotice(NamedTuple):
    """A machine will be taken in ``seconds``; None: the notice is withdrawn.

    Without ``peer`` it is the node's own machine: the node learned it there, or the client from the provider. A client
    also sends the soonest notice about the machines of a generation, with ``peer``; seconds None: there is none any
    more. The node answers it by `StopChecks`.
    """

    source: Name
    seconds: Seconds | None
    peer: Peer | None = None


class GpuSample(NamedTuple):
    """One GPU within a `Sampled`; None: its driver does not say."""

    device: Number  # as nvidia-smi counts them
    utilisation: Share | None
    memory_bytes: Size
    memory_total_bytes: Size
    watts: Quantity | None


class Sampled(NamedTuple):
    """The use of the node's machine since the last sample. Neither counted nor kept for a reconnect."""

    seconds: Seconds  # since then
    cpu: Share  # of all its processors
    cpus: Quantity
    memory_bytes: Size
    memory_total_bytes: Size
    disk_bytes: Number
    disk_total_bytes: Number
    received_bytes: Number  # over its network, since then
    sent_bytes: Number
    gpus: tuple[GpuSample, ...]


# --- both ways, neither counted nor kept for a reconnect --------------------------------------------------------------


class Ack(NamedTuple):
    """The number of reliable frames received so far; first in every write."""

    received: Number


class Ping(NamedTuple):
    sent_ms: Number
    frames: Number = 0  # reliable ones sent before this one; 0: it does not say


class Pong(NamedTuple):
    sent_ms: Number
    clock_us: Number = 0  # the node's unix time when it got the `Ping`; 0: it does not say
    frames: Number = 0  # reliable ones sent before this one; 0: it does not say
    attempts: tuple[Number, ...] = ()  # `attempt_digest` of those that the node has; empty: it does not say


class Compare(NamedTuple):
    """All attempts that the client has sent this node and that have not ended.

    The node answers `Ended` (`Cause.UNKNOWN`) for each that it does not have, and kills its attempts that are not here.
    """

    attempts: tuple[Number, ...]


# --- the first frame of a bulk channel, which then carries the blob's bytes and nothing else --------------------------


class Put(NamedTuple):
    """client -> node: ``size_bytes`` bytes follow; answered by `Have` when they are all in place."""

    blob: str
    size_bytes: Size


class Get(NamedTuple):
    """client -> node: answered by `Have` and the bytes; by `Missing` if there is no such blob."""

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
