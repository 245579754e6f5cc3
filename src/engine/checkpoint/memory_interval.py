"""Decide which steps a rank keeps in memory, and check how much memory that takes. No I/O, no clock.

A save that would have to wait for the previous save is skipped. After that, only every second step is saved, then every
fourth, and so on, until no save must wait. Each rank decides alone, but a training can resume only from a step that
every rank has kept. So the steps are multiples of powers of two: the steps of the slowest rank are also steps of all
other ranks.

KEEP-1: the steps that a rank keeps are multiples of ``every`` times a power of two, or the first step after such a
    multiple.
KEEP-2: if the saves of all ranks take at most n steps, n being a power of two, then in any 8 * n * ``every`` steps
    there is a step that all ranks keep.
"""

from __future__ import annotations

MOST_STRIDE = 256
AGAIN_AFTER = 8  # after this many kept steps in a row, try to save twice as often


class MemoryInterval:
    def __init__(self, every: int) -> None:
        self._every = every
        self._last = 0
        self._in_row = 0
        self.stride = 1

    def resumed(self, step: int) -> None:
        self._last = step // self._every

    def due(self, step: int) -> bool:
        number = step // self._every
        return number // self.stride > self._last // self.stride

    def done(self, step: int, *, kept: bool) -> None:
        """Record that a due step was kept, or was skipped because the previous save is still running."""
        self._last = step // self._every
        self._in_row = self._in_row + 1 if kept else 0
        if not kept:
            self.stride = min(2 * self.stride, MOST_STRIDE)
        elif self._in_row == AGAIN_AFTER and self.stride > 1:
            self._in_row = 0
            self.stride //= 2


def too_much(state_bytes: int, *, copies: int, ranks_here: int, ranks: int, memory_bytes: int) -> str:
    """Return the reason why the ranks' states do not fit into memory; "": they fit.

    Each state needs two slots of memory on its rank's node and on each other node that holds a copy. All states
    together may use half of the computer's memory.

    Args:
        state_bytes: The size of one rank's state.
        copies: The number of nodes that keep each state.
        ranks_here: How many of the ranks run on this computer. If all do, their nodes share one copy in memory.
        ranks: The number of ranks.
        memory_bytes: The memory of this computer.
    """
    each = 2 * state_bytes * (1 if ranks_here == ranks else copies)
    if ranks_here * each <= memory_bytes // 2:
        return ""
    return (
        f"the state of a rank takes {_size(state_bytes)}, and {ranks_here} of them would take "
        f"{_size(ranks_here * each)} of this computer's {_size(memory_bytes)}, of which half may be used"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
