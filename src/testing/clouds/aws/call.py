"""One call to the cloud: its parameters, its region, and the age of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ....lazy_dataclass import dataclass
from .protocol import Answer, Ask

if TYPE_CHECKING:
    from .state import Region


@dataclass(frozen=True, slots=True)
class CloudCall:
    """A call. ``ago``: its answer shows the cloud's state of this many seconds ago."""

    region: Region
    action: str
    ask: Ask
    ago: float


Action = Callable[[CloudCall], Answer]
Actions = Mapping[str, Action]
