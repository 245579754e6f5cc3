"""The ``__main__`` of a process that a task spawns. It has the names of the task's script, and does not run the script.

When `multiprocessing` spawns a child process, it reads the name of the parent's ``__main__`` module, and runs the
module of that name in the child. In a worker, that name leads to this module. It loads the script's names, which the
worker writes to a memory file.
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

NAMES = "OUTRIDER_SPAWNED_MAIN"  # environment variable that contains the path of the memory file
# size of the file's head: the offset (8 bytes) and the size (8 bytes) of the newest pickle in the file
_HEAD_BYTES = 16
# function of multiprocessing and loky that reads the name of the parent's `__main__` module
_ASKS = "get_preparation_data"


class SpawningSpec:
    """The ``__spec__`` of a worker's ``__main__`` module. It has the attributes of a `ModuleSpec`."""

    loader = origin = cached = submodule_search_locations = None
    parent, has_location = "", False

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._file, self._pid, self._data = -1, 0, b""

    @property
    def name(self) -> str:
        """Return the module's name.

        If `multiprocessing` reads the name in order to spawn a child process, write the script's names to the memory
        file, and return the name of this module.
        """
        if sys._getframe(1).f_code.co_name != _ASKS:
            return MAIN
        from . import pickler

        if self._file < 0 or self._pid != os.getpid():
            self._file, self._pid = os.memfd_create("outrider-main", os.MFD_CLOEXEC), os.getpid()
            self._data = b""
            os.environ[NAMES] = f"/proc/{self._pid}/fd/{self._file}"
        names, *others = self._namespace.names()
        data = pickle.dumps((pickler.dumps_what_can(names), *others), 5)
        if data != self._data:  # append, because a child process may still be reading the previous pickle
            end = max(os.fstat(self._file).st_size, _HEAD_BYTES)
            os.pwrite(self._file, data, end)
            os.pwrite(self._file, end.to_bytes(8, "big") + len(data).to_bytes(8, "big"), 0)
            self._data = data
        return f"{__package__}.spawned_main"


def names_of_parent() -> dict[str, object]:
    """Return the names and values in ``__main__`` of the worker that spawned this process.

    Empty if that worker has ended.
    """
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
