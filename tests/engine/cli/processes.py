"""The processes of a test, by the state folder that is in their environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 120.0


def processes(state: Path) -> dict[int, str]:
    """The processes, but this one, that were started with this state folder: their command lines."""
    found, mark = dict[int, str](), f"OUTRIDER_STATE={state}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    found.pop(os.getpid(), None)
    return found


def until(true: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
