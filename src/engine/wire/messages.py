"""All messages of the wire protocol between client, node and worker.

A message is sent as one msgpack array ``[tag, *fields]`` in one frame (see ``codec``). ``docs/protocol.md`` describes
the same messages for people. Messages are named tuples, because these are cheap to create, immutable, packed without a
copy, and easy to match by class. Pickled objects of users are ``bytes`` here; only workers and the client's calling
code unpickle them.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import Any

from ...lazy_named_tuple import NamedTuple
from .ranges import Name, Number, Port, Quantity, Seconds, Share, Size, Stream, Text

# --- client -> node --------------------------------------------------------------------------------------------------


class Keys(NamedTuple):
    """The certificate and the key (PEM) with which the pool's nodes authenticate each other.

    Nodes keep them in memory only.
    """

    certificate: bytes
    key: bytes


class Serve(NamedTuple):
    """A permission: nodes that send the text ``ticket`` may get a blob, even while this node is still receiving it.

    The answer is `Serving`.
    """

    ticket: Name
    blob: str
    size_bytes: Size


class Unserve(NamedTuple):
    """The withdrawal of the permission that `Serve` gave for ``ticket``."""

    ticket: Name


class Pull(NamedTuple):
    """A request to copy a blob, or its missing bytes, from another node, which serves the blob under ``ticket``.

    The answer is `Arrived`.
    """

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Copy(NamedTuple):
    """A request like `Pull`, but the node computes no SHA-256 of the blob: `Arrived.digest` is empty.

    It is used for parts of checkpoints, which have a checksum of their own.
    """

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Digest(NamedTuple):
    """A request for the digest of a blob that is on the node. The answer is `Arrived`."""

    blob: str


class PutRest(NamedTuple):
    """client -> node: like `Put`, but only the bytes of the blob from ``offset`` to the end follow.

    The node has already received the bytes before ``offset`` from another node, by `Pull`.
    """

    blob: str
    size_bytes: Size
    offset: Size


# --- node -> client --------------------------------------------------------------------------------------------------


class Serving(NamedTuple):
    """The answer to `Serve`. ``port``: the port on which the node listens for other nodes.

    ``port`` None: the node cannot listen; ``reason`` is the cause.
    """

    ticket: Name
    port: Port | None
    reason: Text = ""


class Arrived(NamedTuple):
    """The answer to `Pull`, `Copy` or `Digest`: the node has ``have_bytes`` bytes of the blob.

    Fewer bytes than the whole blob: the request has failed. ``digest``: SHA-256 of the complete blob in hex; empty for
    `Copy`, and after a failure. ``connected`` False: the node could not connect to the other node.
    """

    blob: str
    have_bytes: Size
    digest: Name
    connected: bool
    reason: Text = ""


# --- node -> node ----------------------------------------------------------------------------------------------------


class GetRest(NamedTuple):
    """A request for a blob, sent from node to node.

    The answer is frames with the blob's bytes from ``offset`` to the end.

    An empty frame means that no new bytes have arrived at the sender yet. After the last byte, the connection can be
    used for the next request.
    """

    ticket: Name
    offset: Size


# --- client -> node --------------------------------------------------------------------------------------------------


class Replicate(NamedTuple):
    """A request that a node store a copy of a checkpoint part as blob ``blob``, and verify the copy.

    If the node does not have the blob yet, it copies the file ``path`` of the computer that has the original. The first
    ``size_bytes`` bytes of the blob are the part. ``digest`` None: the node does not verify the copy. The answer is
    `Replicated`.
    """

    blob: str
    path: str
    size_bytes: Size
    digest: Number | None


class Safe(NamedTuple):
    """A report that a checkpoint is safe: each of its parts has been copied to the requested number of nodes.

    ``blobs``: the names of the parts that this node keeps (see `Kept`).
    """

    blobs: tuple[str, ...]


# --- node -> client --------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A report that a rank has stored its part of a checkpoint in the node's memory, as ``blob``.

    The part contains the rank's state after ``step`` steps of the named run. ``again``: how often the rank had already
    returned to an earlier step. ``copies``: the number of nodes that must have the part. ``sharded``: whether other
    ranks store the remaining pieces of some tensors. ``digest``: a checksum of the part without its first 64 bytes. To
    compute it, take a checksum of each complete block of 256 KiB; the digest is the CRC-32 of these checksums, followed
    by the bytes after the last complete block.
    """

    attempt: Number
    run: Name
    again: Number
    step: Number
    copies: Number
    sharded: bool
    size_bytes: Size
    digest: Number
    blob: str


