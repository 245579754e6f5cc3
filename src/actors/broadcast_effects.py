"""The effects of a broadcast: `generations` decides them, and `broadcasts` carries them out."""

from __future__ import annotations

from ..lazy_named_tuple import NamedTuple
from . import events as ev
from .fencing import Gap, KillRank, RunRank
from .interfaces import Ending, NodeId, World
from .placement import Claim, ReleaseSeat, WithdrawClaim


class NeedPorts(NamedTuple):
    """A request for free ports: call ``Gang.ports`` with the given number of ports of each node, when all
    nodes have that many.
    """

    of: tuple[tuple[NodeId, int], ...]
    gap: Gap | None = None  # the ranks that run again alone; None: the ports are for a whole generation


class EndAll(NamedTuple):
    endings: tuple[Ending, ...]
    generation: int


class RankEnded(NamedTuple):
    """The end of a watched rank; `EndAll` will repeat it."""

    rank: int
    ending: Ending


class RankFailed(NamedTuple):
    """The failure of a rank after which no other generation follows."""

    ending: Ending


class GenerationStarted(NamedTuple):
    world: World
    ranks: tuple[int, ...]  # all ranks, or those that run again


Effect = (  # the caller carries effects out at once, in order; a new claim replaces the broadcast's earlier claim
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
