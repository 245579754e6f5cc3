"""The decisions of the ledger, until the pool's actor has carried them out."""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ..lazy_dataclass import dataclass
from .interfaces import AttemptId, Ending, JobId, NodeId, Order, Settle, Task


@dataclass(slots=True)
class Decisions:
    """The decisions to be carried out now. The caller empties these lists."""

    runs: list[tuple[NodeId, Order]] = field(default_factory=list)
    endings: deque[tuple[Task, Settle, Ending, float]] = field(default_factory=deque)  # the float: seconds it ran
    kills: list[tuple[NodeId, AttemptId]] = field(default_factory=list)
    recalls: list[tuple[NodeId, tuple[AttemptId, ...]]] = field(default_factory=list)
    retries: list[tuple[Task, NodeId, int, str]] = field(default_factory=list)  # number of the attempt, cause
    seats: list[tuple[JobId, tuple[NodeId, ...]]] = field(default_factory=list)  # a claim was granted
    emptied: list[NodeId] = field(default_factory=list)  # closed nodes that have become empty, perhaps repeatedly
