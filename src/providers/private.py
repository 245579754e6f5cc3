"""Folders that belong to one user alone: what is in them is believed and run, so nobody else may write there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(PermissionError):
    """A folder is somebody else's, or somebody else may write in it."""

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(errno.EPERM, f"{why}, and what is in it would be believed and run", str(folder))


def make_private(folder: Path) -> bool:
    """The folder is there and nobody but this user, and root, may write in it. True: it was made just now.

    Raises:
        NotPrivate: it was there already, and is not.
        OSError: it cannot be made.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_private(folder)
        return False
    return True


def check_private(folder: Path) -> None:
    """
    Raises:
        NotPrivate
        OSError: it cannot be looked at.
    """
    ours = (os.geteuid(), 0)
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if found.st_uid not in ours or folder.lstat().st_uid not in ours:  # a link is replaced by whoever owns it
        raise NotPrivate(folder, f"it belongs to another user (uid {found.st_uid})")
    if found.st_mode & OTHERS_WRITE:
        raise NotPrivate(folder, f"others may write in it (mode {stat.S_IMODE(found.st_mode):o})")


def cache_root() -> Path:
    """Return the directory for what this computer keeps for later pools, chosen by the same rule as on hosts. The
    directory may not exist, or may not be private.
    """
    if named := os.environ.get("OUTRIDER_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outrider"


def state_root(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory for what outlives a client: ``path``, else the environment's, else one below the home."""
    if path is not None:
        return Path(path).expanduser().resolve()
    if named := os.environ.get("OUTRIDER_STATE"):
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "outrider"
