"""Files and folders on this computer: private folders, and paths that users enter.

A private folder is one in which only this user (and root) may write: the program trusts the files in such folders, and
runs some of them. Of the paths that users enter, some can name no file, such as one that is too long, or one in the
home of an unknown user. These are reported like a missing file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(PermissionError):
    """A folder belongs to another user, or other users may write in it."""

    def __init__(self, folder: Path, why: str) -> None:
        self.why = why
        super().__init__(errno.EPERM, f"{why}, and what is in it would be believed and run", str(folder))


def make_private(folder: Path) -> bool:
    """Create the folder if needed. Check that only this user and root may write in it. Return whether it was created.

    Raises:
        NotPrivate: The folder exists, and other users may write in it.
        OSError: The folder cannot be created.
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
    """Check that only this user and root may write in a folder.

    Raises:
        NotPrivate: Other users may write in the folder.
        OSError: The folder cannot be inspected.
    """
    ours = (os.geteuid(), 0)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    # For a symlink, check its own owner, too: that user can replace it.
    if status.st_uid not in ours or folder.lstat().st_uid not in ours:
        raise NotPrivate(folder, f"it belongs to another user (uid {status.st_uid})")
    if status.st_mode & OTHERS_WRITE:
        raise NotPrivate(folder, f"others may write in it (mode {stat.S_IMODE(status.st_mode):o})")


def only_one_is_in_group(gid: int, uid: int) -> bool:
    """Return whether a group is the private primary group of a user: it has the user's name and no other members.

    On systems where each user has such a group, a umask of 002 is usual. False also if the system does not know the
    user or the group.
    """
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def cache_root() -> Path:
    """Return the folder for caches on this computer. The same rule chooses the folder on remote hosts.

    The folder may not exist, or may not be private.
    """
    if named := os.environ.get("OUTRIDER_CACHE"):
        return _in_home(named)
    return _in_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "outrider"


def state_root(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder for state that outlives a client: ``path``, else the folder that the environment names, else
    one in the home folder.

    Raises:
        FileNotFoundError: The folder would be in the home folder, and there is none.
    """
    if path is not None:
        return _in_home(path).resolve()
    if named := os.environ.get("OUTRIDER_STATE"):
        return _in_home(named).resolve()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else _in_home("~/.local/state")) / "outrider"


def _in_home(folder: str | os.PathLike[str]) -> Path:
    path = Path(os.path.expanduser(folder))  # noqa: PTH111 - Path.expanduser raises a RuntimeError if there is no home folder
    if str(path).startswith("~"):  # "~" was not replaced, as in a container whose user has no name and no HOME
        why = "no such home folder is known: set HOME, or OUTRIDER_STATE and OUTRIDER_CACHE"
        raise FileNotFoundError(errno.ENOENT, why, str(folder))
    return path


# --- paths that users enter -------------------------------------------------------------------------------------------


StrPath = str | os.PathLike[str]


def expanded(path: StrPath) -> Path:
    """Return the path with ``~`` replaced by the home folder. ``~name`` stays as it is if the user is unknown."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises a RuntimeError for an unknown user


def half_url(text: str) -> str:
    """Return the URL that a text probably means, such as ``s3://b/x`` for ``s3:/b/x``; empty: the text is a path."""
    match = re.fullmatch(r"(s3|gs|gcs|az|abfs|abfss|https?|file):/?([^/].*)", text)
    return f"{match[1]}://{'/' * (match[1] == 'file')}{match[2]}" if match else ""


def no_file(path: StrPath) -> str:
    """Return why no file can be read at a path, with the path in the text; empty: a file can be read."""
    return _lack(path, stat.S_ISREG, "file")


def no_folder(path: StrPath) -> str:
    """Return why a path is not a folder, with the path in the text; empty: it is a folder."""
    return _lack(path, stat.S_ISDIR, "folder")


def _lack(path: StrPath, is_one: Callable[[int], bool], kind: str) -> str:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - of a text, too
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {kind} {path}"
    except OSError as error:
        return f"{path} cannot be looked at ({error.strerror})"
    except ValueError:  # the path has a NUL character
        return f"{path!r} can be the path of no {kind}"
    if is_one(mode):
        return ""
    actual = "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "neither a file nor a folder"
    return f"{path} is {actual}"
