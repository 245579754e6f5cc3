"""Background import of modules that a pool may need only later.

A pool that has been open for a while imports all of them, because the package on disk may be upgraded meanwhile. The
import of a module of another version may fail, or the module may not work with those in memory.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module

AFTER_S = 10.0  # seconds from the pool's start to the import, which takes 40 ms in a thread: shorter programs save it
_PACKAGE = __name__.partition(".engine.")[0]
ROOMS = (
    "engine.api.html",
    "engine.client.completed_calls",
    "engine.client.file_transfer",
    "engine.client.grouping",
    "engine.client.mapping",
    "engine.client.profiles",
    "engine.client.run_requests",
    "engine.client.stacks",
    "engine.client.streaming",
    "engine.node.stack_text",
    "engine.observe.notebook_html",
    "engine.serialization.pickling_errors",
    "engine.wire.large_copy",
)


def load_rooms() -> None:
    """Import the modules. Ignore errors: the first code that uses a broken module gets the error."""
    for room in ROOMS:
        with suppress(ImportError):
            import_module(f"{_PACKAGE}.{room}")


def load_in_background() -> None:
    threading.Thread(target=load_rooms, name="outrider-preloading", daemon=True).start()
