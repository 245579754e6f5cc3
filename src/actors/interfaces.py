"""The interface of the actors to the layer above: protocols and the values that cross them.

Everything here is synchronous and never waits: a link queues its messages and writes them at the end of the loop's
tick. Only `Connect`, and of a `Connection` ``resume`` and ``close``, wait, and only `NodeActor` calls them, in tasks.

Values that cross once per task are named tuples, which are cheaper to make than frozen dataclasses (0.2 and 0.5 us).
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

NodeId = NewType("NodeId", int)  # never used twice in a pool: a replacement is another node
JobId = NewType("JobId", int)  # what the user submitted: one task, or a broadcast of several
TaskId = NewType("TaskId", int)
AttemptId = NewType("AttemptId", int)  # never used twice in a pool: a late report of an old attempt matches none


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The description that a node gave of itself when it was reached."""

    hostname: str
    address: str  # by which the other nodes reach it
    ports: tuple[int, ...]  # free there, kept for generations whose head it is
    accelerators: tuple[tuple[str, float], ...] = ()  # (type, memory in GB), one entry each
    variables: tuple[tuple[str, str], ...] = ()  # of every task there: what plugins have set up on the node
    millicpus: int = 0  # this and the next field: the node's share, where several nodes are one computer
    memory_bytes: int = 0

    @property
    def ports_at_once(self) -> int:
        """Return how many free ports one generation surely gets: the node opens more ports when half of them are
        used.
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
    ports: tuple[int, ...] = ()  # by rank, each free on its node, the head's first; empty: only the head needed one

    @property
    def size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @property
    def head(self) -> NodeId:
        return self.nodes[0]

    def port_of(self, rank: int) -> int:
        """Return the port on which a rank is to listen; 0: it has none."""
        return self.ports[rank] if self.ports else self.head_port if rank == 0 else 0

    def with_replaced(self, lost: NodeId, by: NodeId, address: str, ports: tuple[int, ...], generation: int) -> World:
        """Return this world as ``generation``, with another node in place of a lost one, and the ports it needs."""
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
    restart: bool  # run it again then, as after a loss, if its retries allow that
    name: str = ""  # the function's, for people


class Task(NamedTuple):
    """One thing to run on one node. ``content`` belongs to the engine: code and arguments, pickled once."""

    id: TaskId
    job: JobId
    function: bytes  # digest: tasks of one function are expected to take about equally long
    content: object
    on: int | None = None  # rank of the node among the ready ones at dispatch; None: any
    retries: int = 3  # further attempts when the node is lost; 0 with at_most_once
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    max_restarts: int = 0  # further attempts when one fails by itself; 0 with at_most_once
    needs: Amounts | None = None  # what it holds of its node while it runs; None: a slot alone
    stall: Stall | None = None
    near: Callable[[], NodeId | None] | None = None  # the node that has most of what it needs, asked when it may begin
    has_deadline: bool = False  # its nodes report when it begins, so that an error can say where it was


class Order(NamedTuple):
    """One attempt, as handed to a link."""

    attempt: AttemptId
    task: Task
    number: int  # 1, 2, ...: which attempt of the task this is
    world: World | None = None  # None: the task is a world of its own
    rank: int = 0
    announce: bool = False  # report `Started`


class Verdict(StrEnum):
    RETURNED = auto()
    RAISED = auto()  # the user's code raised, or (un)pickling its data
    DIED = auto()  # the task's process ended by itself: exit, crash, out of memory
    TERMINATED = auto()  # the task's process was ended by a signal from outside, as when its machine ends
    TIMED_OUT = auto()  # it ran longer than it may
    KILLED = auto()  # because the pool asked
    UNSENT = auto()  # an object that it needs is lost, so it was never sent to its node


class Started(NamedTuple):
    attempt: AttemptId


class Finished(NamedTuple):
    """The attempt is over and its process tree idle or gone. ``outcome`` is opaque: the engine interprets it."""

    attempt: AttemptId
    verdict: Verdict
    outcome: object
    busy_s: float  # time in the user's function


class Returned(NamedTuple):
    """The node gives these attempts back: they were recalled before they had started."""

    attempts: tuple[AttemptId, ...]


class PortsFree(NamedTuple):
    """All free ports that a node offers. ``first``: the number of the first of them, in the node's own count."""

    first: int
    ports: tuple[int, ...]


