"""The memory of an incoming blob: a thread has the kernel allocate it a little ahead of the bytes.

A kernel clears memory when it is touched first, 0.1 s for 1 GB in huge pages. In a virtual machine that gives back what
it does not use, such pages have to be found by the hypervisor first: up to 3 s for 1 GB, where small pages, of which
the kernel has kept some, take 0.5.

AHEAD-3: huge pages are taken until some are slow, and then small ones, unless these are slower still.
"""

from __future__ import annotations

import mmap
import time
from contextlib import suppress

from ...providers.threads import hand
from ..serialization.own_memory import huge_buffer

READY_BYTES = 32 << 20  # ahead of the written bytes
STEP_BYTES = 4 << 20  # at a time: other memory calls of this program wait meanwhile
SLOW = 1e-9  # seconds for a byte: ten times what huge pages take, and twice what small ones do
_SMALL = getattr(mmap, "MADV_NOHUGEPAGE", None)


class PageChoice:
    """The size of the next pages: huge, or small. No I/O, and no clock."""

    def __init__(self) -> None:
        self.huge = True
        self._slow_s = 0.0  # seconds for a byte in slow huge pages; 0: none were slow
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
    """The allocation of a `huge_buffer` that is written from its beginning on. When all is written, nothing here refers
    to its memory, so that the buffer can be closed.
    """

    def __init__(self, size_bytes: int) -> None:
        self.buffer = huge_buffer(size_bytes)
        self._size = size_bytes
        self._written = 0
        self._ready = 0 if size_bytes > STEP_BYTES else size_bytes  # which the kernel gives sooner than a thread begins
        self._choice = PageChoice()
        self._busy = False

    def written(self, at_bytes: int) -> None:
        """Handle that the buffer is written up to ``at_bytes``."""
        self._written = at_bytes
        if self._ready < self._wanted() and not self._busy:
            self._busy = True
            hand(self._make_ready)

    def _wanted(self) -> int:
        return min(self._written + READY_BYTES, self._size)

    def _make_ready(self) -> None:
        from ..wire import large_copy  # ctypes, which few programs need

        with suppress(ValueError):  # the buffer was filled, read and closed meanwhile
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
        """Return where the memory that is not allocated yet begins; the writer may have been faster."""
        return max(self._ready, self._written // STEP_BYTES * STEP_BYTES)
