"""Paths as users give them. What can be no file's, as a name that is too long or one in the home of an unknown user, is
told as any other file that is not there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

StrPath = str | os.PathLike[str]


def expanded(path: StrPath) -> Path:
    """Return the path with ``~`` as the home folder. ``~name`` of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises a RuntimeError for it


def half_url(text: str) -> str:
    """Return the URL that a text was probably meant to be, as ``s3://b/x`` for ``s3:/b/x``; empty: it is a path."""
    match = re.fullmatch(r"(s3|gs|gcs|az|abfs|abfss|https?|file):/?([^/].*)", text)
    return f"{match[1]}://{'/' * (match[1] == 'file')}{match[2]}" if match else ""


def no_file(path: StrPath) -> str:
    """Return why nothing can be read from a path, in words that name it; empty: there is a file."""
    return _lack(path, stat.S_ISREG, "file")


def no_folder(path: StrPath) -> str:
    """Do as `no_file`, for a folder."""
    return _lack(path, stat.S_ISDIR, "folder")


def _lack(path: StrPath, is_one: Callable[[int], bool], kind: str) -> str:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - of a text, too
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {kind} {path}"
    except OSError as error:
        return f"{path} cannot be looked at ({error.strerror})"
    except ValueError:  # it has a NUL
        return f"{path!r} can be the path of no {kind}"
    if is_one(mode):
        return ""
    actual = "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "neither a file nor a folder"
    return f"{path} is {actual}"
