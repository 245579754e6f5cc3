"""The memory of an incoming blob: a thread makes the kernel allocate it a little ahead of the written bytes.

A kernel clears memory at the first access, which takes 0.1 s for 1 GB in huge pages. In a virtual machine that returns
unused memory to its host, the hypervisor must find huge pages first: up to 3 s for 1 GB. There, small pages, of which
the kernel has kept some, take 0.5 s.
AHEAD-3: use huge pages until some are slow, then small pages, unless small pages are even slower.
"""

from __future__ import annotations

import mmap
import time
from contextlib import suppress

from ...providers.shared.threads import hand
from ..serialization.own_memory import huge_buffer

READY_BYTES = 32 << 20  # bytes to allocate ahead of the written bytes
STEP_BYTES = 4 << 20  # bytes to allocate at a time: meanwhile, calls such as mmap wait in all threads of this process
# Pages count as slow if their allocation takes more seconds per byte than this: ten times as long as is usual for huge
# pages, and twice as long as is usual for small pages.
SLOW = 1e-9
_SMALL = getattr(mmap, "MADV_NOHUGEPAGE", None)


class PageChoice:
    """The choice of the size of the next pages: huge or small. No I/O, no clock."""

    def __init__(self) -> None:
        self.huge = True
        self._slow_s = 0.0  # seconds per byte that the slow huge pages took; 0: no huge pages were slow
        self._chosen = False

    def took(self, size_bytes: int, seconds: float) -> None:
        if self._chosen:
            return
        each_s = seconds / size_bytes
        if not self.huge:
            self.huge, self._chosen = each_s > self._slow_s, True
        elif each_s > SLOW:
            self.huge, self._slow_s = False, each_s


class MemoryAhead:
    """The allocation of a `huge_buffer` that is written from beginning to end.

    After the last byte, this object holds no reference to the memory, so that the buffer can be closed.
    """

    def __init__(self, size_bytes: int) -> None:
        self.buffer = huge_buffer(size_bytes)
        self._size = size_bytes
        self._written = 0
        # a small buffer needs no thread: the kernel allocates it faster than a thread starts
        self._ready = 0 if size_bytes > STEP_BYTES else size_bytes
        self._choice = PageChoice()
        self._busy = False

    def written(self, at_bytes: int) -> None:
        """Handle that the first ``at_bytes`` of the buffer are written."""
        self._written = at_bytes
        if self._ready < self._wanted() and not self._busy:
            self._busy = True
            hand(self._make_ready)

    def _wanted(self) -> int:
        return min(self._written + READY_BYTES, self._size)

    def _make_ready(self) -> None:
        from ..wire import large_copy  # this imports ctypes, which few programs need

        with suppress(ValueError):  # the buffer may have been filled, read and closed in the meantime
            while (at := self._next()) < self._wanted():
                with memoryview(self.buffer)[at : at + STEP_BYTES] as step:
                    if not self._choice.huge and _SMALL is not None:
                        self.buffer.madvise(_SMALL, at, len(step))
                    began = time.thread_time()
                    large_copy.make_ready(step)
                    self._choice.took(len(step), time.thread_time() - began)
                    self._ready = at + len(step)
        self._busy = False

    def _next(self) -> int:
        """Return the offset at which to allocate next: skip memory that the writer has filled in the meantime."""
        return max(self._ready, self._written // STEP_BYTES * STEP_BYTES)
