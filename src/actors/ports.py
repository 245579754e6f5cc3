"""What the actors need from the layer above: protocols and the values that cross them.

Everything here is synchronous and never waits: a link queues what it is given and writes it at the end of the loop's
tick. Only `Connect` and `Connection.wait_lost` wait, and only node actors call them, in their own task group.

What crosses once per task is a named tuple: three times as cheap to make as a frozen dataclass (0.2 and 0.5 us).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple, NewType, Protocol

from ..providers.base import Machine

NodeId = NewType("NodeId", int)  # never used twice in a pool: a replacement is another node
JobId = NewType("JobId", int)  # what the user submitted: one task, or a broadcast of several
TaskId = NewType("TaskId", int)
AttemptId = NewType("AttemptId", int)  # never used twice in a pool: a late report of an old attempt finds nobody


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node said of itself when it was reached."""

    hostname: str
    address: str  # by which the other nodes reach it
    ports: tuple[int, ...]  # free there, kept for generations whose head it is
    accelerators: tuple[tuple[str, float], ...] = ()  # (type, memory in GB), one entry each
    variables: tuple[tuple[str, str], ...] = ()  # of every task there: what plugins have set up on the node

    @property
    def ports_at_once(self) -> int:
        """Free ports that one generation can have of it for certain: it opens others when half of them are used."""
        return max(1, len(self.ports) // 2)


class World(NamedTuple):
    """One immutable membership view: what every rank of a generation sees.

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


class Task(NamedTuple):
    """One thing to run on one node. ``content`` is the engine's: code and arguments, pickled once."""

    id: TaskId
    job: JobId
    function: bytes  # digest: tasks of one function are expected to take alike
    content: object
    on: int | None = None  # rank of the node among the ready ones at dispatch; None: any
    retries: int = 3  # further attempts when the node is lost; 0 with at_most_once
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    max_restarts: int = 0  # further attempts when one fails by itself; 0 with at_most_once


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
    RAISED = auto()  # the user's code, or (un)pickling its data
    DIED = auto()  # the task's process, of itself: exit, crash, memory
    TERMINATED = auto()  # the task's process, by a signal from outside: so it ends with its machine
    TIMED_OUT = auto()  # it ran longer than it may
    KILLED = auto()  # because we asked


class Started(NamedTuple):
    attempt: AttemptId


class Finished(NamedTuple):
    """The attempt is over and its process tree idle or gone. ``outcome`` is opaque: the engine makes sense of it."""

    attempt: AttemptId
    verdict: Verdict
    outcome: object
    busy_s: float  # time in the user's function


class Returned(NamedTuple):
    """Recalled before they had started."""

    attempts: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True)
class Noticed:
    """The node learnt from its cloud that it will be taken in ``seconds``; None: withdrawn."""

    source: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class PortsFree:
    ports: tuple[int, ...]


class Asked(NamedTuple):
    """How often the ranks of a generation have asked on this node whether to stop: the most of any of them."""

    job: JobId
    generation: int
    number: int  # of the `PeerDoomed` that this answers
    asked: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """The node's executor is about to end by itself: its loss, which follows, has this cause."""

    cause: str
    has_run: bool  # some worker there has taken an attempt


Report = Started | Finished | Returned | Noticed | PortsFree | Asked | Unfit


class PeerDoomed(NamedTuple):
    """A machine of this generation will be taken in ``seconds``; None: none of them."""

    job: JobId
    generation: int
    number: int  # another notice has another
    place: int  # which of the world's nodes
    source: str
    seconds: float | None


class StopAt(NamedTuple):
    """The ranks of this generation stop when they ask for the ``asked``-th time whether to."""

    job: JobId
    generation: int
    asked: int


Word = Noticed | PeerDoomed | StopAt


class Link(Protocol):
    """What the pool may ask of a reached node. Never waits or raises; a lost link swallows, its node's loss follows."""

    def run(self, order: Order) -> None:
        """An order with a world starts at once, beside the slots: the pool made room, and its ranks need each other."""

    def kill(self, attempt: AttemptId) -> None:
        """Answered by `Finished`: KILLED with the process tree gone, or whatever was faster."""

    def recall(self, attempts: Sequence[AttemptId]) -> None:
        """Answered by `Returned` with those that had not started."""

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        """The ready nodes by rank, for `instance_info`."""

    def tell(self, word: Word) -> None:
        """For its tasks: the provider's word on its machine, or what becomes of a generation with ranks there."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a connection ended."""

    cause: str  # one clause for people
    silent: bool = False  # heartbeats stopped, as opposed to a closed connection
    early_s: float = 0.0  # before its silence would have ended it: so much longer it has to come back


