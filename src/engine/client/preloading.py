"""Modules that a pool may need only later. A pool that lives for long loads them: its package may be upgraded on disk
meanwhile, and a module of another version would fail to be imported, or not fit the others.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module

AFTER_S = 10.0  # short programs do not pay for it: 40 ms in a thread
_PACKAGE = __name__.partition(".engine.")[0]
ROOMS = (
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
    "engine.runs.logged",
    "engine.serialization.pickling_errors",
    "engine.wire.large_copy",
)


def load_rooms() -> None:
    """Import the modules. An import that fails is left to the module's first user."""
    for room in ROOMS:
        with suppress(ImportError):
            import_module(f"{_PACKAGE}.{room}")


def load_in_background() -> None:
    threading.Thread(target=load_rooms, name="outrider-preloading", daemon=True).start()
