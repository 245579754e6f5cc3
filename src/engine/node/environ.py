"""An environment variable that has another value for every task.

glibc keeps every value that `setenv` was ever given, and looks through them all: 700 bytes a task for ever, and 2 us.
What `putenv` was given is ours, and is written over.
"""

from __future__ import annotations

import ctypes
import os


class Variable:
    """A variable that this process sees, Python and C alike, and that the processes it starts see."""

    def __init__(self, name: str) -> None:
        self._name = os.fsencode(name)
        self._place = ctypes.create_string_buffer(0)

    def set(self, text: str) -> None:
        value = os.fsencode(text)
        entry = b"%b=%b" % (self._name, value)
        if len(entry) < len(self._place):
            self._place.value = entry
            _putenv(self._place)  # again: the task before may have set the variable itself
        else:
            place = ctypes.create_string_buffer(entry, 2 * len(entry))
            _putenv(place)
            self._place = place
        os.environ._data[self._name] = value  # type: ignore[attr-defined]  # its own putenv would be another setenv


_putenv = ctypes.PyDLL(None).putenv
