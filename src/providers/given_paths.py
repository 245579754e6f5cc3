"""File paths that users enter. Some texts cannot name any file, such as one that is too long, or one that refers to the
home of an unknown user. They are reported in the same way as a missing file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

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
