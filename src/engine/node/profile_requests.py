"""Requests for profiles from a node to its workers: the request's file, and the signal that announces it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from ...lazy_named_tuple import NamedTuple

SIGNAL = signal.SIGRTMIN + 12  # next to the signal of `stack_file`, for the same reasons


class ProfileRequest(NamedTuple):
    """A request for a profile. The profile ends after ``steps`` training steps (0: no limit) or after ``seconds``."""

    attempt: int
    name: str
    steps: int
    seconds: float
    skip: int = 0  # number of training steps before the profile begins

    def written(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def read(cls, content: bytes) -> ProfileRequest:
        return cls(*json.loads(content))


def request_file(folder: Path, pid: int, attempt: int) -> Path:
    return folder / f"profile-{pid}-{attempt}.ask"


def request_files(folder: Path, pid: int) -> list[Path]:
    """Return the request files for all tasks of a process."""
    return sorted(folder.glob(f"profile-{pid}-*.ask"))