class StopChecks(NamedTuple):
    """The largest number of stop checks that any rank of a generation on this node has made."""

    job: JobId
    generation: int
    number: int  # of the notice that this answers
    checks: int


class Joined(NamedTuple):
    """The ranks of this attempt's broadcast wait for each other from now on."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Unfit:
    """The node's executor is about to end by itself; this is the cause of the node's loss, which follows."""

    cause: str
    has_run: bool  # whether a worker there has taken an attempt


class AttemptSeen(NamedTuple):
    """The sight of an attempt that runs: its stacks, and how long it has given no sign of life."""

    text: str
    quiet_s: float


class Looked(NamedTuple):
    """The answer to `Link.look`. ``seen``: of the attempts that run on the node, those that it has looked at."""

    question: int
    seen: Mapping[AttemptId, AttemptSeen]


Report = Started | Finished | Returned | PreemptionNotice | PortsFree | StopChecks | Joined | Unfit | Looked


class Peer(NamedTuple):
    """The node of a generation whose machine a preemption notice is about; the notice is for the generation's ranks."""

    job: JobId
    generation: int
    number: int  # of the notice; another one has another
    place: int  # index of the node in the world's nodes


class StopAt(NamedTuple):
    """The order to the ranks of this generation to stop at their ``check``-th stop check."""

    job: JobId
    generation: int
    check: int


class Link(Protocol):
    """The commands to a reached node. They never wait or raise; a lost link drops them, and its node's loss follows."""

    in_use: int  # how many things beside its tasks, such as transfers of files, the node has to stay for

    def run(self, order: Order) -> None:
        """Run an attempt. An order with a world starts at once, whatever the slots: its ranks need each other."""

    def kill(self, attempt: AttemptId) -> None:
        """Kill an attempt; the answer is `Finished`: KILLED once its process tree is gone, or an earlier verdict."""

    def recall(self, attempts: Sequence[AttemptId]) -> None:
        """Recall attempts; the answer is `Returned` with those that had not started."""

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        """Send the ready nodes by rank, for `instance_info`; where they are very many, to the ranks of broadcasts."""

    def place(self, rank: int, facts: NodeFacts, *, nodes: int, accelerators: int) -> None:
        """Send the node its rank among so many ready nodes, with so many accelerators, and none of its peers."""

    def notify(self, notice: PreemptionNotice, peer: Peer | None = None) -> None:
        """Send the node the notice about its own machine, or about ``peer``, of a generation that it runs ranks of."""

    def heard(self, attempt: AttemptId) -> float | None:
        """Return how long ago an attempt has sent a sign of life, such as a line; None: it has not sent any."""

    def look(self, question: int, quiet_s: float) -> None:
        """Look what runs on the node; the answer is `Looked`. What has given a sign within ``quiet_s`` is disturbed no
        further.
        """

    def is_sent(self, attempt: AttemptId) -> bool:
        """Return whether an attempt that was given to `run` was sent: its arguments may still be on their way."""
        ...

    def compare_ports(self, taken: int) -> None:
        """Send the node how many of its ports were taken; the answer is `PortsFree`."""

    def stop_at(self, stop: StopAt) -> None:
        """Send the node the question at which its ranks of a generation are to stop."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss of a connection, with its cause."""

    cause: str  # one clause for people
    silent: bool = False  # heartbeats stopped, or a host on the way has closed the connection; else the machine has
    early_s: float = 0.0  # how long before the silence limit it was lost: it has so much longer to come back


