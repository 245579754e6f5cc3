"""The interface between the actors and the engine above them: protocols, and the values that they exchange.

Everything here is synchronous and never waits: a link queues its messages and writes them at the end of the event
loop's tick. The exceptions, which wait, are `Connect` and the methods ``resume`` and ``close`` of `Connection`: only
`NodeActor` calls these, in tasks.

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
    ports: tuple[int, ...]  # free ports of the node, kept for generations whose head it is
    accelerators: tuple[tuple[str, float], ...] = ()  # (type, memory in GB), one entry each
    # environment variables of every task on the node, as plugins have set them up
    variables: tuple[tuple[str, str], ...] = ()
    millicpus: int = 0  # with `memory_bytes`: the node's share, if several nodes are one computer
    memory_bytes: int = 0

    @property
    def ports_at_once(self) -> int:
        """Return how many free ports one generation can surely get. The node opens more ports when half of its ports
        are used.
        """
        return max(1, len(self.ports) // 2)

    @property
    def amounts(self) -> Amounts:
        """Return the amounts that all tasks on the node together may hold."""
        return Amounts(self.millicpus, self.memory_bytes, len(self.accelerators))


class World(NamedTuple):
    """The immutable view of the membership that every rank of a generation sees.

    When one rank alone is run again (`OnLoss.RESEND`), ``nodes`` may name nodes that have since left the view.
    """

    generation: int
    nodes: tuple[NodeId, ...]  # by rank; rank r runs on nodes[r // ranks_per_node]
    ranks_per_node: int
    head_address: str
    head_port: int
    ports: tuple[int, ...] = ()  # by rank, each free on its node, the head's first; empty: only the head needed a port

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
        """Return this world as ``generation``, with node ``by`` and its ports in place of a lost node."""
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
    restart: bool  # whether a stalled task runs again, as after a loss, if its retries allow that
    name: str = ""  # the function's name, for messages


class Task(NamedTuple):
    """A unit of work for one node. ``content`` belongs to the engine: code and arguments, pickled once."""

    id: TaskId
    job: JobId
    function: bytes  # digest: tasks of one function are expected to take about equally long
    content: object
    on: int | None = None  # rank of the node among the nodes that are ready when the task is sent; None: any node
    retries: int = 3  # further attempts after losses of the node; 0 with at_most_once
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    max_restarts: int = 0  # further attempts after the task failed by itself; 0 with at_most_once
    needs: Amounts | None = None  # amounts that the task holds of its node while it runs; None: only a slot
    stall: Stall | None = None
    # returns the node with most of the task's inputs; called when the task may begin
    near: Callable[[], NodeId | None] | None = None
    has_deadline: bool = False  # if True, nodes report when the task begins, so that an error can say where it was


class Order(NamedTuple):
    """One attempt of a task, as passed to a link."""

    attempt: AttemptId
    task: Task
    number: int  # number of this attempt of the task: 1, 2, ...
    world: World | None = None  # None: the task is not part of a broadcast
    rank: int = 0
    announce: bool = False  # whether the node is to report `Started`


class Verdict(StrEnum):
    RETURNED = auto()
    RAISED = auto()  # the user's code raised an exception, or pickling or unpickling its data did
    DIED = auto()  # the task's process ended by itself: exit, crash, out of memory
    TERMINATED = auto()  # a signal from outside ended the task's process, for example when its machine shuts down
    TIMED_OUT = auto()  # the task exceeded its timeout
    KILLED = auto()  # the pool ordered the kill
    UNSENT = auto()  # an object that the task needs is lost, so the task was never sent to its node


class Started(NamedTuple):
    attempt: AttemptId


class Finished(NamedTuple):
    """The end of an attempt: its process tree is idle or gone. ``outcome`` is opaque; the engine interprets it."""

    attempt: AttemptId
    verdict: Verdict
    outcome: object
    busy_s: float  # time spent in the user's function


class Returned(NamedTuple):
    """The recalled attempts that a node gives back because they had not started."""

    attempts: tuple[AttemptId, ...]


class PortsFree(NamedTuple):
    """All free ports that a node offers. ``first``: the number of the first port, in the node's own count."""

    first: int
    ports: tuple[int, ...]


