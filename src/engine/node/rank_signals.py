"""SIGTERM for the processes of ranks that handle this signal, as training programs do to save a checkpoint.

A rank registers its program's process by a file in the executor's private folder. The executor sends SIGTERM when the
machine has a preemption notice. A task of Outrider (`scripts.endings`) sends it when a run is to end. A process without
a handler gets no SIGTERM, which would end it at once: it may work until its machine is taken.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from .log_socket import VARIABLE

_PREFIX = "rank-"
_NOTIFIED, _UNHANDLED = ".notified", ".unhandled"  # suffixes of marker files: SIGTERM was sent; SIGTERM has no handler
_STARTED = 19  # index of the process's start time in /proc/PID/stat, after the name in parentheses


def register(pid: int) -> None:
    """Register a process of this rank: it gets SIGTERM if it handles the signal. Does nothing outside of a node.

    If ``pid`` is this process, it may have the handler of `process.shield`, which ignores SIGTERM. Then the kernel
    reports a handler even if the program has none. So the handler is replaced by one that creates a marker file when
    a SIGTERM arrives that the program does not handle.
    """
    folder, started = _folder(), _started(pid)
    if folder is None or started is None:
        return
    with suppress(OSError):
        (folder / f"{_PREFIX}{pid}").write_text(started)
    if pid == os.getpid() and signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        unhandled = folder / f"{_PREFIX}{pid}{_UNHANDLED}"
        shielded = signal.getsignal(signal.SIGTERM)

        def note(number: int, frame: object) -> None:
            if os.getpid() == pid:
                with suppress(OSError):
                    unhandled.touch()
            elif callable(shielded):
                shielded(number, frame)  # type: ignore[arg-type]  # the frame has the right type

        signal.signal(signal.SIGTERM, note)


def was_notified(pid: int) -> bool:
    """Return whether the executor has sent SIGTERM to a process of this rank, because of a preemption notice."""
    folder = _folder()
    return folder is not None and (folder / f"{_PREFIX}{pid}{_NOTIFIED}").exists()


def notify(folder: Path) -> None:
    """Send SIGTERM because of a preemption notice to each process registered in ``folder`` that handles it, once."""
    for pid in handling(folder):
        notified = folder / f"{_PREFIX}{pid}{_NOTIFIED}"
        if not notified.exists():
            with suppress(OSError):
                notified.touch()
                os.kill(pid, signal.SIGTERM)


def terminate() -> list[int]:
    """Send SIGTERM to each registered process of this node that handles it; return their pids."""
    folder, sent = _folder(), list[int]()
    for pid in () if folder is None else handling(folder):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
            sent.append(pid)
    return sent


def handling(folder: Path) -> list[int]:
    """Return the pids of the registered processes that still run and handle SIGTERM, as far as can be detected."""
    pids = []
    for file in folder.glob(f"{_PREFIX}*"):
        text = file.name.removeprefix(_PREFIX)
        if text.isdigit() and is_handling(folder, int(text)):
            pids.append(int(text))
    return sorted(pids)


def is_handling(folder: Path, pid: int) -> bool:
    """Return whether a process registered in ``folder`` still runs and handles SIGTERM."""
    try:
        registered = (folder / f"{_PREFIX}{pid}").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
    except (OSError, ValueError):
        return False
    if registered != _started(pid) or (folder / f"{_PREFIX}{pid}{_UNHANDLED}").exists():
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def still_handling(pid: int) -> bool:
    """Return whether a process of this node still runs and handles SIGTERM."""
    folder = _folder()
    return folder is not None and is_handling(folder, pid)


def _folder() -> Path | None:
    socket = os.environ.get(VARIABLE)
    return Path(socket).parent if socket else None


def _started(pid: int) -> str | None:
    """Return the time at which a process started, as /proc shows it; None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else fields[_STARTED]
