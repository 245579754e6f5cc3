"""What this computer keeps for later pools: what it fetched, and what it made of that."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def client_cache() -> Path:
    """Its folder: the same rule as on the nodes."""
    if named := os.environ.get("OUTRIDER_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outrider"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Where to write what is to be ``path``, which it is, whole and on the disk, once the block ends without an error.

    Others may do the same at the same time, in this process or in a container with the same process ids.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{secrets.token_hex(8)}-{path.name}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
