"""A worker's memory file for stacks: on a signal `faulthandler` writes the stacks, and tasks note their state.

`faulthandler` writes in C, without the interpreter's lock, and does not end the process. Writing to a file never
blocks, unlike writing to a full pipe. The file begins with the worker's pid and the file's descriptor number in the
worker, followed by a note for each of its threads: the attempt, the thread and the time of its last step. The stacks
follow.
"""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
import signal
import struct
import threading
import time

from ...lazy_named_tuple import NamedTuple

# A real-time signal: SIGUSR1 and SIGUSR2 are used by Slurm, submitit and Lightning, and libraries use other old
# signals. Of the real-time signals, libc reserves the first two or three, and valgrind the last; no known software uses
# this one.
SIGNAL = signal.SIGRTMIN + 11
_HEAD = struct.Struct("=II")
_NOTE = struct.Struct("=QQQ")  # (attempt, or 0; thread by `threading.get_ident`; time of the last step in ns, or 0)
_STEP = struct.Struct("=Q")
_STEP_AT = _NOTE.size - _STEP.size


class Note(NamedTuple):
    attempt: int
    thread: int
    stepped_ns: int  # by `time.monotonic_ns`


def make(threads: int) -> int:
    """Return the descriptor of a new file for a worker with so many threads.

    Raises OSError if no descriptor is left.
    """
    fd = os.memfd_create("outrider-stacks", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _HEAD.size + threads * _NOTE.size)
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    except OSError:
        os.close(fd)
        raise
    return fd


class StackFile:
    """The worker's end: handles the signal from now on, also in children that its tasks fork.

    `faulthandler` reads frames without the interpreter's lock, and may crash on the frames of another thread that is
    running. Therefore each thread writes only its own frames, and the node signals each thread.

    Args:
        fd: the memory file.
        locked: whether the main thread, which must run no task, writes the stacks of all threads while it holds the
            lock.
    """

    def __init__(self, fd: int, *, locked: bool) -> None:
        self._fd = fd
        self._notes = mmap.mmap(fd, os.fstat(fd).st_size)
        if locked:
            signal.signal(SIGNAL, self._dump)
        else:
            faulthandler.register(SIGNAL, fd, all_threads=False, chain=False)
        _HEAD.pack_into(self._notes, 0, os.getpid(), fd)

    def began(self, place: int, attempt: int) -> None:
        """Record that an attempt runs in the worker's ``place``-th thread; attempt 0: none does."""
        _NOTE.pack_into(self._notes, _at(place), attempt, threading.get_ident(), 0)

    def stepped(self, place: int) -> None:
        _STEP.pack_into(self._notes, _at(place) + _STEP_AT, time.monotonic_ns())

    def _dump(self, *_: object) -> None:
        """Write the stacks. The signal is blocked during this, which shows the node that more output will follow."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
        try:
            faulthandler.dump_traceback(self._fd, all_threads=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def read_head(fd: int) -> tuple[int, int]:
    """Return the worker's pid and its descriptor number of the file; zeros if the worker has not begun."""
    pid, number = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    return pid, number


def read_notes(fd: int, threads: int) -> list[Note]:
    raw = os.pread(fd, threads * _NOTE.size, _HEAD.size)
    return [Note(*each) for each in _NOTE.iter_unpack(raw)]


def stacks_at(threads: int) -> int:
    """Return the offset at which the stacks begin."""
    return _HEAD.size + threads * _NOTE.size


def _at(place: int) -> int:
    return _HEAD.size + place * _NOTE.size