class StopChecks(NamedTuple):
    """The largest number of stop checks that any rank of a generation on this node has made."""

    job: JobId
    generation: int
    number: int  # number of the notice that this report answers
    checks: int


class Joined(NamedTuple):
    """The ranks of this attempt's broadcast wait for each other from now on."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Unfit:
    """The node's executor is about to end by itself; this is the cause of the node's loss, which follows."""

    cause: str
    has_run: bool  # whether a worker of the node has begun any attempt


class AttemptSeen(NamedTuple):
    """The state of a running attempt: its stacks, and for how long it has given no sign of life."""

    text: str
    quiet_s: float


class Looked(NamedTuple):
    """The answer to `Link.look`. ``seen``: the running attempts that the node has examined."""

    question: int
    seen: Mapping[AttemptId, AttemptSeen]


Report = Started | Finished | Returned | PreemptionNotice | PortsFree | StopChecks | Joined | Unfit | Looked


class Peer(NamedTuple):
    """The node of a generation whose machine has a preemption notice; the notice is sent to the generation's ranks."""

    job: JobId
    generation: int
    number: int  # number of the notice; each notice has its own
    place: int  # index of the node in the world's nodes


class StopAt(NamedTuple):
    """The order to the ranks of this generation to stop at their ``check``-th stop check."""

    job: JobId
    generation: int
    check: int


class Link(Protocol):
    """The commands to a connected node. They never wait or raise; a lost link drops them, and its node's loss
    follows.
    """

    in_use: int  # number of reasons to keep the node besides its tasks, such as file transfers

    def run(self, order: Order) -> None:
        """Run an attempt. An order with a world starts at once, even without a free slot: ranks need each other."""

    def kill(self, attempt: AttemptId) -> None:
        """Kill an attempt; the answer is `Finished`: KILLED once its process tree is gone, or an earlier verdict."""

    def recall(self, attempts: Sequence[AttemptId]) -> None:
        """Recall attempts; the answer is `Returned`, with the attempts that had not started."""

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        """Send the ready nodes by rank, for `instance_info`; in a very large pool, only to the ranks of broadcasts."""

    def place(self, rank: int, facts: NodeFacts, *, nodes: int, accelerators: int) -> None:
        """Send the node its own rank and the numbers of ready nodes and of accelerators, without a list of its
        peers.
        """

    def notify(self, notice: PreemptionNotice, peer: Peer | None = None) -> None:
        """Send a notice about the node's own machine, or about ``peer``, a node of a generation with ranks here."""

    def heard(self, attempt: AttemptId) -> float | None:
        """Return how many seconds ago an attempt last gave a sign of life, such as a line of output; None: never."""

    def look(self, question: int, quiet_s: float) -> None:
        """Request the stacks of the attempts that run on the node; the answer is `Looked`. Attempts that gave a sign of
        life within ``quiet_s`` are not examined further, so that they are not disturbed.
        """

    def is_sent(self, attempt: AttemptId) -> bool:
        """Return whether an attempt passed to `run` was sent; until then, its arguments may still be in transfer."""
        ...

    def compare_ports(self, taken: int) -> None:
        """Send the node the number of its ports that were taken; the answer is `PortsFree`."""

    def stop_at(self, stop: StopAt) -> None:
        """Send the node the stop check at which its ranks of a generation are to stop."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss of a connection, with its cause."""

    cause: str  # the cause as a clause for people
    # True: heartbeats stopped, or a host in between closed the connection; False: the machine closed it
    silent: bool = False
    # seconds by which the loss came before the silence limit; the time to reconnect is longer by as much
    early_s: float = 0.0


