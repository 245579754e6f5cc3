"""The user's own files on the node: stored by content, and copied to a new tree for each pool."""

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
_KEPT_S = 30 * 86400  # seconds without use after which a file is deleted


def receive(installation: Installation, inbox: Inbox, store: Path, wanted: Mapping[str, int]) -> None:
    """Ensure that ``store`` has each of ``wanted`` (SHA-256 -> size). The client sends the missing files."""
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
    """Create the folder ``tree`` with exactly these ``(path, sha256, size, is_executable)``, then rename it to its
    place.
    """
    beside = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o700)
    now = time.time()
    for path, name, _, executable in entries:
        target, source = beside / path, store / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)  # a copy, not a link, as a task may write to its file
        if executable:
            target.chmod(0o755)
        os.utime(source, (now, now))
    shutil.rmtree(tree, ignore_errors=True)
    beside.rename(tree)


def forget(store: Path) -> None:
    """Delete files that were not used for a long time, and partial files of a killed installer."""
    limit = time.time() - _KEPT_S
    with suppress(OSError), os.scandir(store) as entries:
        for entry in entries:
            if entry.stat().st_mtime < limit:
                Path(entry.path).unlink()


def _has(path: Path, size: int) -> bool:
    """Return whether the file has the content for its name. After a power cut it may be incomplete."""
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
