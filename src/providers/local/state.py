"""The state directory: the only place where local pools keep files, and the sweep of what killed ones left there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def pool_directory(state: Path | None, pool: str) -> Path:
    """A new private directory for one pool, marked with its owner."""
    directory = state_root(state) / "local" / pool
    directory.mkdir(mode=0o700, parents=True)
    (directory / "owner").write_text(f"{os.getpid()} {start_time(os.getpid())}")
    return directory


def state_root(state: Path | None) -> Path:
    if state is not None:
        return state.expanduser().resolve()
    if named := os.environ.get("OUTRIDER_STATE"):
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "outrider"


def sweep(pools: Path) -> None:
    """Remove the directories of pools whose client is dead and whose keeper was killed before it could tidy up."""
    for directory in pools.iterdir():
        try:
            pid, started = (directory / "owner").read_text().split()
        except (OSError, ValueError):
            continue  # being made or removed right now
        if start_time(int(pid)) != started:
            shutil.rmtree(directory, ignore_errors=True)


def start_time(pid: int) -> str:
    """With the pid, an identity that is not reused: the kernel's start time of the process, "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
