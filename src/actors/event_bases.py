"""The base classes of a pool's events. Each event has a time; some also have the node or the job that they concern."""

from __future__ import annotations

import re
from dataclasses import field
from typing import ClassVar

from ..lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events.

    Attributes:
        at: Seconds since the epoch, by the client's clock. 0.0: not yet set.
    """

    name: ClassVar[str] = "event"  # name in logs, such as "node_lost"
    at: float = field(default=0.0, kw_only=True)  # seconds since the epoch, by the client's clock; 0.0: not yet set

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@dataclass(frozen=True, slots=True)
class NodeEvent(Event):
    """The base of events of one node.

    Attributes:
        node: The number of the node.
    """

    node: int


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """The base of events of a job, except its output. An observer gets these events only if its ``tasks`` is true.

    Attributes:
        job: The number of the job.
    """

    job: int
