"""Requests for profiles from node to worker: their files, and the signal that announces them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from ...lazy_named_tuple import NamedTuple

SIGNAL = signal.SIGRTMIN + 12  # the number after the stack signal's; other software does not use it: see `stack_file`


class ProfileRequest(NamedTuple):
    """A request for a profile, which ends after ``steps`` steps (0: no limit) or after ``seconds``."""

    attempt: int
    name: str
    steps: int
    seconds: float
    skip: int = 0  # steps to skip before the profile begins

    def written(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def read(cls, content: bytes) -> ProfileRequest:
        return cls(*json.loads(content))


def request_file(folder: Path, pid: int, attempt: int) -> Path:
    return folder / f"profile-{pid}-{attempt}.ask"


def request_files(folder: Path, pid: int) -> list[Path]:
    """Return the request files for a process, which may run several tasks."""
    return sorted(folder.glob(f"profile-{pid}-*.ask"))
