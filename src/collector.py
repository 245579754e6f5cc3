"""A pause of Python's garbage collector during imports: it would search many new objects and find no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """Disable Python's garbage collector in this block.

    The block must not await, because other tasks could create garbage.

    Afterwards, the objects made in the block are moved to the collector's oldest generation, because modules stay in
    memory. Otherwise the next collection would search all these objects, which takes longer than the pause saves.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # if the program itself has frozen objects, `unfreeze` would undo that
                gc.freeze()
                gc.unfreeze()  # `freeze` and `unfreeze` together move all objects to the oldest generation
            gc.enable()
