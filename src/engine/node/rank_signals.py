"""SIGTERM for the programs of ranks that handle it: their registration, and the sending of the signal.

A rank registers the process of its program by a file in the executor's private folder. When the machine has a
preemption notice, the executor sends SIGTERM; when a run is to end, a task of Outrider sends it (`scripts.endings`). A
process without a handler gets no signal: SIGTERM would end it at once, but it may work until its machine is taken.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from .log_socket import VARIABLE

_PREFIX = "rank-"
_NOTIFIED, _UNHANDLED = ".notified", ".unhandled"  # suffixes of marker files beside the file of a process
_STARTED = 19  # index of the start time among the fields after the name in /proc/PID/stat


def register(pid: int) -> None:
    """Register a process of this rank for SIGTERM, if the process handles it. Does nothing outside of a node.

    This process itself may shield the signal, which announces the machine's end to every process. Then the check cannot
    see whether the program has its own handler, until a signal shows that it has none.
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
    """Return whether a process of this rank has received SIGTERM because of a notice."""
    folder = _folder()
    return folder is not None and (folder / f"{_PREFIX}{pid}{_NOTIFIED}").exists()


def notify(folder: Path) -> None:
    """Send SIGTERM, because of a notice, once to each process registered in ``folder`` that handles it."""
    for pid in handling(folder):
        notified = folder / f"{_PREFIX}{pid}{_NOTIFIED}"
        if not notified.exists():
            with suppress(OSError):
                notified.touch()
                os.kill(pid, signal.SIGTERM)


def terminate() -> list[int]:
    """Send SIGTERM to each registered process of this node that handles it; return these processes."""
    folder, sent = _folder(), list[int]()
    for pid in () if folder is None else handling(folder):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
            sent.append(pid)
    return sent


def handling(folder: Path) -> list[int]:
    """Return the registered processes that run and handle SIGTERM, as far as this can be detected."""
    pids = []
    for file in folder.glob(f"{_PREFIX}*"):
        text = file.name.removeprefix(_PREFIX)
        if text.isdigit() and is_handling(folder, int(text)):
            pids.append(int(text))
    return sorted(pids)


def is_handling(folder: Path, pid: int) -> bool:
    """Return whether a registered process runs and handles SIGTERM."""
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
    """Return when a process started, by the kernel's clock; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else fields[_STARTED]
