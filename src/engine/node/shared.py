"""Values that tasks of a node share: sent there once, mapped once per worker, unpickled by each task that refers to it.

Arrays lie over the mapping itself, which every worker of the node has in common: they are read-only, as a change would
be seen by other tasks. What surrounds them is each task's own.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..wire import values

_mapped: dict[str, mmap.mmap] = {}


def adopt(name: str, fds: list[int]) -> None:
    """Take the blob ``name``, which came as the first of ``fds``."""
    fd = fds.pop(0)
    try:
        _mapped[name] = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def drop(names: Iterable[str]) -> None:
    """Forget the mappings of these blobs; objects that still refer to a mapping keep it."""
    for name in names:
        _mapped.pop(name, None)


def resolve(name: str, sizes: Sequence[int] | None) -> Any:
    """Return the value: what an `engine.serialization.shared.Shared` unpickles as.

    Raises:
        LookupError: this process was not given the value.
    """
    mapping = _mapped.get(name)
    if mapping is None:
        raise LookupError(f"the shared value {name} is not in this process: it was closed, or is another pool's")
    return values.load(mapping, sizes)
