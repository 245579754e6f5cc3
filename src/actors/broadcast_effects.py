"""The effects of a broadcast: actions that `generations` decides and `broadcasts` carries out."""

from __future__ import annotations

from ..lazy_named_tuple import NamedTuple
from . import events as ev
from .fencing import Gap, KillRank, RunRank
from .interfaces import Ending, NodeId, World
from .placement import Claim, ReleaseSeat, WithdrawClaim


class NeedPorts(NamedTuple):
    """A request for free ports. When each node has as many free ports as requested, ``Gang.ports`` must be called with
    them.
    """

    of: tuple[tuple[NodeId, int], ...]
    # the ranks of a lost node that run again while other ranks continue; None: the ports are for a whole generation
    gap: Gap | None = None


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


# the caller carries effects out at once, in order; a new claim of seats replaces the broadcast's earlier claim
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
