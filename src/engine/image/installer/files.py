"""The user's included files on the node. They are stored once by content, and copied to a new folder for each pool."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .installation import Installation
from .protocol import Inbox

_CHUNK_BYTES = 1 << 20
_KEPT_S = 30 * 86400  # seconds (30 days) after which an unused file is deleted


def receive(installation: Installation, inbox: Inbox, store: Path, wanted: Mapping[str, int]) -> None:
    """Make sure that the folder ``store`` has all ``wanted`` files: SHA-256 -> size.

    The client sends those that are missing.
    """
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing = [name for name, size in wanted.items() if not _has(store / name, size)]
    if not missing:
        return
    inbox.folder = store
    installation.send("need", files=missing)
    left = set(missing)
    while left:
        left.discard(inbox.next().get("sha256", ""))
    size = sum(wanted[name] for name in missing)
    installation.line(f"received {len(missing)} of {len(wanted)} files, {_in_words(size)}")


def lay_out(tree: Path, store: Path, entries: Sequence[Sequence[Any]]) -> None:
    """Create the folder ``tree`` with exactly the given files.

    The folder is created under another name and then renamed, so it is never incomplete. ``entries``: (path, SHA-256,
    size, whether the file is executable).
    """
    beside = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o700)
    now = time.time()
    for path, name, _, executable in entries:
        target, source = beside / path, store / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)  # a copy and not a link, because a task may write to the file
        if executable:
            target.chmod(0o755)
        os.utime(source, (now, now))
    shutil.rmtree(tree, ignore_errors=True)
    beside.rename(tree)


def forget(store: Path) -> None:
    """Delete stored files that were not used for a long time, and incomplete files of killed installers."""
    limit = time.time() - _KEPT_S
    with suppress(OSError), os.scandir(store) as entries:
        for entry in entries:
            if entry.stat().st_mtime < limit:
                Path(entry.path).unlink()


def _has(path: Path, size: int) -> bool:
    """Return whether the file exists and has the content that its name (a SHA-256) states.

    After a power failure, the file may be incomplete.
    """
    try:
        return path.stat().st_size == size and _sha256(path) == path.name
    except OSError:
        return False


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _in_words(size: int) -> str:
    if size < 10_000:
        return f"{size} bytes"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size // 1000} kB"
