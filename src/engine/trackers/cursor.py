"""The choice of the next part of a record to send to a tracker, also after a kill.

No clock, no I/O; the state is saved on each change.

CURSOR-1: the part that is sent lies between the position and the mark; both are saved before the part is sent.
CURSOR-2: after a kill the same part is sent again, with the same key: it ends at the mark, however long the file is.
CURSOR-3: the position only grows, and never passes data that was neither accepted nor rejected.
CURSOR-4: the end is sent when no other data is left.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from typing import Any

from ...lazy_dataclass import dataclass
from ..runs.metrics import METRICS

CHUNK_BYTES = 256 * 1024  # most bytes of a file that are sent at once
CHUNK_LINES = 1000
REASONS_KEPT = 20  # most reasons for rejections that the state lists; all rejections are counted
REST = "rest"  # end of the key for points that a selection holds back until the run is over


def cut(content: bytes) -> int:
    """Return how many bytes of ``content`` are sent at once: whole lines, or 0 while the first line is incomplete.

    A line that is longer than `CHUNK_BYTES` is cut there, and is skipped as invalid.
    """
    content = content[:CHUNK_BYTES]
    at = 0
    for _ in range(CHUNK_LINES):
        end = content.find(b"\n", at)
        if end < 0:
            break
        at = end + 1
    return at or (CHUNK_BYTES if len(content) == CHUNK_BYTES else 0)


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(slots=True)
class Cursor:
    """The state of one tracker. ``at``: the bytes of each file that are done.

    ``until``: the end of the part of `metrics.jsonl` that is being sent; None: no part is being sent. ``selection``:
    the value of `Selection.state` at the position ``at``.
    """

    at: dict[str, int] = field(default_factory=dict)
    until: int | None = None
    selection: dict[str, Any] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)  # digests of the params that were sent
    ids: dict[str, str] = field(default_factory=dict)
    begun: bool = False
    ended: bool = False
    points: int = 0  # number of points that the tracker accepted
    rejected: int = 0  # number of deliveries that were given up
    reasons: list[str] = field(default_factory=list)
    problem: str = ""  # why the tracker accepts nothing at present

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Cursor:
        """Return the cursor that `facts` described; a new one for a state that cannot be read."""
        cursor = cls()
        for each in fields(cls):
            value = facts.get(each.name)
            if type(value) is (int if each.name == "until" else type(getattr(cursor, each.name))):
                setattr(cursor, each.name, value)
        return cursor

    def facts(self) -> dict[str, Any]:
        return asdict(self)

    def position(self, file: str) -> int:
        return self.at.get(file, 0)

    def mark(self, size: int) -> None:
        """Note that the next ``size`` bytes of `metrics.jsonl` are sent now."""
        self.until = self.position(METRICS) + size if size else None

    def marked(self) -> int:
        """Return how many bytes were being sent when the last process was killed; 0: none."""
        return 0 if self.until is None else max(0, self.until - self.position(METRICS))

    def done(self, file: str, size: int) -> None:
        """Note that ``size`` bytes were accepted or rejected. ``until`` is reset only for `metrics.jsonl`."""
        self.at[file] = self.position(file) + size
        if file == METRICS:
            self.until = None

    def new_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in params.items() if self.params.get(name) != digest(value)}

    def params_done(self, sent: Mapping[str, Any]) -> None:
        self.params |= {name: digest(value) for name, value in sent.items()}

    def reject(self, why: str) -> None:
        self.rejected += 1
        self.reasons = [*self.reasons, why][-REASONS_KEPT:]
