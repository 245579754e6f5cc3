"""A pause of Python's garbage collector during imports, when it would search many objects and find no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """Disable Python's garbage collector in this block.

    The block must not await, because other tasks could create garbage.

    Afterwards, the objects made in the block are moved to the oldest generation, because modules stay in memory.
    Without that, the next collection would search all of them, which takes longer than the pause saves.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # objects that the program has frozen stay frozen
                gc.freeze()
                gc.unfreeze()  # moves the frozen objects to the oldest generation
            gc.enable()
