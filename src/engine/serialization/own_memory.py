"""Memory for large values. Functions allocate memory, copy values into it, and check whether memory is immutable."""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...lazy_dataclass import dataclass

COPY_BYTES = 4 << 20  # bytes that are copied between two updates of the progress
AT_ONCE_BYTES = 256 * 1024  # smaller values are copied and hashed without a thread, because this takes only 0.2 ms

Part = bytes | bytearray | memoryview | mmap.mmap


@dataclass(slots=True, eq=False)
class Filled:
    """The progress of filling a buffer: the bytes up to ``at_bytes`` are filled."""

    at_bytes: int = 0


class OwnMemory(mmap.mmap):
    """The memory of a copy. It must not be changed after it is filled."""


def is_fixed(part: Part) -> bool:
    """Return whether a buffer is certainly immutable: it is `bytes`, an `OwnMemory`, or a view of these."""
    owner: Any = part
    while (kind := type(owner)) is not bytes and kind is not OwnMemory:
        if kind is memoryview:
            owner = owner.obj
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            owner = owner.base  # the memory behind an array of numpy.frombuffer; None for an array that owns its memory
        else:
            return False
    return True


def copy_of(parts: Sequence[Part], size_bytes: int, kind: type[mmap.mmap] = mmap.mmap) -> Part:
    """Copy the parts into one buffer, piece by piece. Between two pieces, other Python threads can run."""
    if size_bytes <= AT_ONCE_BYTES:
        return b"".join(parts)
    buffer = huge_buffer(size_bytes, kind)
    copy_into(memoryview(buffer), parts, Filled())
    return buffer


def copy_into(view: memoryview, parts: Sequence[Part], filled: Filled) -> None:
    from ..wire import large_copy  # imported here, because it imports ctypes, which few programs need

    for part in parts:
        rest = memoryview(part).cast("B")
        while rest:
            piece, rest = rest[:COPY_BYTES], rest[COPY_BYTES:]
            at = filled.at_bytes
            large_copy.copy(view[at : at + len(piece)], piece)
            filled.at_bytes = at + len(piece)


def huge_buffer(size_bytes: int, kind: type[mmap.mmap] | None = None) -> mmap.mmap:
    """Allocate private anonymous memory, which uses huge pages if possible.

    The first write to it runs at 10 GB/s; the first write to a bytearray runs at 1.5 GB/s (measured). The default of
    `mmap` is shared memory, for which kernels normally do not use huge pages.

    Raises:
        OSError: the computer has less memory and swap. The check is needed for kernels that overcommit memory: they
            would allocate any size.
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
