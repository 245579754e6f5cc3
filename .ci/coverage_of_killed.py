"""A plugin of coverage.py that measures processes which are forked, end by `os._exit`, or are killed: those of a node.

coverage.py has patches for the first two (`patch = ["fork", "_exit"]`), but with them each generation of forks starts
one more measurement than the one before, and `os._exit` cannot be pickled. A process that is killed saves nothing as it
ends, so a forked process saves what it has run several times a second.
"""

from __future__ import annotations

import _thread  # `threading` counts its threads, and so do tests
import os
import threading
import time
from contextlib import suppress
from typing import NoReturn

from coverage import Coverage

INTERVAL_S = 0.2

_exit_at_once = os._exit
_saving = threading.Lock()  # held across a fork: the child has no thread that would ever release it


def coverage_init(_registry: object, _options: object) -> None:
    if os._exit is _exit_at_once:
        os._exit = _exit
        os.register_at_fork(before=_saving.acquire, after_in_parent=_saving.release, after_in_child=_forked)


def _exit(status: int) -> NoReturn:
    _save()
    _exit_at_once(status)


_exit.__module__, _exit.__qualname__ = "os", "_exit"  # so it is pickled by name, as the real one


def _forked() -> None:
    _saving.release()
    _thread.start_new_thread(_save_again_and_again, ())


def _save_again_and_again() -> None:
    while True:
        time.sleep(INTERVAL_S)
        _save()


def _save() -> None:
    # What fails here is of the tests' making: no descriptors are left, or no disk, or the interpreter ends.
    with _saving, suppress(Exception):
        if coverage := Coverage.current():
            coverage.get_data()