class Stored(NamedTuple):
    """A report that a checkpoint is complete in the storage. The fields have the same meaning as in `Kept`."""

    attempt: Number
    run: Name
    again: Number
    step: Number


class Joined(NamedTuple):
    """A report that from now on the ranks of a broadcast wait for each other, because they save checkpoints together.

    ``attempt``: the attempt of one rank of that broadcast.
    """

    attempt: Number


class Replicated(NamedTuple):
    """The answer to `Replicate`.

    ``path``: the file path by which other processes of the node's computer can open the blob. ``problem``: the reason,
    for people, why the node could not store or verify the blob; empty if it succeeded.
    """

    blob: str
    path: str
    problem: Text


PROTOCOL_VERSION = 4
LOST = "lost: "  # a blob name that begins with this prefix is an error text: the node could not store the blob


class Value(NamedTuple):
    """A pickled object: a pickle of protocol 5, followed by the out-of-band buffers of the pickle.

    ``sizes``: the size of the pickle, then the size of each buffer; None if there are no buffers. The bytes are in
    ``data``. If they are too large for a frame, ``data`` is empty, and the bytes are in the blob named ``blob``.
    """

    data: bytes
    sizes: tuple[Size, ...] | None = None
    blob: str | None = None


class Peer(NamedTuple):
    """The part of a preemption notice that names a node whose machine will be taken back.

    The node is a member of a generation (one try of a broadcast, with fixed ranks). The receiver runs ranks of the same
    generation.
    """

    job: Number
    generation: Number
    number: Number  # identifies the notice; each notice has a different number
    node: Number  # the number within the generation of the node whose machine is taken, as in `instance_info`


class RunFlag(IntFlag):
    """Options for running a task."""

    ANNOUNCE = 1  # send `Started` when the task begins
    # the function is a generator: send each value as `Yield`, as long as `Credit` messages allow more values
    STREAM = 2
    ALONE = 4  # the task receives input streams: no other task may be queued behind it in its worker
    FRESH = 8  # run the task in a new process, which ends with the task
    # a port of this node is assigned to the task's rank (see `world`); from now on, the port belongs to the rank
    LISTENS = 16
    BESIDE = 32  # run the task in addition to those in the node's slots, without using a slot; requires FRESH
    KEEP = 64  # if the result is stored in a blob, the blob stays on the node; the result's `Value.sizes` is always set


class Cause(StrEnum):
    """The cause of an attempt's end, if its function did not report a result."""

    EXIT = "exit"  # the process exited, for example by os._exit; `code` is the exit status
    SIGNAL = "signal"  # a signal that Outrider did not send killed the process; `code` is its number
    MEMORY = "memory"  # the kernel's out-of-memory killer killed the process
    LIMIT = "limit"  # the process tree used more memory than its `Hold` allows; `code` is the memory in bytes
    TIMEOUT = "timeout"  # the attempt ran longer than `timeout_s`
    KILLED = "killed"  # a `Kill` message killed the attempt; its whole process tree is gone
    UNKNOWN = "unknown"  # the answer to `Compare` if the node does not know the attempt; the attempt is lost


# --- client -> node --------------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first frame of a control channel. The client sends it on every connect and reconnect."""

    version: Number
    session: str  # random name for each pool and node; a client that knows the name can resume the session
    received: Number  # number of frames received from the node so far, without those that are never resent
    python: str  # the client's Python version, such as "3.11"
    cloudpickle: str
    lease_s: Seconds  # the node exits if it receives no message for this time
    # Keys: slots: int, kind: "process" | "thread", env: {name: value}, notices: [source, ...], sample_every: seconds.
    # Ignored on a reconnect.
    setup: dict[str, Any]


