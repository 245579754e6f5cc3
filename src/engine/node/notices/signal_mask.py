"""Signals that announce a machine's end reach every process on it: ours live on, all others do as ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

_ours: set[int] = set()  # this process, where it is one


def shield(numbers: Iterable[int]) -> None:
    """From now on these do not end this process. For each of ours: a forked child of another is not shielded.

    A handler, and not SIG_IGN: what a task executes would inherit that, and then nobody could end it with SIGTERM.
    """
    _ours.clear()
    _ours.add(os.getpid())
    for number in numbers:
        signal.signal(number, _heard)


def _heard(number: int, frame: object) -> None:
    del frame
    if os.getpid() not in _ours:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
