"""One call to the cloud: its parameters, its region, and how old its answer may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ....lazy_dataclass import dataclass
from .protocol import Answer, Ask

if TYPE_CHECKING:
    from .state import Region


@dataclass(frozen=True, slots=True)
class CloudCall:
    """A call. ``ago``: the age of its answer: it sees the cloud's state of so many seconds ago."""

    region: Region
    action: str
    ask: Ask
    ago: float


Action = Callable[[CloudCall], Answer]
Actions = Mapping[str, Action]