class Connection(Protocol):
    """A node's SSH connection and session. The link stays the same across `resume`."""

    @property
    def link(self) -> Link: ...

    @property
    def facts(self) -> NodeFacts: ...

    def watch(self, lost: Callable[[Lost], object]) -> None:
        """Call ``lost`` once when the present connection is lost, or now if it is lost already."""

    async def resume(self) -> bool:
        """Try once, in bounded time, to reconnect; return True if the session continues where it was.

        Raises:
            ConnectFailed: the node was not reached: try again, or (``fatal``) reconnecting will never work.
        """
        ...

    async def close(self) -> None:
        """End the session in an orderly way (the node stops its executor). Bounded, idempotent."""
        ...


class ConnectFailed(Exception):
    """A failure to connect to a node, now or (``fatal``) for ever: for example a wrong host key, or a full disk.

    ``systematic``: any other machine in its place would fail too, for example for a package that does not exist.
    ``refused``: the host is up, but nothing listens at the port; a starting server does so within seconds.
    ``futile``: trying again soon is useless, but later it may work, for example for a host name that does not exist.
    ``late``: the node's state when its time to boot ran out, in words that fit behind "was"; empty: it did not run out.
    ``step``: the step of preparing the node that was under way when its time ran out.
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
    """A machine that has waited in its provider's queue for the pool's ``start_timeout_s``, and is given up.

    ``reason``: why the machine waited, in the provider's words. ``starts_at``: unix time of its expected start.
    """

    def __init__(self, reason: str, limit_s: float, starts_at: float | None) -> None:
        super().__init__(f"a machine waited for {limit_s:g} s to start: {reason}")
        self.reason, self.limit_s, self.starts_at = reason, limit_s, starts_at


class NoWorkers(Exception):
    """The failure of several nodes in a row to start any worker; the message has the reason of the last node."""


class Connect(Protocol):
    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> Connection:
        """Try once, in bounded time, to connect to a machine and its executor. ``reports`` gets its reports, in order.

        ``answered`` is called as soon as the right machine has answered; the rest may take minutes.

        Raises:
            ConnectFailed
        """
        ...


ReachabilityProbe = Callable[[Sequence[Machine]], Awaitable[bool]]
"""Return whether anybody answers this computer; called with the nodes' machines while all are silent. Bounded."""

# clock of the running loop; `anyio.current_time` shows the same time, but takes 2 us to find the loop
Clock = Callable[[], float]


# How a submitted job ends. The pool actor calls this exactly once, on the loop: it must be quick and must not raise.


class Settled(NamedTuple):
    """A task or rank ended with the outcome of an attempt."""

    verdict: Verdict
    outcome: object
    node: NodeId
    rank: int
    number: int
    generation: int
    at: float = 0.0  # time of the report by the pool's clock; only for a broadcast's rank


class Reason(StrEnum):
    """The reason why a task ends without an outcome of an attempt."""

    LOST = auto()  # its node was lost, and the task may not run again, or not any more
    QUARANTINED = auto()  # its node was lost during every attempt, or during ``quarantine_after`` attempts in a row
    QUEUE_TIMEOUT = auto()
    CANCELLED = auto()
    CLOSED = auto()  # the pool closed before the task ended
    NO_REPLACEMENT = auto()  # no replacement for its node became ready within replace_timeout
    NO_SUCH_RANK = auto()  # the task's ``on`` is beyond the number of nodes that the pool is to have
    LOSING = auto()  # a broadcast lost too many generations in a row (`BroadcastSpec.restarts`)
    NO_PORTS = auto()  # the ranks of a broadcast need more ports on one of its nodes than that node keeps free
    TOO_LARGE = auto()  # the task needs larger amounts than any node of the pool has
    STALLED = auto()  # the task gave no sign of life for too long, and was run again as often as allowed
    DEADLINE = auto()  # the task had not ended within its deadline, which counts from its submission


