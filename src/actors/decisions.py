"""The ledger's decisions that the pool's actor has not carried out yet."""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ..lazy_dataclass import dataclass
from .interfaces import AttemptId, Ending, JobId, NodeId, Order, Settle, Task


@dataclass(slots=True)
class Decisions:
    """The decisions that are due now. The caller carries them out and empties these lists."""

    runs: list[tuple[NodeId, Order]] = field(default_factory=list)
    # the float: seconds that the task ran
    endings: deque[tuple[Task, Settle, Ending, float]] = field(default_factory=deque)
    kills: list[tuple[NodeId, AttemptId]] = field(default_factory=list)
    recalls: list[tuple[NodeId, tuple[AttemptId, ...]]] = field(default_factory=list)
    # (task, node of the attempt that ended, number of that attempt, cause)
    retries: list[tuple[Task, NodeId, int, str]] = field(default_factory=list)
    # granted claims of broadcasts: the nodes on which each got a seat
    seats: list[tuple[JobId, tuple[NodeId, ...]]] = field(default_factory=list)
    # nodes that get no new work and hold no attempts any more; a node may be listed repeatedly
    emptied: list[NodeId] = field(default_factory=list)
