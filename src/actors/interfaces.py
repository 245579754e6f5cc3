"""The interface between the actors and the engine above them: protocols, and the values that both sides exchange.

Everything here is synchronous and never waits: a link queues its messages and writes them at the end of the event
loop's present iteration. The exceptions, which wait, are `Connect` and the methods ``resume`` and ``close`` of
`Connection`: only `NodeActor` calls these, in tasks.

Values that are created once per task are named tuples, which are cheaper to create than frozen dataclasses (0.2 us
instead of 0.5 us).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, StrEnum, auto
from typing import NewType, Protocol

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from ..providers.base import Fleet, LaunchRequest, Machine, PreemptionNotice
from .amounts import Amounts
from .events import Observe
from .late_nodes import Preparing

NodeId = NewType("NodeId", int)  # never used twice in a pool: a replacement has another id
JobId = NewType("JobId", int)  # one submission of the user: a task, or a broadcast of several tasks
TaskId = NewType("TaskId", int)
AttemptId = NewType("AttemptId", int)  # never used twice in a pool, so a late report of an old attempt is recognized


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that a node reported about itself when it was connected."""

    hostname: str
    address: str  # the address at which the other nodes reach this node
    ports: tuple[int, ...]  # free ports that the node keeps for broadcasts with ranks on it
    accelerators: tuple[tuple[str, float], ...] = ()  # (type, memory in GB) of each accelerator
    # environment variables that plugins have set for every task on the node
    variables: tuple[tuple[str, str], ...] = ()
    # thousandths of a processor; like `memory_bytes`, the node's share only, if several nodes run on one computer
    millicpus: int = 0
    memory_bytes: int = 0

    @property
    def ports_at_once(self) -> int:
        """Return how many free ports one generation of a broadcast gets for certain: half of the node's ports.

        The node opens more ports only when half of its ports are used.
        """
        return max(1, len(self.ports) // 2)

    @property
    def amounts(self) -> Amounts:
        """Return how much of processors, memory and accelerators all tasks on the node together may hold."""
        return Amounts(self.millicpus, self.memory_bytes, len(self.accelerators))


class World(NamedTuple):
    """The immutable view of a generation that each of its ranks sees: nodes, ranks, addresses and ports.

    If ranks of a lost node run again while the other ranks continue (`OnLoss.RESEND`), ``nodes`` may name nodes that
    have been lost since.
    """

    generation: int
    nodes: tuple[NodeId, ...]  # in the order of ranks; rank r runs on nodes[r // ranks_per_node]
    ranks_per_node: int
    head_address: str
    head_port: int
    # one port for each rank, free on the rank's node; empty: only the head (the node of rank 0) needed one,
    # ``head_port``
    ports: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @property
    def head(self) -> NodeId:
        return self.nodes[0]

    def port_of(self, rank: int) -> int:
        """Return the port on which a rank is to listen; 0: the rank has no port."""
        return self.ports[rank] if self.ports else self.head_port if rank == 0 else 0

    def with_replaced(self, lost: NodeId, by: NodeId, address: str, ports: tuple[int, ...], generation: int) -> World:
        """Return a copy of this world with the number ``generation``, in which the node ``by`` with its ports replaces
        the node ``lost``.
        """
        world = self._replace(nodes=tuple(by if node == lost else node for node in self.nodes), generation=generation)
        if lost == self.head:
            world = world._replace(head_address=address, head_port=ports[0])
        if self.ports:
            first = self.nodes.index(lost) * self.ranks_per_node
            world = world._replace(ports=(*self.ports[:first], *ports, *self.ports[first + len(ports) :]))
        return world


class Stall(NamedTuple):
    """The stall limit of a task: without a sign of life for ``seconds`` the task has stalled."""

    seconds: float
    restart: bool  # whether a stalled task runs again, as after the loss of its node, if its retries allow another run
    name: str = ""  # the function's name, for messages


class Task(NamedTuple):
    """A unit of work for one node. ``content`` belongs to the engine: code and arguments, pickled once."""

    id: TaskId
    job: JobId
    function: bytes  # digest of the function: tasks with the same function are expected to take about equally long
    content: object
    on: int | None = None  # rank that the task's node must have when the task is sent; None: any node
    retries: int = 3  # number of further attempts after the task's node was lost; 0 with at_most_once
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    max_restarts: int = 0  # number of further attempts after the task failed by itself; 0 with at_most_once
    needs: Amounts | None = None  # amounts that are reserved on the task's node while the task runs; None: only a slot
    stall: Stall | None = None
    # returns the node that has most of the task's inputs; called when the task may begin
    near: Callable[[], NodeId | None] | None = None
    # True if the task has a deadline: nodes then report the task's beginning, so that a deadline's error names the node
    has_deadline: bool = False


class Order(NamedTuple):
    """One attempt of a task, as sent to a node."""

    attempt: AttemptId
    task: Task
    number: int  # which attempt of the task this is: 1, 2, ...
    world: World | None = None  # nodes and ports of the rank's generation; None: the task is not part of a broadcast
    rank: int = 0
    announce: bool = False  # whether the node is to report `Started`


class Verdict(StrEnum):
    RETURNED = auto()
    RAISED = auto()  # the user's code raised an exception, or pickling or unpickling its data did
    DIED = auto()  # the task's process ended by itself: it exited, crashed, or ran out of memory
    TERMINATED = auto()  # a signal from outside ended the task's process, for example when its machine shuts down
    TIMED_OUT = auto()  # the task exceeded its timeout
    KILLED = auto()  # the pool ordered the node to kill the task
    UNSENT = auto()  # an object that the task needs is lost, so the task was never sent to its node


class Started(NamedTuple):
    attempt: AttemptId


class Finished(NamedTuple):
    """The end of an attempt: its processes are idle or gone. ``outcome`` is opaque here; the engine interprets it."""

    attempt: AttemptId
    verdict: Verdict
    outcome: object
    busy_s: float  # seconds spent in the user's function


class Returned(NamedTuple):
    """Attempts that the pool had recalled and that the node gives back, as they had not started."""

    attempts: tuple[AttemptId, ...]


class PortsFree(NamedTuple):
    """All free ports that a node offers. ``first``: the position of the first of these ports among all that the node
    has offered.
    """

    first: int
    ports: tuple[int, ...]


class StopChecks(NamedTuple):
    """A report of how far the ranks of a generation on this node are: the largest number of stop checks of any of them.

    A stop check is a call of `should_stop`, which a rank makes once per step.
    """

    job: JobId
    generation: int
    number: int  # number of the preemption notice that the node answers with this report
    checks: int


class Joined(NamedTuple):
    """A report that the ranks of this attempt's broadcast wait for each other from now on."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Unfit:
    """A report that the node's executor is about to end by itself, with the reason; the loss of the node follows."""

    cause: str
    has_run: bool  # whether a worker of the node has begun any attempt


class AttemptSeen(NamedTuple):
    """The state of a running attempt: its stacks, and the time since its last sign of life."""

    text: str
    quiet_s: float


class Looked(NamedTuple):
    """The answer to `Link.look`. ``seen``: the states of the running attempts that the node has examined."""

    question: int
    seen: Mapping[AttemptId, AttemptSeen]


Report = Started | Finished | Returned | PreemptionNotice | PortsFree | StopChecks | Joined | Unfit | Looked


class Peer(NamedTuple):
    """A node of a generation whose machine will be taken, as reported to the generation's other nodes with the
    notice.
    """

    job: JobId
    generation: int
    number: int  # number of the preemption notice; no two notices have the same number
    place: int  # index of the node in ``World.nodes``


class StopAt(NamedTuple):
    """An order to the ranks of this generation to stop at the same step: at their stop check (`should_stop`) number
    ``check``.
    """

    job: JobId
    generation: int
    check: int


class Link(Protocol):
    """The commands to a connected node. They never wait or raise. A lost link drops them; the loss of the node is then
    reported.
    """

    in_use: int  # number of reasons other than tasks to keep the node, such as file transfers

    def run(self, order: Order) -> None:
        """Run an attempt. The attempt of a broadcast's rank starts at once, even without a free slot: ranks need each
        other.
        """

    def kill(self, attempt: AttemptId) -> None:
        """Kill an attempt. The node answers with `Finished` once the attempt's processes are gone.

        The verdict is KILLED, or another one if the attempt had already ended.
        """

    def recall(self, attempts: Sequence[AttemptId]) -> None:
        """Recall attempts; the answer is `Returned`, with the attempts that had not started."""

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        """Send the list of ready nodes, in the order of ranks, for `instance_info`; in a very large pool only to ranks
        of broadcasts.
        """

    def place(self, rank: int, facts: NodeFacts, *, nodes: int, accelerators: int) -> None:
        """Send the node its own rank, the number of ready nodes and the number of accelerators, but no list of the
        other nodes.
        """

    def notify(self, notice: PreemptionNotice, peer: Peer | None = None) -> None:
        """Send a preemption notice about the node's own machine or, with ``peer``, about another node of a generation
        that has ranks here.
        """

    def heard(self, attempt: AttemptId) -> float | None:
        """Return how many seconds ago an attempt last gave a sign of life, such as a line of output; None: never."""

    def look(self, question: int, quiet_s: float) -> None:
        """Request the stacks of the attempts that run on the node; the answer is `Looked`.

        The node does not disturb attempts that gave a sign of life within ``quiet_s`` seconds: it takes no stacks of
        them.
        """

    def is_sent(self, attempt: AttemptId) -> bool:
        """Return whether an attempt that was passed to `run` was sent to the node: not before its arguments were
        transferred.
        """
        ...

    def compare_ports(self, taken: int) -> None:
        """Send the node the number of its ports that the pool has used; the answer is `PortsFree`."""

    def stop_at(self, stop: StopAt) -> None:
        """Send the node the order to stop a generation's ranks at a certain stop check (a call of `should_stop`)."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss of a connection, with its cause."""

    cause: str  # the cause as a clause for people
    # True: the heartbeats stopped, or a host between here and the machine closed the connection; False: the machine
    # closed it
    silent: bool = False
    # seconds by which the loss came before the limit for silence; the time to reconnect is longer by as much
    early_s: float = 0.0


class Connection(Protocol):
    """An SSH connection to a node, and the session with its executor. The link stays the same object across
    `resume`.
    """

    @property
    def link(self) -> Link: ...

    @property
    def facts(self) -> NodeFacts: ...

    def watch(self, lost: Callable[[Lost], object]) -> None:
        """Call ``lost`` once when the present connection is lost, or now if it is lost already."""

    async def resume(self) -> bool:
        """Try once, in bounded time, to reconnect; return True if the session continues where it was interrupted.

        Raises:
            ConnectFailed: the node was not reached: try again, or (``fatal``) reconnecting will never work.
        """
        ...

    async def close(self) -> None:
        """End the session in an orderly way: the node stops its executor. Takes a bounded time; may be called
        repeatedly.
        """
        ...


class ConnectFailed(Exception):
    """A failure to connect to a node: for now, or for ever if ``fatal``, for example because of a wrong host key or a
    full disk.

    ``systematic``: any other machine would fail too, for example because a package does not exist.
    ``refused``: the host is up, but nothing listens at the port; a server that is starting does so within seconds.
    ``futile``: another try is useless soon but may work later, for example if a host name does not exist.
    ``late``: the node's state when its time to boot was over, in words that fit behind "was"; empty: the time was not
    over.
    ``step``: the step of preparing the node that was under way when its time to boot was over.
    ``kind``: equal for failures with the same cause on similar machines; empty: unknown.
    """

    late: str = ""
    step: str = ""
    kind: str = ""

    def __init__(
        self,
        message: str,
        *,
        fatal: bool = False,
        systematic: bool = False,
        futile: bool = False,
        refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.fatal = fatal or systematic
        self.systematic = systematic
        self.futile = self.fatal or futile
        self.refused = refused


class QueuedTooLong(Exception):
    """The error that a machine has waited in its provider's queue for the pool's ``start_timeout_s``, and is given up.

    ``reason``: why the machine waited, in the provider's words. ``starts_at``: Unix time at which it was expected to
    start.
    """

    def __init__(self, reason: str, limit_s: float, starts_at: float | None) -> None:
        super().__init__(f"a machine waited for {limit_s:g} s to start: {reason}")
        self.reason, self.limit_s, self.starts_at = reason, limit_s, starts_at


class NoWorkers(Exception):
    """The error that several nodes in a row could start no worker; the message has the reason of the last of these
    nodes.
    """


class Connect(Protocol):
    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> Connection:
        """Try once, in bounded time, to connect to a machine and its executor. ``reports`` is called with the node's
        reports, in order.

        ``answered`` is called as soon as the right machine has answered; preparing the machine may take minutes more.

        Raises:
            ConnectFailed: the node was not reached, or could not be prepared.
        """
        ...


ReachabilityProbe = Callable[[Sequence[Machine]], Awaitable[bool]]
"""Return whether anybody answers this computer; called with the nodes' machines while all are silent. Bounded."""

# clock of the running loop; `anyio.current_time` shows the same time, but takes 2 us to find the loop
Clock = Callable[[], float]


# The callback for the end of a submitted job. The pool actor calls it exactly once, in the event loop: it must be quick
# and must not raise.


class Settled(NamedTuple):
    """The end of a task or rank with the outcome of its last attempt."""

    verdict: Verdict
    outcome: object
    node: NodeId
    rank: int
    number: int
    generation: int
    at: float = 0.0  # time of the report by the pool's clock; set only for ranks of broadcasts


class Reason(StrEnum):
    """The reason why a task ends without an outcome of an attempt."""

    LOST = auto()  # the task's node was lost, and the task may not run again, or not any more
    # the task's node was lost during every attempt, or during ``quarantine_after`` attempts in a row
    QUARANTINED = auto()
    QUEUE_TIMEOUT = auto()
    CANCELLED = auto()
    CLOSED = auto()  # the pool closed before the task ended
    NO_REPLACEMENT = auto()  # no replacement for the task's node became ready within replace_timeout
    NO_SUCH_RANK = auto()  # the task is for a rank (``on``) that is beyond the number of nodes that the pool is to have
    LOSING = auto()  # a broadcast lost more generations in a row than `BroadcastSpec.restarts` allows
    NO_PORTS = auto()  # the ranks of a broadcast on one node need more ports than that node keeps free
    TOO_LARGE = auto()  # the task needs larger amounts than any node of the pool has
    STALLED = auto()  # the task gave no sign of life for too long, and was run again as often as allowed
    DEADLINE = auto()  # the task had not ended within its deadline, which counts from its submission


@dataclass(frozen=True, slots=True)
class GaveUp:
    reason: Reason
    # each node that was lost while it ran the task, with the cause of the loss
    losses: tuple[tuple[NodeId, str], ...] = ()
    rank: int = 0
    # why the node that failed last did not become ready; None: a node became ready after it. With CLOSED: why the pool
    # closed
    failure: Exception | None = None
    # details for people. NO_PORTS: node and number of ports; TOO_LARGE: amounts needed; STALLED: time without a sign of
    # life
    why: str = ""
    limit_s: float | None = None  # with DEADLINE: the deadline in seconds; ``why`` then says where the job was


Ending = Settled | GaveUp
Settle = Callable[[Ending], None]
# called with the endings in the order of ranks, and the generation; if no generation began: with one ending, and 0
SettleAll = Callable[[Sequence[Ending], int], None]


class OnLoss(Enum):
    RESTART = auto()  # end the remaining ranks (fencing), replace lost nodes, and run all ranks again
    RESEND = auto()  # keep the results so far, and run only the ranks of the lost nodes again
    FAIL = auto()


class RankWatch(Protocol):
    """A receiver of events of an at-most-once broadcast's ranks while the broadcast runs. Its methods are called in the
    event loop.
    """

    def began(self, ranks: int, /) -> None:
        """Handle that the broadcast runs, with ``ranks`` ranks. Not called if the broadcast ends before it runs."""

    def ended(self, rank: int, ending: Ending, /) -> None:
        """Handle the end of a rank. Called once per rank, but not for ranks that still run when the whole broadcast
        ends.
        """


class BroadcastSpec(NamedTuple):
    """A function to run on every ready node. ``content``: as in `Task`; all ranks share it."""

    job: JobId
    function: bytes
    content: object
    on_loss: OnLoss
    collective: bool  # whether ranks wait for each other: then a rank that raises ends the others
    # returns the number of ranks for one node; the smallest number over all nodes is used; must not raise
    ranks_per_node: Callable[[NodeFacts], int]
    # True: each rank gets a free port. False: only the head (the node of rank 0) gets a free port
    every_rank_listens: bool = False
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    # with RESTART: number of generations that may follow a generation in which a rank failed by itself
    max_restarts: int = 0
    # a new generation begins after at most so many lost generations in a row; with RESEND, a rank runs again after at
    # most so many losses
    restarts: int = 3
    steady_s: float = 60.0  # seconds; a generation that ran for longer resets the number of lost generations in a row
    # the processors, memory and accelerators that all ranks on one node reserve together
    needs: Amounts | None = None
    stall: Stall | None = None
    failed: Callable[[Ending], object] | None = None  # called at once with the ending of each rank that fails
    # receives each rank's ending; only with ``at_most_once``, as otherwise a rank may run again and end differently
    watch: RankWatch | None = None


@dataclass(frozen=True, slots=True)
class ScaleByLoad:
    """A pool whose number of nodes follows its work."""

    most: int  # largest number of nodes
    idle_s: float  # seconds without work after which a node leaves


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The settings of a pool: numbers of nodes, and timeouts."""

    desired: int
    min: int  # number of nodes that must be ready for the pool to be ready
    slots: int  # number of tasks that run at the same time on each node
    spare: int = 0  # number of additional nodes that stand by
    # a task ends, even with retries left, after so many losses of its node in a row without a preemption notice
    quarantine_after: int = 4
    boot_timeout_s: float = 600.0  # seconds from launch to ready, without the time in the provider's queue
    # seconds for which a machine may wait in the provider's queue without a break; None: no limit
    start_timeout_s: float | None = None
    replace_timeout_s: float = 600.0
    reconnect_s: float = 10.0  # seconds for which the pool tries to reconnect to a node before the node counts as lost
    # seconds that a node lives without contact to this program; also the time to reconnect if no host at all answers
    lease_s: float = 120.0
    launch_retries: int = 5  # number of launches that may fail until the pool is ready; no limit after that
    scale: ScaleByLoad | None = None  # None: the pool keeps ``desired`` nodes until the user resizes it


def random_chance() -> float:
    """Return a random number from 0.0 up to, but not including, 1.0. Avoids importing `random`, to start faster."""
    return int.from_bytes(os.urandom(6)) / 2**48


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies that a pool is given from outside."""

    fleet: Fleet  # the opened provider, which launches and ends machines
    request: LaunchRequest
    spec: PoolSpec
    connect: Connect
    observe: Observe
    clock: Clock
    # tests whether other hosts can be reached; None: if all nodes are silent, this computer's network is assumed to be
    # down
    probe: ReachabilityProbe | None = None
    # returns a random number from 0.0 up to, but not including, 1.0, which spreads retries over time
    chance: Callable[[], float] = random_chance
    preparing: Callable[[NodeId], Preparing | None] = lambda _: (
        None
    )  # returns the step that prepares the node now; None: no step does
