"""The effects of a `gang`: what its caller must do now, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .placement import Claim
from .ports import AttemptId, Ending, NodeId, Order, World


@dataclass(frozen=True, slots=True)
class Gap:
    """Ranks of a lost node that run again alone (RESEND)."""

    lost: NodeId
    ranks: tuple[int, ...]


class ClaimSeats(NamedTuple):
    """Make this claim for seats; it replaces the previous one."""

    claim: Claim


class WithdrawClaim(NamedTuple):
    """Withdraw the claim for seats."""


class NeedPorts(NamedTuple):
    """Call ``ports`` with this number of free ports of each node, now or when all nodes have them."""

    of: tuple[tuple[NodeId, int], ...]
    gap: Gap | None = None  # the ranks that run again alone; None: for a whole generation


class RunRank(NamedTuple):
    node: NodeId
    order: Order


class KillRank(NamedTuple):
    node: NodeId
    attempt: AttemptId


class ReleaseSeat(NamedTuple):
    node: NodeId


class EndAll(NamedTuple):
    endings: tuple[Ending, ...]
    generation: int


class GenerationStarted(NamedTuple):
    world: World
    ranks: tuple[int, ...]  # all of them, or those that run again


class GenerationLost(NamedTuple):
    generation: int
    nodes: tuple[NodeId, ...]
    cause: str


Effect = (
    ClaimSeats
    | WithdrawClaim
    | NeedPorts
    | RunRank
    | KillRank
    | ReleaseSeat
    | EndAll
    | GenerationStarted
    | GenerationLost
)
