"""What a client is to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A pool, and at least ``rounds`` of a broadcast that lasts ``round_s``, and a map.

    ``waits``: for a line, once the pool is ready. ``goes_on``: there are further rounds until a line comes.
    """

    name: str = "work"
    nodes: int = 2
    lease_s: float = 8.0
    rounds: int = 3
    round_s: float = 0.5
    waits: bool = False
    goes_on: bool = False
    time: str | None = None  # the job's limit, as Slurm has it
    boot_timeout_s: float | None = None
    start_timeout_s: float | None = None

    def written(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Wish:
        return cls(**json.loads(text))
