"""The ``__main__`` of a process spawned by a task: it has the names of the task's script, without running it.

`multiprocessing` asks for the name of its ``__main__``'s module when it spawns a child, and runs that module in the
child first. For the ``__main__`` of a worker this is the module; the names come in a file of the worker's memory.
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

NAMES = "OUTRIDER_SPAWNED_MAIN"  # the environment variable with the place of the names
_HEAD_BYTES = 16  # the offset and the size of the newest names in the file
_ASKS = "get_preparation_data"  # the function of multiprocessing, and of loky, that asks for the name


class SpawningSpec:
    """The spec of a worker's ``__main__``, with the attributes of a `ModuleSpec`."""

    loader = origin = cached = submodule_search_locations = None
    parent, has_location = "", False

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._file, self._pid, self._data = -1, 0, b""

    @property
    def name(self) -> str:
        """Return the module's name, and write the names for a child that is about to be spawned."""
        if sys._getframe(1).f_code.co_name != _ASKS:
            return MAIN
        from . import pickler

        if self._file < 0 or self._pid != os.getpid():
            self._file, self._pid = os.memfd_create("outrider-main", os.MFD_CLOEXEC), os.getpid()
            self._data = b""
            os.environ[NAMES] = f"/proc/{self._pid}/fd/{self._file}"
        names, *others = self._namespace.names()
        data = pickle.dumps((pickler.dumps_what_can(names), *others), 5)
        if data != self._data:  # older names stay in the file: a child may be reading them
            end = max(os.fstat(self._file).st_size, _HEAD_BYTES)
            os.pwrite(self._file, data, end)
            os.pwrite(self._file, end.to_bytes(8, "big") + len(data).to_bytes(8, "big"), 0)
            self._data = data
        return f"{__package__}.spawned_main"


def names_of_parent() -> dict[str, object]:
    """Return the names of the ``__main__`` of the worker that spawned this process; empty if it is gone."""
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