class View(NamedTuple):
    """The new content of `instance_info` on this node, without the fields that depend on the task.

    ``view`` is msgpack.
    """

    view: bytes


class Define(NamedTuple):
    """A pickled function, sent once per node. `Run` messages refer to the function by its digest ``function``.

    ``code`` is the pickle of the function. If ``code`` is empty, the pickle is in the blob named ``blob``.
    """

    function: bytes
    code: bytes
    blob: str | None = None


class Run(NamedTuple):
    """A request to run one attempt of a task.

    An ``attempt`` number is never used twice in a pool, so reports of an old attempt cannot be mistaken for a new one.
    """

    attempt: Number
    function: bytes
    args: Value
    job: Number
    number: Number  # 1 for the first attempt of this task
    timeout_s: Seconds | None
    flags: Number
    # the fields of `instance_info` that describe the rank's broadcast, as msgpack; None if the task is a single call
    world: bytes | None


class Kill(NamedTuple):
    """A request to kill the process tree of an attempt.

    The answer is `Ended` with the cause KILLED, or a result if the attempt had sent it before.
    """

    attempt: Number


class Recall(NamedTuple):
    """A request to give back attempts that have not started. The answer is `Returned`, which lists these attempts."""

    attempts: tuple[Number, ...]


class Drop(NamedTuple):
    """A request to drop blobs that are not needed any more."""

    blobs: tuple[str, ...]


class Adopt(NamedTuple):
    """A blob that the node can open as the file ``path``, because client and node run on one machine as one user."""

    blob: str
    path: str
    size_bytes: Size


class Lend(NamedTuple):
    """The blobs to which the arguments of an attempt refer. The `Run` message of the attempt follows.

    The node keeps the blobs after the attempt, because other attempts may refer to them.
    """

    attempt: Number
    blobs: tuple[str, ...]


class Refer(NamedTuple):
    """The blobs with the values to which an attempt's arguments refer by ``names``.

    The attempt's `Run` message follows.
    """

    attempt: Number
    names: tuple[str, ...]
    values: tuple[Value, ...]


class MoveToDisk(NamedTuple):
    """A request to move blobs from memory to disk.

    The blobs keep their names. The node reports failures with `NotMoved`.
    """

    blobs: tuple[str, ...]


class Hold(NamedTuple):
    """The resources that an attempt reserves while it runs; the attempt's `Run` message follows. 0: none, or no limit.

    The attempt's process sees only the ``gpus`` GPUs assigned to it. The node kills the attempt if its process tree
    uses more than ``memory_bytes``.
    """

    attempt: Number
    millicpus: Number
    memory_bytes: Size
    gpus: Number


class StopAt(NamedTuple):
    """A request to stop all ranks of a generation (one try of a broadcast) at the same stop check.

    A rank makes a stop check when it asks whether it should stop. ``check``: the number of the stop check at which the
    ranks stop.
    """

    job: Number
    generation: Number
    check: Number


class ShowStacks(NamedTuple):
    """A request for the Python stacks of all running attempts.

    The node answers with one `Stacks` per attempt, and a last `Stacks` without an attempt. The `Stacks` of an attempt
    has no text if the attempt began or took a step within the last ``quiet_us`` microseconds.
    """

    number: Number  # identifies the request; the answers contain the same number
    quiet_us: Number


class Profile(NamedTuple):
    """A request to profile a running attempt. ``profile`` is the name of the profile. The answer is `Profiled`.

    The profile ends after ``steps`` training steps (0: no limit), after ``seconds``, or when the attempt ends.
    """

    attempt: Number
    profile: Name
    steps: Number
    seconds: Seconds


class PortsTaken(NamedTuple):
    """A report on the node's free ports that the client has assigned to ranks. The answer is `Ports`.

    ``taken``: how many ports are assigned; the client assigns them in the order of their numbers. ``unsent``: the
    assigned ports whose attempts the client has not sent yet.
    """

    taken: Number
    unsent: tuple[Port, ...]


class Bye(NamedTuple):
    """A message that the pool is closed. The node kills all its processes, removes all its files, and exits."""


