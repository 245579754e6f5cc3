"""Fill the work folder of a node to the last byte, if the folder is a small file system of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...api.errors import SpecError
from .processes import Process

BALLAST = ".chaos-ballast"
MOST_BYTES = 4 << 30  # largest disk to fill; larger disks are not meant for tests


def check(provider: Any) -> None:
    """Check that the nodes' disks may be filled.

    Raises:
        SpecError: the disks are this computer's own disk, or too large.
    """
    if provider.work_mib is None:
        raise SpecError(
            "FullDisk would fill this computer's own disk: give each node a small one, provider=Local(work_mib=64)."
        )
    if provider.work_mib << 20 > MOST_BYTES:
        raise SpecError(f"FullDisk is for disks of at most {MOST_BYTES >> 20} MiB, not {provider!r}.")


def has_room(work: Path, member: Process) -> bool:
    """Return whether ``work`` is a small disk of the node's own that is not filled yet."""
    seen = _seen(work, member)
    return _is_own(seen) and not (seen / BALLAST).exists()


@contextmanager
def full(work: Path, member: Process) -> Iterator[None]:
    """Fill ``work`` while the block runs. ``member``: a process with this mount, as each node has its own mounts."""
    ballast = _seen(work, member) / BALLAST
    ours = has_room(work, member)
    try:
        if ours:
            _fill(ballast)
        yield
    finally:
        if ours:
            with suppress(OSError):  # the node is gone, and its disk with it
                ballast.unlink()


def _seen(work: Path, member: Process) -> Path:
    return Path(f"/proc/{member.pid}/root{work}")


def _is_own(directory: Path) -> bool:
    try:
        size = os.statvfs(directory)
        own = os.stat(directory).st_dev != os.stat(directory.parent).st_dev  # noqa: PTH116 - follows /proc's link
    except OSError:
        return False
    return own and size.f_blocks * size.f_frsize <= MOST_BYTES


def _fill(ballast: Path) -> None:
    """Write a file until the disk is full: first in whole blocks, then in smaller and smaller ones."""
    with suppress(OSError), ballast.open("xb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
