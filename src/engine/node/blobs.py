"""Blobs in this machine's memory: memfds, handed on as file descriptors, mapped and never copied.

A task's own arguments and result are mapped privately. Shared values are sent to a node once, mapped once per worker,
and unpickled by each task that refers to one: arrays lie over the mapping itself, which every worker of the node has in
common, so they are read-only, as a change would be seen by other tasks. What surrounds them is each task's own.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..wire import values
from ..wire.messages import Value
from .pipe import write_all

_shared: dict[str, mmap.mmap] = {}


def write(parts: Sequence[bytes | memoryview]) -> int:
    """Make a new blob and return its descriptor."""
    fd = os.memfd_create("blob", os.MFD_CLOEXEC)
    try:
        write_all(fd, parts)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int) -> mmap.mmap:
    """Map a blob copy-on-write: arrays over it are writable, and nobody else sees the changes. Closes ``fd``."""
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)


def load(value: Value, fds: list[int]) -> Any:
    """Return the object of a value whose blob, if it has one, came as the first of ``fds`` (taken out and closed)."""
    if value.blob is None:
        return values.load(value.data, value.sizes)
    if not fds:
        raise LookupError(f"blob {value.blob!r} is not on this node")
    return values.load(mapped(fds.pop(0)), value.sizes)


def dump(obj: object, name: str) -> tuple[Value, list[int]]:
    """The other way round: a large object's blob is in the list, to be closed by the caller, and has no name yet.

    Raises:
        Unpicklable
    """
    dumped = values.dump(obj, name)
    if dumped.total <= values.INLINE_BYTES:
        return values.inline(dumped), []
    return Value(b"", dumped.sizes, ""), [write(dumped.parts)]


def adopt_shared(name: str, fds: list[int]) -> None:
    """Take the blob ``name``, which came as the first of ``fds``."""
    fd = fds.pop(0)
    try:
        _shared[name] = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def drop_shared(names: Iterable[str]) -> None:
    """Forget the mappings of these blobs; objects that still refer to a mapping keep it."""
    for name in names:
        _shared.pop(name, None)


def resolve_shared(name: str, sizes: Sequence[int] | None) -> Any:
    """Return the value: what an `engine.serialization.shared.Shared` unpickles as.

    Raises:
        LookupError: this process was not given the value.
    """
    mapping = _shared.get(name)
    if mapping is None:
        raise LookupError(f"the shared value {name} is not in this process: it was closed, or is another pool's")
    return values.load(mapping, sizes)