# --- client <-> running task -----------------------------------------------------------------------------------------


class Input(NamedTuple):
    """The next item of an input stream of a running task. ``item`` None: the stream has ended."""

    attempt: Number
    stream: Stream
    item: Value | None
    # the pickled exception if the client's iterator raised one; `item` is then None
    error: bytes | None = None


class Credit(NamedTuple):
    """A permission to send ``count`` more items of a stream.

    Stream -1 is the output of a generator; streams 0, 1, ... are the inputs of the task. ``count`` 0: send no more
    items; a generator is closed, and its task ends as `Done`.
    """

    attempt: Number
    stream: Stream
    count: Number  # type: ignore[assignment]  # hides tuple.count(), which is not needed


# --- node -> client --------------------------------------------------------------------------------------------------


class Welcome(NamedTuple):
    """The answer to `Hello`.

    ``resumed`` False: this executor (the node's daemon) is new and does not know the session.
    """

    version: Number
    resumed: bool
    received: Number  # number of frames received from the client so far, without those that are never resent
    # The node's properties. Keys: hostname, pid, python, cloudpickle, cpus, memory_bytes, sharing, addresses,
    # accelerators: [[type, memory_gb], ...]
    facts: dict[str, Any]
    blobs: tuple[str, ...]  # names of the blobs on this node
    # Free TCP ports for broadcasts whose rank 0 runs on this node. The node has bound the ports, and does not listen on
    # them. The first port has the number 0. After a reconnect, the first port's number is in the next `Ports`, which
    # answers `PortsTaken`.
    ports: tuple[Port, ...]


class Refused(NamedTuple):
    """The answer to `Hello` if the node refuses the client: the versions differ, or another session is active.

    The node then closes the channel.
    """

    reason: str
    facts: dict[str, Any]


class Started(NamedTuple):
    attempt: Number


class Done(NamedTuple):
    """A report that the function of an attempt returned ``value``.

    ``duration_us`` is the time of the function alone.
    """

    attempt: Number
    value: Value
    duration_us: Number


class Failed(NamedTuple):
    """A report that an attempt failed with an exception.

    ``phase`` names the step that failed: unpickling the function and arguments, the call, or pickling the result.
    """

    attempt: Number
    phase: str  # "load" (unpickling the function or arguments), "call", or "dump" (pickling the result)
    kind: str  # the exception's type with its module, such as "package.module.Name"
    message: str
    traceback: str
    error: Value | None  # the pickled exception; None if it cannot be pickled
    duration_us: Number
    # the version, on the node, of the package that defines the exception's type; for builtin exceptions, of Python
    version: str = ""
    ago_us: Number = 0  # time from the exception to this message; meanwhile plugins clean up


class Ended(NamedTuple):
    """A report that an attempt ended without a result: its processes are gone, or its result came after its timeout."""

    attempt: Number
    cause: Cause
    code: Number
    detail: str  # further details for people; often empty
    ago_us: Number = 0  # time from the death of the process to this message; the process's children end in this time


class Returned(NamedTuple):
    attempts: tuple[Number, ...]


class Yield(NamedTuple):
    attempt: Number
    item: Value


class Output(NamedTuple):
    """Text that a task printed. ``dropped``: the number of bytes that were lost before this text.

    If the text does not end with a newline, the next output of the same stream may continue the line.
    """

    attempt: Number
    stream: Stream  # 1 stdout, 2 stderr
    text: bytes
    dropped: Number


class Logged(NamedTuple):
    """Records that an attempt has logged, encoded by `log_records`.

    ``dropped``: the number of records lost before these.

    If ``blob`` is set, there is exactly one record, for an artifact, and the blob is the artifact's content.
    """

    attempt: Number
    records: bytes
    dropped: Number
    blob: str | None = None


class Stacks(NamedTuple):
    """An answer to `ShowStacks`: the stacks of an attempt's processes, or the reason why there are no stacks.

    ``attempt`` None: this is the last answer. ``quiet_us``: the time since the attempt began or took its last step.
    """

    number: Number
    attempt: Number | None
    text: Text
    quiet_us: Number


