"""The cache of this computer: wheels and tools that pools fetched or made, kept for later pools."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...providers.private import cache_root, make_private
from .advice import explained


def client_cache() -> Path:
    """The cache's folder. It is private to this user, because nodes run what comes out of it.

    Raises:
        BootstrapError: it cannot be made, or is not private.
    """
    folder = cache_root()
    try:
        make_private(folder)
    except OSError as error:
        raise explained(
            "packages",
            f"the cache of this computer, {folder}, cannot be used: {error.strerror}",
            hint=f"remove {folder}, or set OUTRIDER_CACHE here to a folder in which only you can write",
            systematic=True,
        ) from error
    return folder


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path``, whole and flushed, when the block ends without an error.

    Others may do the same at the same time, in this process or in a container with the same process ids.
    """
    make_private(path.parent)
    beside = path.with_name(f".{secrets.token_hex(8)}-{path.name}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
