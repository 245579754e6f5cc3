"""Limits of processes: file descriptors, a Slurm job's memory, and limits that a task may change for later tasks.

A task may change its process's resource limits, priority and CPUs, which the process's next tasks would inherit.
"""

from __future__ import annotations

import array
import errno
import functools
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ...lazy_named_tuple import NamedTuple

_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED = int(socket.MSG_CTRUNC)
_INT_BYTES = array.array("i").itemsize
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS}
_WATCHED = resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE


class Limits(NamedTuple):
    """The limits of a process that a task may change, and that then affect later tasks most."""

    resources: tuple[tuple[int, int], ...]
    priority: int  # the nice value; only root can lower it (raise the priority)
    cpus: frozenset[int]  # CPUs on which the main thread may run; a new thread inherits them for good


def receive(sock: socket.socket, size_bytes: int, descriptors: int, flags: int = 0) -> tuple[bytes, list[int] | None]:
    """Return one message (empty: the other end is closed) and its descriptors, which the caller must close.

    The list is None if this process has too few free descriptors for all that were sent. (In that case the kernel
    passes only some of them, and sets MSG_CTRUNC; the passed descriptors are closed here.)

    Args:
        descriptors: the maximum number of descriptors in the message.
        flags: a plain integer, not the standard library's enumeration, of which each ``|`` costs 1 us.

    Raises:
        BlockingIOError: there is no message, and ``flags`` or the socket are non-blocking.
    """
    ancillary_bytes = socket.CMSG_SPACE(descriptors * _INT_BYTES)
    body, ancillary, result_flags, _ = sock.recvmsg(size_bytes, ancillary_bytes, flags | _CLOEXEC)
    if not ancillary and not result_flags & _TRUNCATED:
        return body, []
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if result_flags & _TRUNCATED:
        for fd in fds:
            os.close(fd)
        return body, None
    return body, list(fds)


def is_shortage(error: BaseException | None) -> bool:
    """Return whether the error means that no file descriptor is left."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def story(who: str = "a process of this node") -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"{who} has no descriptors left, its limit is {limit}: raise it there "
        "(ulimit -n, or LimitNOFILE= of the service that starts it), or let tasks keep fewer files open"
    )


def raise_descriptors() -> tuple[int, int]:
    """Raise this process's soft limit of file descriptors to the hard limit; return both old limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # the hard limit exceeds the kernel's own limit (fs.nr_open)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def lower_descriptors(to: tuple[int, int]) -> None:
    """Lower the soft limit of file descriptors for user code, to the old value that `raise_descriptors` returned.

    The usual soft limit is 1,024, because select() fails with descriptors above 1,023.
    """
    with suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(to[0], hard), hard))


_LONG_US = 1000
_CHANGES = {
    "resource": ("setrlimit", "prlimit"),
    "os": ("nice", "setpriority", "sched_setaffinity"),
}
_calls = 0  # how often Python functions that change limits were called since the last check
_accepted: Limits | None = None  # the limits to compare with, if a setup or a library has changed them for good


def watched() -> Limits:
    """Return the current limits, and begin to count calls of Python's functions that change limits.

    Reading the limits from the kernel takes 10 us (measured), too long for each task: `spoiled` reads them only after
    such a call, or after a long task.
    """
    for module, names in _CHANGES.items():
        for name in names:
            if not hasattr(change := getattr(sys.modules[module], name), "__wrapped__"):
                noticed = _noticed(change)
                setattr(sys.modules[module], name, noticed)
                if module == "os":  # replace the function in its own module too, where `pickle` looks for it
                    setattr(sys.modules[change.__module__], name, noticed)
    return _current()


def spoiled(before: Limits, took_us: int) -> bool:
    """Restore the limits that a task has changed; return True if that is impossible.

    Only root can raise a hard limit again. Priority and CPUs cannot be restored, because each thread has its own
    values, and threads that the task has started have inherited the changed values.

    Args:
        before: the limits before the first task.
        took_us: duration of the task, in microseconds.
    """
    global _calls, _accepted  # noqa: PLW0603 - a process has one set of limits
    # after a short task (below 1 ms) without a counted call, the limits are not read
    if not _calls and took_us < _LONG_US:
        return False
    before, now = _accepted or before, _current()
    # a library's C code has changed priority or CPUs, as OpenMP does when it is imported: accept the new values
    if not _calls and now[1:] != before[1:]:
        _accepted = before = before._replace(priority=now.priority, cpus=now.cpus)
    spoiled = now != before and (now[1:] != before[1:] or not _restored(before))
    _calls = 0
    return spoiled


def accept() -> None:
    """Accept the current limits as normal, because a ``setup=`` function has set them, whose result stays."""
    global _calls, _accepted
    _calls, _accepted = 0, _current()


def _noticed(change: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(change)
    def changing(*arguments: Any, **named: Any) -> Any:
        global _calls  # noqa: PLW0603
        _calls += 1
        return change(*arguments, **named)

    return changing


def _current() -> Limits:
    resources = tuple(map(resource.getrlimit, _WATCHED))
    return Limits(resources, os.getpriority(os.PRIO_PROCESS, 0), frozenset(os.sched_getaffinity(0)))


def _restored(to: Limits) -> bool:
    for number, limit in zip(_WATCHED, to.resources, strict=True):
        try:
            resource.setrlimit(number, limit)
        except (ValueError, OSError):
            return False
    return True


def job_memory(environ: Mapping[str, str]) -> str:
    """Return a text about the memory limit of the Slurm job in which this node runs; "" without such a limit."""
    megabytes = environ.get("SLURM_MEM_PER_NODE", "")
    if not megabytes.isdecimal() or int(megabytes) == 0:
        return ""
    return f"its Slurm job has --mem={megabytes}M, which Pool(memory_gb=...) sets for a job of its own"