class Profiled(NamedTuple):
    """A report that the profile of an attempt has ended or failed. A task may also start a profile itself.

    ``artifact``: the name of the artifact with the profile, which the attempt has already logged; empty if it logged
    none. ``problem``: for people, why the profile is missing or incomplete.
    """

    attempt: Number
    profile: Name
    artifact: Name
    problem: Text


class StopChecks(NamedTuple):
    """The highest number of stop checks that a rank of a generation has made on this node.

    A generation is one try of a broadcast. A rank makes a stop check when it asks whether it should stop.
    """

    job: Number
    generation: Number
    number: Number  # the number of the preemption notice that this message answers
    checks: Number


class Unfit(NamedTuple):
    """A message that the executor (the node's daemon) is about to exit, which ends all its tasks.

    ``reason``: one clause for people.
    """

    reason: str
    has_run: bool  # whether a worker has received an attempt; attempts with the flag BESIDE do not count


class Ports(NamedTuple):
    """All free ports that the node offers now, for broadcasts. The node numbers its ports from 0 as it opens them."""

    first: Number  # the node's count of ports before `ports[0]`, not a TCP port
    ports: tuple[Port, ...]


class NotMoved(NamedTuple):
    """A report that a blob stays in memory, because the node's disk is full or cannot be written. See `MoveToDisk`."""

    blob: str
    reason: Text


# --- both ways ------------------------------------------------------------------------------------------------------


class PreemptionNotice(NamedTuple):
    """A preemption notice: a machine will be taken back in ``seconds``. None: the notice is withdrawn.

    Without ``peer``, the machine is the node's own: either the node detected the notice, or the client received the
    notice from the provider. With ``peer``, the client informs a node that runs ranks of a broadcast. ``seconds`` is
    then the shortest time of all notices for machines of the broadcast; None: there is no such notice any more. The
    node answers a notice with ``peer`` by `StopChecks`.
    """

    source: Name
    seconds: Seconds | None
    peer: Peer | None = None


class GpuSample(NamedTuple):
    """The use of one GPU, in `Sampled`. None: the driver does not report the value."""

    device: Number  # the GPU's index, as in nvidia-smi
    utilisation: Share | None
    memory_bytes: Size
    memory_total_bytes: Size
    watts: Quantity | None


class Sampled(NamedTuple):
    """The use of the node's machine since the last sample.

    A `Sampled` frame that is lost with the connection is not sent again.
    """

    seconds: Seconds  # time since the last sample
    cpu: Share  # the used share of the processor time, over all processors
    cpus: Quantity
    memory_bytes: Size
    memory_total_bytes: Size
    disk_bytes: Number
    disk_total_bytes: Number
    received_bytes: Number  # bytes received from the network since the last sample
    sent_bytes: Number
    gpus: tuple[GpuSample, ...]


# --- acknowledgements, heartbeats, and the comparison of attempts ----------------------------------------------------


class Ack(NamedTuple):
    """The number of reliable frames (frames that are resent after a reconnect) that the sender has received so far.

    When an end of the session writes frames together, the `Ack` is the first of them.
    """

    received: Number


class Ping(NamedTuple):
    sent_ms: Number
    frames: Number = 0  # number of frames sent before, without those that are never resent; 0: unknown


class Pong(NamedTuple):
    sent_ms: Number
    clock_us: Number = 0  # the node's unix time when it received the `Ping`; 0: unknown
    frames: Number = 0  # number of frames sent before, without those that are never resent; 0: unknown
    attempts: tuple[Number, ...] = ()  # `attempt_digest` of the attempts that the node has; empty: unknown


class Compare(NamedTuple):
    """A list of all attempts that the client has sent to this node and that have not ended.

    For each attempt in the list that the node does not have, the node answers `Ended` with the cause UNKNOWN. The node
    kills its attempts that are not in the list.
    """

    attempts: tuple[Number, ...]


# --- the first frames of a bulk channel, which then carries only the bytes of the blob ------------------------------


class Put(NamedTuple):
    """client -> node: a blob of ``size_bytes`` bytes follows. The node answers `Have` when it has stored the blob."""

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