@dataclass(frozen=True, slots=True)
class GaveUp:
    reason: Reason
    losses: tuple[tuple[NodeId, str], ...] = ()  # the nodes lost while they ran it, with the cause of each loss
    rank: int = 0
    # why the last node failed to start; None if a later node started. With CLOSED: why the pool closed
    failure: Exception | None = None
    # details for people, with NO_PORTS, TOO_LARGE or STALLED: the node and the number, or the amounts needed
    why: str = ""
    limit_s: float | None = None  # the deadline in seconds, with DEADLINE; ``why`` then says where the job was


Ending = Settled | GaveUp
Settle = Callable[[Ending], None]
# endings by rank, and the generation; if none began: one ending, and 0
SettleAll = Callable[[Sequence[Ending], int], None]


class OnLoss(Enum):
    RESTART = auto()  # fence the generation, replace lost nodes, and run all ranks again
    RESEND = auto()  # keep the results so far, and run only the lost ranks again
    FAIL = auto()


class RankWatch(Protocol):
    """A receiver of events of an at-most-once broadcast's ranks, while it runs; called on the loop, as `Settle` is."""

    def began(self, ranks: int, /) -> None:
        """Handle that the broadcast runs, with so many ranks. Not called if the broadcast ends before it runs."""

    def ended(self, rank: int, ending: Ending, /) -> None:
        """Handle how a rank has ended. Called once per rank; not for ranks still open when the whole broadcast ends."""


class BroadcastSpec(NamedTuple):
    """A function for every ready node. ``content`` as in `Task`, shared by all ranks."""

    job: JobId
    function: bytes
    content: object
    on_loss: OnLoss
    collective: bool  # whether ranks wait for each other: then a rank that raises ends the others
    # ranks for one node; the smallest result over all nodes is used; must not raise
    ranks_per_node: Callable[[NodeFacts], int]
    every_rank_listens: bool = False  # whether each rank gets a free port, instead of the head alone
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    max_restarts: int = 0  # generations that may follow a generation in which a rank failed by itself (RESTART)
    restarts: int = 3  # most lost generations in a row that may be followed by another; RESEND: counted per rank
    steady_s: float = 60.0  # seconds; a generation that ran for longer resets the count of lost generations in a row
    needs: Amounts | None = None  # amounts that all its ranks on one node hold together
    stall: Stall | None = None
    failed: Callable[[Ending], object] | None = None  # called at once with each rank that fails
    # only with ``at_most_once``; without it, a rank's ending may be replaced when the rank runs again
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
    min: int  # number of ready nodes from which on the pool is ready
    slots: int  # number of tasks that run at the same time on each node
    spare: int = 0  # number of additional nodes that stand by
    # number of unannounced losses of its node in a row after which a task ends, whatever its retries
    quarantine_after: int = 4
    boot_timeout_s: float = 600.0  # seconds from launch to ready, without the time in the provider's queue
    # limit in seconds for a wait without a break in the provider's queue; None: no limit
    start_timeout_s: float | None = None
    replace_timeout_s: float = 600.0
    reconnect_s: float = 10.0  # seconds for which reconnecting is tried before the node counts as lost
    lease_s: float = 120.0  # the lease in `Hello`; also how long reconnecting is tried when no host at all answers
    launch_retries: int = 5  # launches that may fail before the pool is ready; after that there is no limit
    scale: ScaleByLoad | None = None  # None: the pool has ``desired`` nodes, until the user resizes it


def random_chance() -> float:
    """Return a random number from 0.0 up to, but not including, 1.0. Avoids importing `random`, to start faster."""
    return int.from_bytes(os.urandom(6)) / 2**48


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies that a pool is given from outside."""

    fleet: Fleet  # the fleet of an opened provider
    request: LaunchRequest
    spec: PoolSpec
    connect: Connect
    observe: Observe
    clock: Clock
    # None: if all nodes are silent, this computer's network is assumed to be down
    probe: ReachabilityProbe | None = None
    chance: Callable[[], float] = random_chance  # spreads retries: a number from 0.0 up to, but not including, 1.0
    preparing: Callable[[NodeId], Preparing | None] = lambda _: (
        None
    )  # the step of preparing a node, if one is under way
