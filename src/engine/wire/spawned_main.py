"""The ``__main__`` of a process spawned by a task: it has the names of the task's script, but does not run the script.

When `multiprocessing` spawns a child, it asks for the module name of its own ``__main__``, and first runs that module
in the child. In a worker, this module is the answer. The names are in a memory file of the worker.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .script_modules import MAIN, Namespace, begin

if TYPE_CHECKING:
    from types import ModuleType

NAMES = "OUTRIDER_SPAWNED_MAIN"  # the environment variable with the path of the memory file
_HEAD_BYTES = 16  # the file begins with the offset and the size of the newest pickle of the script's names
_ASKS = "get_preparation_data"  # the function of multiprocessing and loky that asks for the module name


class SpawningSpec:
    """The spec of a worker's ``__main__``, with the attributes of a `ModuleSpec`."""

    loader = origin = cached = submodule_search_locations = None
    parent, has_location = "", False

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._file, self._pid, self._data = -1, 0, b""

    @property
    def name(self) -> str:
        """Return the module's name. If a child is about to be spawned, write the names for the child."""
        if sys._getframe(1).f_code.co_name != _ASKS:
            return MAIN
        from . import pickler

        if self._file < 0 or self._pid != os.getpid():
            self._file, self._pid = os.memfd_create("outrider-main", os.MFD_CLOEXEC), os.getpid()
            self._data = b""
            os.environ[NAMES] = f"/proc/{self._pid}/fd/{self._file}"
        names, *others = self._namespace.names()
        data = pickle.dumps((pickler.dumps_what_can(names), *others), 5)
        if data != self._data:  # append: a child may still be reading the older names
            end = max(os.fstat(self._file).st_size, _HEAD_BYTES)
            os.pwrite(self._file, data, end)
            os.pwrite(self._file, end.to_bytes(8, "big") + len(data).to_bytes(8, "big"), 0)
            self._data = data
        return f"{__package__}.spawned_main"


def names_of_parent() -> dict[str, object]:
    """Return the names in ``__main__`` of the worker that spawned this process; empty if the worker has ended."""
    try:
        data = Path(os.environ[NAMES]).read_bytes()
        at = int.from_bytes(data[:8], "big")
        data = data[at : at + int.from_bytes(data[8:_HEAD_BYTES], "big")]
    except (KeyError, OSError):
        return {}
    names, rest, file = pickle.loads(data)
    main: ModuleType | None = sys.modules.get(MAIN)
    namespace = Namespace(rest)
    begin(namespace)
    try:
        names_: dict[str, object] = {**pickle.loads(names), "__getattr__": namespace.later}
    finally:
        if main is not None:
            sys.modules[MAIN] = main
    return names_ if file is None else {**names_, "__file__": file}


if __name__ != f"{__package__}.spawned_main":
    globals().update(names_of_parent())
