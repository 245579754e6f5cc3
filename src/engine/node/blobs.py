"""Blobs in this machine's memory: memfds, handed on as file descriptors, mapped privately, never copied."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

from ..wire import values
from ..wire.messages import Value
from .pipe import write_all


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
