"""The trace of a run: one line per event, and a digest of all lines. Two runs are equal if their digests are equal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from hashlib import blake2b

KEPT = 400  # default number of last lines to keep, for the report of a broken promise


class Trace:
    def __init__(self, clock: Callable[[], float], *, keep: int | None = KEPT) -> None:
        """Create an empty trace that keeps its last ``keep`` lines. None: keep all lines."""
        self.lines: deque[str] = deque(maxlen=keep)
        self.count = 0
        self.ended = False  # if True, further lines, from the cleanup of an aborted run, are not recorded
        self._clock = clock
        self._hash = blake2b(digest_size=16)

    def __call__(self, event: str, /, **facts: object) -> None:
        if self.ended:
            return
        text = " ".join([f"{name}={_shown(fact)}" for name, fact in facts.items()])
        line = f"{self._clock():12.6f} {event} {text}".rstrip()
        self.lines.append(line)
        self.count += 1
        self._hash.update(line.encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def _shown(fact: object) -> str:
    kind = type(fact)
    if kind is int or kind is str:
        return str(fact)
    if kind is float:
        return f"{fact:.6g}"
    if isinstance(fact, Enum):
        return fact.name.lower()
    if isinstance(fact, tuple | list):
        if len(fact) > 16:
            return f"({','.join(map(_shown, fact[:8]))},...{len(fact)})"
        return f"({','.join(map(_shown, fact))})"
    return str(fact)