class Connection(Protocol):
    """A node's SSH connection and session. The link stays the same across `resume`."""

    @property
    def link(self) -> Link: ...

    @property
    def facts(self) -> NodeFacts: ...

    async def wait_lost(self) -> Lost:
        """Return when the present connection is gone."""
        ...

    async def resume(self) -> bool:
        """Try once, bounded, to reconnect; True when the session went on where it was.

        Raises:
            ConnectFailed: not reached, try again; or (``fatal``) it will never work.
        """
        ...

    async def close(self) -> None:
        """End the session in order (the node stops its executor). Bounded, idempotent."""
        ...


class ConnectFailed(Exception):
    """The node cannot be reached now, or (``fatal``) ever: a wrong host key, a full disk.

    ``alike``: nor could any other machine in its place, such as with a package that does not exist.
    """

    def __init__(self, message: str, *, fatal: bool = False, alike: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal or alike
        self.alike = alike


class NoWorkers(Exception):
    """Nodes are ready one after another, and none can start a worker: why the last one could not."""


class Connect(Protocol):
    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> Connection:
        """Try once, bounded, to reach a machine and greet its executor. ``reports`` gets what it says, in order.

        ``answered`` is called as soon as it is the right machine that answers: what follows may take minutes.

        Raises:
            ConnectFailed
        """
        ...


Witness = Callable[[Sequence[Machine]], Awaitable[bool]]
"""Asked while all nodes are silent, with their machines: whether anybody answers this computer. Bounded."""

Clock = Callable[[], float]  # the running loop's: what `anyio.current_time` says, which takes 2 us to find it out


# How a submitted job ends: called exactly once, on the loop, by the pool actor: it must be quick and must not raise.


class Settled(NamedTuple):
    """An attempt's own word."""

    verdict: Verdict
    outcome: object
    node: NodeId
    rank: int
    number: int
    generation: int


class Reason(StrEnum):
    """Why a task ends without an attempt's own word."""

    LOST = auto()  # its node was lost and it may not, or not any more, be run again
    QUARANTINED = auto()  # every attempt took its node down, or so many in a row
    QUEUE_TIMEOUT = auto()
    CANCELLED = auto()
    CLOSED = auto()  # the pool ended first
    NO_REPLACEMENT = auto()  # within replace_timeout
    NO_SUCH_RANK = auto()  # the pool is to have fewer nodes than the task's ``on``
    LOSING = auto()  # a broadcast lost generations faster than it could run
    NO_PORTS = auto()  # more ranks of a broadcast need a port each than one of its nodes keeps free


@dataclass(frozen=True, slots=True)
class GaveUp:
    reason: Reason
    losses: tuple[tuple[NodeId, str], ...] = ()  # the nodes lost under it, with the cause of each
    rank: int = 0
    failure: Exception | None = None  # why the last node that was to come did not, since one has come
    why: str = ""  # with NO_PORTS, for people: which node, and how many


Ending = Settled | GaveUp
Settle = Callable[[Ending], None]
SettleAll = Callable[[Sequence[Ending], int], None]  # by rank, and which generation's; one ending and 0: none began


class OnLoss(Enum):
    RESTART = auto()  # fence, replace, run everywhere again
    RESEND = auto()  # keep what is good, run the lost rank alone again
    FAIL = auto()


class BroadcastSpec(NamedTuple):
    """A function for every ready node. ``content`` as in `Task`, shared by all ranks."""

    job: JobId
    function: bytes
    content: object
    on_loss: OnLoss
    collective: bool  # ranks wait for each other: a rank that raises dooms the rest
    ranks_per_node: Callable[[NodeFacts], int]  # the least over the nodes is used; must not raise
    every_rank_listens: bool = False  # a free port for each rank, and not for the head alone
    at_most_once: bool = False
    queue_timeout_s: float | None = None
    max_restarts: int = 0  # generations that follow one of which a rank failed by itself (RESTART)
    restarts: int = (
        3  # generations lost in a row that are followed by another, counted anew after `steady_s`; RESEND: per rank
    )
    steady_s: float = 60.0


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """How many nodes, and how patient."""

    desired: int
    min: int  # ready when so many are
    max: int
    slots: int  # tasks at a time per node
    spare: int = 0  # further nodes that stand by
    quarantine_after: int = 4  # nodes in a row that were lost under a task, unannounced; however many retries it has
    boot_timeout_s: float = 600.0  # from launch to ready
    replace_timeout_s: float = 600.0
    reconnect_s: float = 10.0  # how long a lost connection is tried again before its node counts as lost
    lease_s: float = 120.0  # as in Hello; tried again for so long when nobody answers: it may be our network
    launch_retries: int = 5  # before the pool is ready; from then on there is no end to them
    labels: Mapping[str, str] | None = None
