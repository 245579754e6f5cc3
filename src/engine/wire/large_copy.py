"""Copies of large memory without Python's lock, into huge pages if the kernel has any."""

from __future__ import annotations

import ctypes
import mmap

COPY_BYTES = 16 << 20  # bytes per copy: a keyboard interrupt is handled between two copies
PIECE_BYTES = 1 << 20  # bytes per copy while Python's lock is held
HUGE_PAGE_BYTES = 2 << 20
RELEASE_BYTES = 8 << 20  # bytes per release, which takes 0.3 ms in small pages
_POPULATE_WRITE = 23  # <linux/mman.h>: MADV_POPULATE_WRITE
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


def copy(target: memoryview, source: memoryview) -> None:
    """Copy all of ``source`` into ``target``, which has the same length.

    ``target`` should be new memory that nothing has touched before: in huge pages, the first touch takes an eighth of
    the time, and freeing it a tenth. If the source is read-only, ctypes cannot get its address: then pieces are copied
    with Python's lock held.
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
            _madvise(begin, whole, _HUGE)  # if the kernel refuses this, the copy still works
    for at in range(0, size, COPY_BYTES):
        ctypes.memmove(to + at, of + at, min(COPY_BYTES, size - at))


def make_ready(target: memoryview) -> None:
    """Have the kernel allocate new memory, which must begin at a page boundary. Its contents stay.

    Kernels before 5.14 do nothing.
    """
    _madvise(_address(target), len(target), _POPULATE_WRITE)


def give_back(target: memoryview) -> None:
    """Have the kernel take back writable memory; its contents are lost.

    The memory is released in steps, because other requests to the kernel for this program's memory, from any thread,
    have to wait meanwhile. Unmapping 2 GiB in small pages takes 0.2 s.
    """
    at = _address(target)
    for done in range(0, len(target), RELEASE_BYTES):
        _madvise(at + done, min(RELEASE_BYTES, len(target) - done), mmap.MADV_DONTNEED)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
