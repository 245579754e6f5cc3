"""Fork the supervisor's processes, and check that they are gone, by prctl(2) and /proc."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from .process_state import stat_of

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
CLONE_NEWNS = 0x20000  # <linux/sched.h>
FRAME_BYTES = 64 * 1024  # longest message (bytes) between a pool's local processes
_libc = ctypes.CDLL(None, use_errno=True)
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 0x4000, 1 << 18, 2  # <linux/mount.h>


def fork(run: Callable[[], object], *keep: socket.socket) -> int:
    """Fork a child that dies with this process. Return the child's pid.

    The child keeps only the sockets ``keep``: if it held copies of other sockets, their peers would not see the end of
    file.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(parent, run, *keep)
    return pid


def become(parent: int, run: Callable[[], object], *keep: socket.socket) -> NoReturn:
    """Run ``run`` in a forked child, with the settings of `fork`, and never return. ``parent``: the pid of the child's
    parent. If the template process has forked the child: the pid of the subreaper that has adopted the child.
    """
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for handler in _on_hangup:
            signal.signal(signal.SIGHUP, handler)
        close_all_but({0, 1, 2, *(s.fileno() for s in keep)})
        run()
    except BaseException:  # noqa: BLE001 - otherwise the child would continue as a second parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of each descendant whose own parent dies, even if the descendant is in another
    session.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)


_on_hangup: list[Any] = []  # the former handler of SIGHUP, which children restore


def ignore_hangups() -> None:
    """Ignore SIGHUP in this process, but not in its children.

    When the last parent of a process group in the same session dies while a member of the group, such as the template,
    is stopped, the kernel sends SIGHUP to the whole group. The signal would kill this process, which has to end the
    others.
    """
    _on_hangup.append(signal.signal(signal.SIGHUP, signal.SIG_IGN))


# The limit of open descriptors before this process raised it; empty: the limit was not raised.
_limits_before: list[tuple[int, int]] = []


def raise_descriptors() -> None:
    """Raise this process's limit of open descriptors to the maximum, as servers do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _limits_before.append((soft, hard))


def give_back_descriptors() -> None:
    """Restore the former limit of open descriptors before users' code runs: programs that use select() fail with
    descriptors above 1,023.
    """
    if _limits_before:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(_limits_before[0][0], hard), hard))


def receive(sock: socket.socket, size_bytes: int) -> tuple[bytes, int | None]:
    """Receive one message, and the descriptor that was sent with it; None: no descriptor.

    If this process has reached its limit of descriptors, the kernel drops the descriptor and only sets MSG_CTRUNC.
    """
    data, fds, _, _ = socket.recv_fds(sock, size_bytes, 1)
    return data, fds[0] if fds else None


def wake_on_child_death() -> socket.socket:
    """Return a socket that becomes readable when a child has ended."""
    ours, wake = socket.socketpair()
    ours.setblocking(False)
    wake.setblocking(False)
    # `wake` is detached, so that its descriptor stays open for the life of the process.
    signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return ours


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap the ended children; yield the pid and status of each, as from os.waitpid."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def children() -> list[int]:
    """Return this process's children, also the dead ones that are not reaped: their own children may become visible
    only later.
    """
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if stat_of(pid)[1:2] == [str(me)]]


def kill_children() -> bool:
    """Reap the dead children, and kill all other children. Return whether there were any to kill."""
    for _ in ended_children():
        pass
    left = children()
    for pid in left:
        kill(pid)
    return bool(left)


def kill(pid: int) -> None:
    """Send SIGKILL to a process, if it exists. Call this only for children of this process: until a child is reaped, no
    other process gets its pid.
    """
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def close_all_but(kept: set[int]) -> None:
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - closed when the list is complete
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:  # this was the descriptor of the directory listing, which is closed already
                pass


def mount_unseen() -> None:
    """Make mounts of this process and its children invisible to all other processes. The mounts end when the last of
    these processes ends.

    Raises:
        OSError: This process lacks CAP_SYS_ADMIN.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mount_small(directory: Path, mib: int) -> None:
    """Mount a file system of ``mib`` MiB, whose files are in memory, on ``directory``."""
    options = f"size={mib}m,mode=0700".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", MS_NOSUID | MS_NODEV, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def unmount(directory: Path) -> None:
    """Unmount whatever is mounted on the directory."""
    ctypes.CDLL(None).umount2(os.fsencode(directory), MNT_DETACH)


def prepare_removal() -> None:
    """Import the modules of `remove_tree` now: at the end, there may be no free descriptor for an import."""
    import shutil  # noqa: F401


def remove_tree(directory: Path) -> None:
    """Remove a directory with its contents. Whatever cannot be removed stays, without an error."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
