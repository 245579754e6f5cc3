"""Requests by signal from a node to a busy worker: for its stacks, and for a profile.

Stacks: on a signal, `faulthandler` writes the stacks in C, without the interpreter's lock, and without ending the
process, to the worker's memory file (`StackFile`). A write to a file never blocks, unlike a write to a full pipe. The
file begins with the worker's pid and the number of the file's descriptor in the worker. A note for each thread follows:
its attempt, its number and the time of its last step. The stacks come last.

Profiles: `ProfileRequest` is the content of a file in the node's folder. A second signal announces the file.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import mmap
import os
import signal
import struct
import threading
import time
from pathlib import Path

from ...lazy_named_tuple import NamedTuple

# A real-time signal that no known software uses. (Slurm, submitit and Lightning use SIGUSR1 and SIGUSR2, libraries use
# the other old signals, libc reserves the first two or three real-time signals, and valgrind the last.)
STACK_SIGNAL = signal.SIGRTMIN + 11
_HEAD = struct.Struct("=II")
_NOTE = struct.Struct("=QQQ")  # attempt or 0, thread (`threading.get_ident`), time of the last step (ns) or 0
_STEP = struct.Struct("=Q")
_STEP_AT = _NOTE.size - _STEP.size


class TaskNote(NamedTuple):
    attempt: int
    thread: int
    stepped_ns: int  # time of the last step, by `time.monotonic_ns`; 0: none


def make_stack_file(threads: int) -> int:
    """Return the descriptor of a new memory file, for a worker that runs tasks in ``threads`` threads.

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
    """The memory file in its worker: installs the handler of the signal, also for children that tasks fork.

    `faulthandler` reads frames without the interpreter's lock, and may crash on the frames of another thread that is
    running. Therefore each thread writes only its own frames, and the node signals each thread.

    Args:
        fd: the descriptor of the memory file.
        locked: whether the main thread writes the stacks of all threads, while it holds the interpreter's lock. Then
            no task may run in the main thread.
    """

    def __init__(self, fd: int, *, locked: bool) -> None:
        self._fd = fd
        self._notes = mmap.mmap(fd, os.fstat(fd).st_size)
        if locked:
            signal.signal(STACK_SIGNAL, self._dump)
        else:
            faulthandler.register(STACK_SIGNAL, fd, all_threads=False, chain=False)
        _HEAD.pack_into(self._notes, 0, os.getpid(), fd)

    def began(self, place: int, attempt: int) -> None:
        """Record which attempt this thread, the worker's thread with the index ``place``, runs; 0: none."""
        _NOTE.pack_into(self._notes, _at(place), attempt, threading.get_ident(), 0)

    def stepped(self, place: int) -> None:
        _STEP.pack_into(self._notes, _at(place) + _STEP_AT, time.monotonic_ns())

    def _dump(self, *_: object) -> None:
        """Write the stacks. The signal is blocked meanwhile: so the node sees that the output is not complete."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {STACK_SIGNAL})
        try:
            faulthandler.dump_traceback(self._fd, all_threads=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def read_head(fd: int) -> tuple[int, int]:
    """Return the worker's pid and the number of the file's descriptor there; (0, 0) if the worker has not begun."""
    pid, number = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    return pid, number


def read_notes(fd: int, threads: int) -> list[TaskNote]:
    raw = os.pread(fd, threads * _NOTE.size, _HEAD.size)
    return [TaskNote(*each) for each in _NOTE.iter_unpack(raw)]


def stacks_at(threads: int) -> int:
    """Return the offset in the file at which the stacks begin, after the notes of ``threads`` threads."""
    return _HEAD.size + threads * _NOTE.size


def _at(place: int) -> int:
    return _HEAD.size + place * _NOTE.size


PROFILE_SIGNAL = signal.SIGRTMIN + 12  # a real-time signal that no known software uses, as `STACK_SIGNAL`


class ProfileRequest(NamedTuple):
    """A request for a profile. The profile ends after ``steps`` training steps (0: no limit) or after ``seconds``."""

    attempt: int
    name: str
    steps: int
    seconds: float
    skip: int = 0  # number of training steps before the profile begins

    def written(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def read(cls, content: bytes) -> ProfileRequest:
        return cls(*json.loads(content))


def request_file(folder: Path, pid: int, attempt: int) -> Path:
    return folder / f"profile-{pid}-{attempt}.ask"


def request_files(folder: Path, pid: int) -> list[Path]:
    """Return the request files for all tasks of a process."""
    return sorted(folder.glob(f"profile-{pid}-*.ask"))
