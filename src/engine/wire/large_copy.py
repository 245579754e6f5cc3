"""Copying of large memory without holding Python's lock (GIL), and into huge pages if the kernel supports them."""

from __future__ import annotations

import ctypes
import mmap

COPY_BYTES = 16 << 20  # copied per step: Python handles a keyboard interrupt between two steps
PIECE_BYTES = 1 << 20  # copied per step while Python's lock (GIL) is held
HUGE_PAGE_BYTES = 2 << 20
RELEASE_BYTES = 8 << 20  # released per step; a step takes 0.3 ms if the memory consists of small pages
_POPULATE_WRITE = 23  # <linux/mman.h>: MADV_POPULATE_WRITE
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


def copy(target: memoryview, source: memoryview) -> None:
    """Copy all of ``source`` into ``target``, which has the same length.

    ``target`` should be memory that was never accessed: the kernel can then use huge pages, which makes the first
    access 8 times and freeing the memory 10 times faster. If ``source`` is read-only, ctypes cannot get its address,
    and the copy holds Python's lock (GIL), piece by piece.
    """
    size = len(source)
    if source.readonly or size <= PIECE_BYTES:
        for at in range(0, size, PIECE_BYTES):
            piece = source[at : at + PIECE_BYTES]
            target[at : at + len(piece)] = piece
        return
    to, of = _address(target), _address(source)
    if _HUGE is not None:
        begin = -(-to // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        if (whole := (to + size) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - begin) > 0:
            _madvise(begin, whole, _HUGE)  # the kernel may refuse huge pages: the copy still works
    for at in range(0, size, COPY_BYTES):
        ctypes.memmove(to + at, of + at, min(COPY_BYTES, size - at))


def make_ready(target: memoryview) -> None:
    """Make the kernel allocate the pages of new memory. The contents of the memory do not change.

    The memory must begin at a page boundary. On kernels before 5.14 this function has no effect.
    """
    _madvise(_address(target), len(target), _POPULATE_WRITE)


def give_back(target: memoryview) -> None:
    """Return the pages of writable memory to the kernel. The contents of the memory are lost.

    The memory is released in steps: while a step runs, all threads of this program that need memory from the kernel
    must wait. Without steps, releasing 2 GiB of small pages would block them for 0.2 s.
    """
    at = _address(target)
    for done in range(0, len(target), RELEASE_BYTES):
        _madvise(at + done, min(RELEASE_BYTES, len(target) - done), mmap.MADV_DONTNEED)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
