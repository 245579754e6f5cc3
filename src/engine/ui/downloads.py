"""Decide which files of a record the server gives out: traces of profiles, and artifacts. A browser shows none of them.

Each is a file of the record itself, in one of two folders, whatever the address or the record says.
"""

from __future__ import annotations

import os
import re
import stat

from ..profiles.merged import PROFILES
from ..report.sections import Link
from ..runs.log_writer import ARTIFACTS
from ..runs.reader import Run

_KINDS = {  # by folder: the names in it, and what the browser is told that they are
    PROFILES: (re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.json\.gz"), "application/gzip"),
    ARTIFACTS: (re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"), "application/octet-stream"),
}


def media_type(path: str) -> str | None:
    """Return the type of a file by its path in the record; None: it is not given out."""
    folder, _, name = path.partition("/")
    names, kind = _KINDS.get(folder, (None, None))
    return kind if names is not None and names.fullmatch(name) else None


def is_there(run: Run, path: str) -> bool:
    """Return whether it is a file of the record, and no link out of it."""
    try:
        folder, file = os.lstat((run.directory / path).parent), os.lstat(run.directory / path)
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(file.st_mode)


def links_of(run: Run) -> Link:
    """Return where the server has the files of a run that it gives out."""

    def link(path: str) -> str | None:
        return f"/runs/{run.id}/{path}" if media_type(path) else None

    return link
