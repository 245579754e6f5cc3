"""Requests for profiles, as node and worker have them in common: where they lie, and the signal that tells of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from ...lazy_named_tuple import NamedTuple

SIGNAL = signal.SIGRTMIN + 12  # the next after that of stacks, and as free of other users: see `stack_file`


class Asked(NamedTuple):
    """A profile as it is asked for. It ends after ``steps`` steps (0: they do not end it), or ``seconds``."""

    attempt: int
    name: str
    steps: int
    seconds: float
    skip: int = 0  # steps before it begins

    def written(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def read(cls, content: bytes) -> Asked:
        return cls(*json.loads(content))


def request_file(folder: Path, pid: int, attempt: int) -> Path:
    return folder / f"profile-{pid}-{attempt}.ask"


def request_files(folder: Path, pid: int) -> list[Path]:
    """Return the requests that lie there for a process, of which several tasks may run in it."""
    return sorted(folder.glob(f"profile-{pid}-*.ask"))
