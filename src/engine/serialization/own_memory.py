"""Memory for large values: its allocation, its filling, and the check whether anything can change it."""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass

if TYPE_CHECKING:
    from .payload import Part

COPY_BYTES = 4 << 20  # of a copy, between updates of its progress
AT_ONCE_BYTES = 256 * 1024  # of which a copy and its key take 0.2 ms: a thread is not worth it


@dataclass(slots=True, eq=False)
class Filled:
    """The progress of a buffer that is being filled from its beginning."""

    at_bytes: int = 0


class OwnMemory(mmap.mmap):
    """The memory of a copy, which nothing changes once it is filled."""


def is_fixed(part: Part) -> bool:
    """Return whether nothing can change a buffer: it is `bytes` or a copy made here, or a view of these."""
    owner: Any = part
    while (kind := type(owner)) is not bytes and kind is not OwnMemory:
        if kind is memoryview:
            owner = owner.obj
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            owner = owner.base  # as of numpy.frombuffer; of an array that owns its memory None
        else:
            return False
    return True


def copy_of(parts: Sequence[Part], size_bytes: int, kind: type[mmap.mmap] = mmap.mmap) -> Part:
    """Copy piece by piece: the GIL is released between two pieces."""
    if size_bytes <= AT_ONCE_BYTES:
        return b"".join(parts)
    buffer = huge_buffer(size_bytes, kind)
    copy_into(memoryview(buffer), parts, Filled())
    return buffer


def copy_into(view: memoryview, parts: Sequence[Part], filled: Filled) -> None:
    from ..wire import large_copy  # ctypes, which few programs need

    for part in parts:
        rest = memoryview(part).cast("B")
        while rest:
            piece, rest = rest[:COPY_BYTES], rest[COPY_BYTES:]
            at = filled.at_bytes
            large_copy.copy(view[at : at + len(piece)], piece)
            filled.at_bytes = at + len(piece)


def huge_buffer(size_bytes: int, kind: type[mmap.mmap] | None = None) -> mmap.mmap:
    """Anonymous memory, in huge pages where there are any: first touch at 10 GB/s, a bytearray's at 1.5 (measured).
    It is private: shared memory, as `mmap` takes by itself, is in huge pages nowhere by default.

    Raises:
        OSError: this computer has less memory. A kernel that always overcommits would map it all the same.
    """
    if size_bytes > memory_bytes() and size_bytes > memory_bytes() + _swap_bytes():
        raise OSError(errno.ENOMEM, f"{size_bytes:,} bytes are more than the memory of this computer")
    buffer = (kind or mmap.mmap)(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


@cache
def memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _swap_bytes() -> int:
    try:
        found = re.search(r"^SwapTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 0 if found is None else int(found[1]) * 1024
