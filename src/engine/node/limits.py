"""Limits of processes: descriptors, a job's memory, and the limits that a task may have lowered for later tasks.

The latter are resource limits, the priority and the CPUs.
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
    """The limits of a process that affect later tasks most."""

    resources: tuple[tuple[int, int], ...]
    priority: int  # the nice value: only root may raise the priority again
    cpus: frozenset[int]  # CPUs of the main thread; threads started later inherit them permanently


def receive(sock: socket.socket, size_bytes: int, descriptors: int, flags: int = 0) -> tuple[bytes, list[int] | None]:
    """Return one message (empty: the other end is closed) and its descriptors, which the caller must close.

    The list of descriptors is None if they are lost because this process has reached its limit. The kernel passes as
    many as fit below the limit, and only sets MSG_CTRUNC; descriptors that did arrive are closed.

    Args:
        flags: a plain integer; with the standard library's enumeration each ``|`` costs 1 us.

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
    """Return whether the error means that the descriptor limit is reached."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def story(who: str = "a process of this node") -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"{who} has no descriptors left, its limit is {limit}: raise it there "
        "(ulimit -n, or LimitNOFILE= of the service that starts it), or let tasks keep fewer files open"
    )


def raise_descriptors() -> tuple[int, int]:
    """Raise this process's descriptor limit to its maximum, as servers do.

    Return the old limits for `lower_descriptors`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # the hard limit is above the kernel's limit for any process (fs.nr_open)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def lower_descriptors(to: tuple[int, int]) -> None:
    """Lower the descriptor limit for user code: select() fails with descriptors above 1,023.

    The usual soft limit is lower.
    """
    with suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(to[0], hard), hard))


_LONG_US = 1000
_CHANGES = {
    "resource": ("setrlimit", "prlimit"),
    "os": ("nice", "setpriority", "sched_setaffinity"),
}
_calls = 0  # calls of Python functions that change limits, since the last check
_accepted: Limits | None = None  # limits that `spoiled` compares with instead of those before the first task


def watched() -> Limits:
    """Return the current limits; from now on, changes by Python's own functions are counted.

    Reading the limits from the kernel takes 10 us (measured), too long for each call: they are read only after such a
    change.
    """
    for module, names in _CHANGES.items():
        for name in names:
            if not hasattr(change := getattr(sys.modules[module], name), "__wrapped__"):
                noticed = _noticed(change)
                setattr(sys.modules[module], name, noticed)
                if module == "os":  # `pickle` finds a function by its module
                    setattr(sys.modules[change.__module__], name, noticed)
    return _current()


def spoiled(before: Limits, took_us: int) -> bool:
    """Return whether a task has changed limits that cannot be restored. Only root can raise a hard limit again.

    Priority and CPUs cannot be restored: each thread has its own, and the task's threads have inherited the changed
    ones.
    """
    global _calls, _accepted  # noqa: PLW0603 - a process has one set of limits
    # in a task below 1 ms, only C code could have changed limits without being counted
    if not _calls and took_us < _LONG_US:
        return False
    before, now = _accepted or before, _current()
    # changed by a library: for example, OpenMP pins the thread that imports it
    if not _calls and now[1:] != before[1:]:
        _accepted = before = before._replace(priority=now.priority, cpus=now.cpus)
    spoiled = now != before and (now[1:] != before[1:] or not _restored(before))
    _calls = 0
    return spoiled


def accept() -> None:
    """Accept the current limits as the normal state: a setup, whose result stays, has set them."""
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
    """Return a text about a Slurm job's share of this node's memory; empty if there is no such limit."""
    megabytes = environ.get("SLURM_MEM_PER_NODE", "")
    if not megabytes.isdecimal() or int(megabytes) == 0:
        return ""
    return f"its Slurm job has --mem={megabytes}M, which Pool(memory_gb=...) sets for a job of its own"
