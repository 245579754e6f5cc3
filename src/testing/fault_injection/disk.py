"""Fill the work folder of a node to the last byte, if the folder is a small file system of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...engine.api.errors import SpecError
from .processes import Process

BALLAST = ".chaos-ballast"
MOST_BYTES = 4 << 30  # the largest disk that a fault may fill; no test needs a larger disk


def check(provider: Any) -> None:
    """Check that a `FullDisk` fault may fill the nodes' disks.

    Raises:
        SpecError: the nodes use this computer's own disk, or their disks are larger than `MOST_BYTES`.
    """
    if provider.work_mib is None:
        raise SpecError(
            "FullDisk would fill this computer's own disk: give each node a small one, provider=Local(work_mib=64)."
        )
    if provider.work_mib << 20 > MOST_BYTES:
        raise SpecError(f"FullDisk is for disks of at most {MOST_BYTES >> 20} MiB, not {provider!r}.")


def has_room(work: Path, member: Process) -> bool:
    """Return whether the node's folder ``work`` is a small disk of its own that no fault has filled yet."""
    seen = _seen(work, member)
    return _is_own(seen) and not (seen / BALLAST).exists()


@contextmanager
def full(work: Path, member: Process) -> Iterator[None]:
    """Keep the disk ``work`` full while the block runs.

    ``member`` is a process of the node: each node has its own mounts, and the disk is reached through this process.
    """
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
    """Write the file ``ballast`` until the disk is full: first in blocks of 1 MiB, at last byte by byte."""
    with suppress(OSError), ballast.open("xb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
