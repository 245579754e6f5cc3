"""Signals that announce a machine's end reach all its processes: the node's own survive them, others react as usual."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

_ours: set[int] = set()  # the pid of this process, if it is shielded


def shield(numbers: Iterable[int]) -> None:
    """Keep these signals from ending this process.

    Each process of ours calls this for itself: a child that another process forks is not shielded.

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