class Connection(Protocol):
    """A node's SSH connection and session. The link stays the same across `resume`."""

    @property
    def link(self) -> Link: ...

    @property
    def facts(self) -> NodeFacts: ...

    def watch(self, lost: Callable[[Lost], object]) -> None:
        """Have ``lost`` called once: when the present connection is gone, or now if it is."""

    async def resume(self) -> bool:
        """Try once, bounded, to reconnect; True when the session went on where it was.

        Raises:
            ConnectFailed: the node was not reached, try again; or (``fatal``) it will never work.
        """
        ...

    async def close(self) -> None:
        """End the session in order (the node stops its executor). Bounded, idempotent."""
        ...


class ConnectFailed(Exception):
    """The node cannot be reached now, or (``fatal``) ever: a wrong host key, a full disk.

    ``systematic``: any other machine in its place would fail too, for example for a package that does not exist.
    ``refused``: the host is up, and nothing listens at the port: a server that starts does so within seconds.
    ``futile``: trying again for a while helps nothing, and later it may: a host name that does not exist.
    ``late``: where the node was when its time to boot was over, in words that fit behind "was"; empty: it was not.
    ``step``: of preparing it, if that was under way then.
    ``kind``: equal for failures that have the same cause on machines that are alike; empty: that is not known.
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
    """A machine has waited in its provider's queue for as long as the pool's ``start_timeout_s``, and is given up.

    ``reason``: for what, in the provider's words. ``starts_at``: unix time at which it was expected to start.
    """

    def __init__(self, reason: str, limit_s: float, starts_at: float | None) -> None:
        super().__init__(f"a machine waited for {limit_s:g} s to start: {reason}")
        self.reason, self.limit_s, self.starts_at = reason, limit_s, starts_at


class NoWorkers(Exception):
    """Nodes become ready one after another, but none can start a worker; the message says why the last could not."""


class Connect(Protocol):
    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> Connection:
        """Try once, bounded, to reach a machine and greet its executor. ``reports`` gets its reports, in order.

        ``answered`` is called as soon as the right machine has answered; the rest may take minutes.

        Raises:
            ConnectFailed
        """
        ...


ReachabilityProbe = Callable[[Sequence[Machine]], Awaitable[bool]]
"""Return whether anybody answers this computer; called with the nodes' machines while all are silent. Bounded."""

Clock = Callable[[], float]  # the running loop's clock: as `anyio.current_time`, which takes 2 us to find the loop


# How a submitted job ends: called exactly once, on the loop, by the pool actor: it must be quick and must not raise.


class Settled(NamedTuple):
    """A task or rank ended with the outcome of an attempt."""

    verdict: Verdict
    outcome: object
    node: NodeId
    rank: int
    number: int
    generation: int
    at: float = 0.0  # for a broadcast's rank: when the report came, by the pool's clock


class Reason(StrEnum):
    """The reason why a task ends without an outcome of an attempt."""

    LOST = auto()  # its node was lost and it may not, or not any more, be run again
    QUARANTINED = auto()  # every attempt, or ``quarantine_after`` in a row, took its node down
    QUEUE_TIMEOUT = auto()
    CANCELLED = auto()
    CLOSED = auto()  # the pool ended first
    NO_REPLACEMENT = auto()  # no node came in its place within replace_timeout
    NO_SUCH_RANK = auto()  # the pool is to have fewer nodes than the task's ``on``
    LOSING = auto()  # a broadcast lost generations faster than it could run
    NO_PORTS = auto()  # more ranks of a broadcast need a port each than one of its nodes keeps free
    TOO_LARGE = auto()  # it needs more than any node of the pool has
    STALLED = auto()  # it gave no sign of life for too long, and was run again as often as it may be
    DEADLINE = auto()  # it was not done so long after its submission


