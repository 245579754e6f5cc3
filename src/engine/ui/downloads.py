"""The files of a record that a browser can download, but not show: traces of profiles, and artifacts.

Only regular files in these two folders of the record are sent, whatever path the address or the record contains.
"""

from __future__ import annotations

import os
import re
import stat

from ..profiles.merged import PROFILES
from ..report.sections import Link
from ..runs.log_writer import ARTIFACTS
from ..runs.reader import Run

_KINDS = {  # folder -> (pattern of file names, media type)
    PROFILES: (re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.json\.gz"), "application/gzip"),
    ARTIFACTS: (re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"), "application/octet-stream"),
}


def media_type(path: str) -> str | None:
    """Return the media type of a file, given its path in the record; None: the file must not be downloaded."""
    folder, _, name = path.partition("/")
    names, kind = _KINDS.get(folder, (None, None))
    return kind if names is not None and names.fullmatch(name) else None


def is_there(run: Run, path: str) -> bool:
    """Return whether ``path`` is a regular file in the record, reached without symbolic links."""
    try:
        folder, file = os.lstat((run.directory / path).parent), os.lstat(run.directory / path)
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(file.st_mode)


def links_of(run: Run) -> Link:
    """Return a function that maps the path of a file in the record to its address; None: no download."""

    def link(path: str) -> str | None:
        return f"/runs/{run.id}/{path}" if media_type(path) else None

    return link
