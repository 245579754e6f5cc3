"""Memory for large values: allocate it, fill it, and check whether anything can change it."""

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

COPY_BYTES = 4 << 20  # bytes to copy between two updates of the progress
AT_ONCE_BYTES = 256 * 1024  # below this size, a copy and its key take 0.2 ms, so a thread does not pay off


@dataclass(slots=True, eq=False)
class Filled:
    """The progress of a buffer that is filled from its beginning."""

    at_bytes: int = 0


class OwnMemory(mmap.mmap):
    """The memory of a copy. Nothing changes it after it is filled."""


def is_fixed(part: Part) -> bool:
    """Return whether nothing can change a buffer: it is `bytes`, an `OwnMemory`, or a view of one of these."""
    owner: Any = part
    while (kind := type(owner)) is not bytes and kind is not OwnMemory:
        if kind is memoryview:
            owner = owner.obj
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            owner = owner.base  # the buffer of an array from numpy.frombuffer; None for an array that owns its memory
        else:
            return False
    return True


def copy_of(parts: Sequence[Part], size_bytes: int, kind: type[mmap.mmap] = mmap.mmap) -> Part:
    """Copy the parts in pieces, and release the GIL between two pieces."""
    if size_bytes <= AT_ONCE_BYTES:
        return b"".join(parts)
    buffer = huge_buffer(size_bytes, kind)
    copy_into(memoryview(buffer), parts, Filled())
    return buffer


def copy_into(view: memoryview, parts: Sequence[Part], filled: Filled) -> None:
    from ..wire import large_copy  # this imports ctypes, which few programs need

    for part in parts:
        rest = memoryview(part).cast("B")
        while rest:
            piece, rest = rest[:COPY_BYTES], rest[COPY_BYTES:]
            at = filled.at_bytes
            large_copy.copy(view[at : at + len(piece)], piece)
            filled.at_bytes = at + len(piece)


def huge_buffer(size_bytes: int, kind: type[mmap.mmap] | None = None) -> mmap.mmap:
    """Allocate private anonymous memory, in huge pages if possible.

    Its first write runs at 10 GB/s, not 1.5 as a bytearray's (measured).

    `mmap` alone would allocate shared memory, which by default is never in huge pages.

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
