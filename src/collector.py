"""Python's collector of garbage, at rest while modules are imported: it would look through them, and find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """Disable Python's collector in this block, which must not await: other work of the program might leave garbage.

    Objects of the block count as old afterwards, as modules stay. Else the collector would go through all of them at
    once, which takes longer than without the pause.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # objects that the program has frozen stay frozen
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
