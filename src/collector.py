"""Python's collector of garbage, at rest while modules are imported: it would look through them, and find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """Collect nothing in this block, which must not await: what a program does meanwhile may leave garbage.

    What was made in it counts as old afterwards, as modules stay. Else the collector would go through all of it at
    once, which takes longer than if it had not rested.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # what the program has frozen stays so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
