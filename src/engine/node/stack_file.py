"""A worker's memory file for stacks: `faulthandler` writes them there on a signal, and tasks note their state.

`faulthandler` answers in C, without the interpreter's lock, and ends nothing. A file never makes it wait, as a full
pipe would. The file begins with the worker's pid and the number that the file has there, and a note for each of its
threads: the attempt, the thread and the time of its last step. The stacks follow.
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

# A real-time signal: SIGUSR1 and SIGUSR2 belong to Slurm, submitit and Lightning, and libraries take other old ones.
# Of the real-time ones libc keeps the first two or three, valgrind the last; nobody is known to use this one.
SIGNAL = signal.SIGRTMIN + 11
_HEAD = struct.Struct("=II")
_NOTE = struct.Struct("=QQQ")  # the attempt, 0: none; the thread, as in `threading.get_ident`; the step, in ns, 0: none
_STEP = struct.Struct("=Q")
_STEP_AT = _NOTE.size - _STEP.size


class Note(NamedTuple):
    attempt: int
    thread: int
    stepped_ns: int  # by `time.monotonic_ns`


def make(threads: int) -> int:
    """Return the descriptor of a new file for a worker with so many threads. OSError: there are none left."""
    fd = os.memfd_create("outrider-stacks", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _HEAD.size + threads * _NOTE.size)
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    except OSError:
        os.close(fd)
        raise
    return fd


class StackFile:
    """The worker's side: answers the signal from now on, also in children that its tasks fork.

    `faulthandler` reads frames without the interpreter's lock, and may crash on those of a thread that runs meanwhile.
    So each thread writes only its own frames, and the node sends the signal to each. ``locked``: those of all threads
    are written with the lock held, by the main thread, which must be ours and run no task.
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
        """Note that the attempt runs in this thread, the ``place``-th of the worker; 0: it has ended."""
        _NOTE.pack_into(self._notes, _at(place), attempt, threading.get_ident(), 0)

    def stepped(self, place: int) -> None:
        _STEP.pack_into(self._notes, _at(place) + _STEP_AT, time.monotonic_ns())

    def _dump(self, *_: object) -> None:
        """Write the stacks. The signal is blocked meanwhile, which shows the node that more will come."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
        try:
            faulthandler.dump_traceback(self._fd, all_threads=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def read_head(fd: int) -> tuple[int, int]:
    """Return the worker's pid and the number of its descriptor; zeros: it has not begun."""
    pid, number = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    return pid, number


def read_notes(fd: int, threads: int) -> list[Note]:
    raw = os.pread(fd, threads * _NOTE.size, _HEAD.size)
    return [Note(*each) for each in _NOTE.iter_unpack(raw)]


def stacks_at(threads: int) -> int:
    """Return where the stacks begin."""
    return _HEAD.size + threads * _NOTE.size


def _at(place: int) -> int:
    return _HEAD.size + place * _NOTE.size
