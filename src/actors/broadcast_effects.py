"""The effects of a broadcast: `generations` decides them, and `broadcasts` carries them out."""

from __future__ import annotations

from ..lazy_named_tuple import NamedTuple
from . import events as ev
from .fencing import Gap, KillRank, RunRank
from .interfaces import Ending, NodeId, World
from .placement import Claim, ReleaseSeat, WithdrawClaim


class NeedPorts(NamedTuple):
    """Call ``ports`` with this number of free ports of each node, now or when all nodes have them."""

    of: tuple[tuple[NodeId, int], ...]
    gap: Gap | None = None  # the ranks that run again alone; None: for a whole generation


class EndAll(NamedTuple):
    endings: tuple[Ending, ...]
    generation: int


class RankEnded(NamedTuple):
    """A watched rank has ended, as `EndAll` will say."""

    rank: int
    ending: Ending


class RankFailed(NamedTuple):
    """A rank has failed, and no other generation follows for that."""

    ending: Ending


class GenerationStarted(NamedTuple):
    world: World
    ranks: tuple[int, ...]  # all of them, or those that run again


Effect = (  # what the caller must do now, in this order; a claim replaces the one before
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
