"""What a client is to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A pool, and ``rounds`` of a broadcast that lasts ``round_s``. ``waits``: for a line, once the pool is ready."""

    name: str = "work"
    nodes: int = 2
    lease_s: float = 8.0
    attach: bool = False
    spot: bool = False
    rounds: int = 3
    round_s: float = 1.0
    waits: bool = False
    max_cost: float | None = None
    max_lifetime_s: float | None = None
    boot_timeout_s: float | None = None

    def written(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Wish:
        return cls(**json.loads(text))