@dataclass(frozen=True, slots=True)
class GaveUp:
    reason: Reason
    losses: tuple[tuple[NodeId, str], ...] = ()  # the nodes lost under it, with the cause of each
    rank: int = 0
    failure: Exception | None = None  # why the last node failed to come; None once one has come since. CLOSED: why
    why: str = ""  # with NO_PORTS, TOO_LARGE, STALLED, for people: which node, and how many; what is needed
    limit_s: float | None = None  # with DEADLINE, whose ``why`` says where the job was


Ending = Settled | GaveUp
Settle = Callable[[Ending], None]
SettleAll = Callable[[Sequence[Ending], int], None]  # endings by rank, and the generation; one ending and 0: none began


class OnLoss(Enum):
    RESTART = auto()  # fence, replace, run everywhere again
    RESEND = auto()  # keep what is done, run only the lost ranks again
    FAIL = auto()


class RankWatch(Protocol):
    """Hears of the ranks of a broadcast that is at most once, while it runs: called on the loop as `Settle` is."""

    def began(self, ranks: int, /) -> None:
        """Handle that the broadcast runs, with so many ranks. Not called if it ends before."""

    def ended(self, rank: int, ending: Ending, /) -> None:
        """Handle how a rank has ended: once, or (for those that were open then) not, if the broadcast ends as one."""


class BroadcastSpec(NamedTuple):
    """A function for every ready node. ``content`` as in `Task`, shared by all ranks."""

    job: JobId
    function: bytes
    content: object
    on_loss: OnLoss
    collective: bool  # ranks wait for each other: a rank that raises ends the rest
    ranks_per_node: Callable[[NodeFacts], int]  # the least over the nodes is used; must not raise
    every_rank_listens: bool = False  # a free port for each rank, and not for the head alone
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    max_restarts: int = 0  # generations that follow one in which a rank failed by itself (RESTART)
    restarts: int = 3  # lost generations in a row that are followed by another; RESEND: per rank
    steady_s: float = 60.0  # a generation that ran for so long ends the row
    needs: Amounts | None = None  # what its ranks on one node hold together
    stall: Stall | None = None
    failed: Callable[[Ending], object] | None = None  # called with each rank that fails, at once
    watch: RankWatch | None = None  # only with ``at_most_once``: of others a rank's ending may be taken back


@dataclass(frozen=True, slots=True)
class ScaleByLoad:
    """A pool whose number of nodes follows its work."""

    most: int  # nodes
    idle_s: float  # without work, after which a node leaves


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The settings of a pool: numbers of nodes, and timeouts."""

    desired: int
    min: int  # the pool is ready when so many nodes are
    slots: int  # tasks at a time per node
    spare: int = 0  # further nodes that stand by
    quarantine_after: int = 4  # a task ends after so many unannounced losses of its node in a row, whatever its retries
    boot_timeout_s: float = 600.0  # from launch to ready, without the time in its provider's queue
    start_timeout_s: float | None = None  # in its provider's queue, on end; None: for ever
    replace_timeout_s: float = 600.0
    reconnect_s: float = 10.0  # how long a lost connection is tried again before its node counts as lost
    lease_s: float = 120.0  # as in Hello; how long reconnecting is tried when nobody at all answers
    launch_retries: int = 5  # before the pool is ready; from then on they are unlimited
    scale: ScaleByLoad | None = None  # None: it has ``desired`` nodes, until the user resizes it


def random_chance() -> float:
    """Return a number that is at least 0.0, and below 1.0. Each start draws some, and would wait for `random`."""
    return int.from_bytes(os.urandom(6)) / 2**48


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies that a pool is given from outside."""

    fleet: Fleet  # of an opened provider
    request: LaunchRequest
    spec: PoolSpec
    connect: Connect
    observe: Observe
    clock: Clock
    probe: ReachabilityProbe | None = None  # None: when all nodes are silent, it is taken for this computer's network
    chance: Callable[[], float] = random_chance  # spreads retries: at least 0.0, below 1.0
    preparing: Callable[[NodeId], Preparing | None] = lambda _: (
        None
    )  # the step of preparing a node, if one is under way
