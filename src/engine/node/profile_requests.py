"""Requests for profiles, between node and worker: their files, and the signal that announces them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from ...lazy_named_tuple import NamedTuple

SIGNAL = signal.SIGRTMIN + 12  # the next after that of stacks, and as unused elsewhere: see `stack_file`


class ProfileRequest(NamedTuple):
    """A request for a profile. It ends after ``steps`` steps (0: no limit), or ``seconds``."""

    attempt: int
    name: str
    steps: int
    seconds: float
    skip: int = 0  # steps before it begins

    def written(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def read(cls, content: bytes) -> ProfileRequest:
        return cls(*json.loads(content))


def request_file(folder: Path, pid: int, attempt: int) -> Path:
    return folder / f"profile-{pid}-{attempt}.ask"


def request_files(folder: Path, pid: int) -> list[Path]:
    """Return the requests to a process, which may run several tasks."""
    return sorted(folder.glob(f"profile-{pid}-*.ask"))
