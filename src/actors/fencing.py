"""The state and the effects of a broadcast. Pure data; `generations` decides on it.

The state is what fencing (ending every rank of a generation before the next generation begins) needs to know: the
running attempts of ranks, the nodes that were lost, and the ranks that are to run again. The effects are actions that
`generations` decides and `broadcasts` carries out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..lazy_named_tuple import NamedTuple
from . import events as ev
from .interfaces import AttemptId, Ending, NodeId, Order, Task, World
from .placement import Claim, ReleaseSeat, WithdrawClaim


class Latest(NamedTuple):
    number: int  # 1 for the rank's first attempt, 2 for the second, ...
    generation: int


class RunRank(NamedTuple):
    node: NodeId
    order: Order


class KillRank(NamedTuple):
    node: NodeId
    attempt: AttemptId


class RankAttempts:
    """The attempts of a broadcast's ranks. A generation is fenced when none of its attempts may be running any more."""

    def __init__(self, ids: Iterator[int]) -> None:
        self.running: dict[AttemptId, tuple[int, NodeId]] = {}  # rank and node of each running attempt
        self.on: Counter[NodeId] = Counter()  # number of running attempts, by node
        self.latest: dict[int, Latest] = {}  # the latest attempt, by rank
        self._ids = ids

    def begin(self, rank: int, world: World, task: Task) -> RunRank:
        node, attempt = world.nodes[rank // world.ranks_per_node], AttemptId(next(self._ids))
        number = self.latest[rank].number + 1 if rank in self.latest else 1
        self.latest[rank] = Latest(number, world.generation)
        self.running[attempt] = (rank, node)
        self.on[node] += 1
        return RunRank(node, Order(attempt, task, number, world, rank))

    def ended(self, attempt: AttemptId, node: NodeId) -> int | None:
        """Remove an attempt that ended on ``node``; return its rank, or None if ``node`` runs no such attempt."""
        rank, runner = self.running.get(attempt, (0, None))
        if runner != node:
            return None
        del self.running[attempt]
        self.on[node] -= 1
        return rank

    def lost(self, node: NodeId) -> tuple[int, ...]:
        if not self.on.pop(node, 0):
            return ()
        lost = {attempt: rank for attempt, (rank, on) in self.running.items() if on == node}
        for attempt in lost:
            del self.running[attempt]
        return tuple(lost.values())

    def kills(self) -> list[KillRank]:
        return [KillRank(node, attempt) for attempt, (_, node) in self.running.items()]

    def clear(self) -> None:
        self.running.clear()
        self.on.clear()


class Losses:
    """The losses and failures of a broadcast's generations, which decide whether another generation may follow."""

    def __init__(self, *, steady_s: float) -> None:
        # the node and the cause of each loss, in all generations of the broadcast
        self.all: tuple[tuple[NodeId, str], ...] = ()
        self.nodes: tuple[NodeId, ...] = ()  # nodes lost in this generation
        # number of lost generations in a row that were followed by another generation; a generation that ran for
        # `_steady_s` before its first loss begins a new row, and counts as 1
        self.in_row = 0
        self.failures = 0  # number of generations that ended by a rank's own failure and were followed by another
        self.stalls = 0  # number of generations that stalled and were followed by another
        # why this generation is being fenced (ended), if the reason is not a lost node
        self.failed_by: str | None = None
        self.stalled = False  # whether this generation is being fenced (ended) because it stalled
        self._steady_s = steady_s  # seconds; a generation that ran for this long before its first loss resets `in_row`
        self._began_at = 0.0
        # when this generation lost its first node; where known, the time at which its connection was lost
        self._first_at = 0.0

    @property
    def cause(self) -> str:
        return self.all[-1][1] if self.nodes else self.failed_by or ""

    def generation_began(self, now: float) -> None:
        self._began_at = now
        self.failed_by = None
        self.stalled = False
        self.nodes = ()

    def ranks_began(self, now: float) -> None:
        """Handle that ranks of a lost node run again: the generation's time without a loss begins again now."""
        self._began_at = now

    def add(self, node: NodeId, cause: str, at: float) -> None:
        self._first_at = min(self._first_at, at) if self.nodes else at
        self.all += ((node, cause),)
        self.nodes += (node,)

    def stall(self, why: str) -> None:
        """Count this generation as stalled. Nodes that it lost earlier are not the cause, as their ranks had run
        again.
        """
        self.stalls += 1
        self.failed_by, self.stalled, self.nodes = why, True, ()

    def count(self) -> None:
        """Count this generation as lost if it lost a node (the loss may be why ranks failed), otherwise as failed."""
        if not self.nodes:
            self.failures += not self.stalled
        elif self._first_at - self._began_at >= self._steady_s:
            self.in_row = 1
        else:
            self.in_row += 1


class Rerun(NamedTuple):
    """The ranks of a lost node, which run again on another node while the other ranks continue (RESEND)."""

    lost: NodeId
    ranks: tuple[int, ...]


class Reruns:
    """The ranks of lost nodes that are to run again. All ranks of a lost node go to the same new node."""

    def __init__(self) -> None:
        self.waiting: list[Rerun] = []  # ranks that wait for a new node
        # by node: its dead ranks, while other ranks still run on the node
        self.half_lost: dict[NodeId, tuple[int, ...]] = {}

    def add(self, node: NodeId, ranks: tuple[int, ...], *, complete: bool) -> bool:
        """Add dead ranks of ``node``; return ``complete``: whether all ranks of the node have ended. Only then may they
        run again.
        """
        ranks = (*self.half_lost.pop(node, ()), *ranks)
        if complete:
            self.waiting.append(Rerun(node, tuple(sorted(ranks))))
        else:
            self.half_lost[node] = ranks
        return complete

    def drop(self) -> list[int]:
        dropped = [*(rerun.ranks for rerun in self.waiting), *self.half_lost.values()]
        self.waiting.clear()
        self.half_lost.clear()
        return [rank for ranks in dropped for rank in ranks]


class NeedPorts(NamedTuple):
    """A request for free ports. When each node has as many free ports as requested, ``Gang.ports`` must be called with
    them.
    """

    of: tuple[tuple[NodeId, int], ...]
    # the ranks of a lost node that run again while other ranks continue; None: the ports are for a whole generation
    rerun: Rerun | None = None


class EndAll(NamedTuple):
    endings: tuple[Ending, ...]
    generation: int


class RankEnded(NamedTuple):
    """The end of one rank, for callers that want each rank's ending at once. `EndAll` will contain the same ending
    again.
    """

    rank: int
    ending: Ending


class RankFailed(NamedTuple):
    """The failure of a rank that ends the broadcast: no other generation follows."""

    ending: Ending


class GenerationStarted(NamedTuple):
    world: World
    ranks: tuple[int, ...]  # the ranks that begin: all ranks, or only the ranks that a lost node ran


# A decision about a broadcast. The caller carries out the decisions at once, in order. A new `Claim` of seats replaces
# the broadcast's earlier claim.
Effect = (
    Claim
    | WithdrawClaim
    | NeedPorts
    | RunRank
    | KillRank
    | ReleaseSeat
    | RankEnded
    | RankFailed
    | EndAll
    | GenerationStarted
    | ev.GenerationLost
)
