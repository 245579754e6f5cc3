"""The bases of all events of a pool: each has its time, and some the node or the job that they are about."""

from __future__ import annotations

import re
from dataclasses import field
from typing import ClassVar

from ..lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events."""

    name: ClassVar[str] = "event"  # as in logs: "node_lost"
    at: float = field(default=0.0, kw_only=True)  # seconds since the epoch, by the client's clock; 0.0: not yet set

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@dataclass(frozen=True, slots=True)
class NodeEvent(Event):
    """The base of what happens to one node."""

    node: int


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """The base of a job's events, except its output: sent to observers whose `Observe.wants` is true."""

    job: int
