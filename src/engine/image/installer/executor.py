"""Starting the executor (the node's daemon) on the prepared node.

The executor has a folder of its own. Earlier executors of the same pool on this machine are ended first.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .installation import TAIL_LINES, Failed, Installation, try_lock

_SUN_PATH = 104  # length in bytes that every system accepts for the path of a Unix socket, with the final NUL
_TAKEOVER_S = 10.0


@contextmanager
def only_installer(directory: Path) -> Iterator[None]:
    """A context in which this process is the only installer for the node.

    If the client started another installer before it lost the connection, that installer is ended.
    """
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    fd = _locked(directory / "installer")
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def _locked(path: Path) -> int:
    """Lock a file, and return its descriptor. If another process holds the lock, signal that process to end."""
    began = time.monotonic()
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock(fd):
            # the process that held the lock may have removed the folder: then try again with a new file
            with suppress(OSError):
                if path.stat().st_ino == os.fstat(fd).st_ino:
                    return fd
            os.close(fd)
            continue
        waited = time.monotonic() - began
        with suppress(OSError, ValueError):
            os.kill(int(os.pread(fd, 20, 0)), signal.SIGTERM if waited < _TAKEOVER_S else signal.SIGKILL)
        os.close(fd)
        if waited > 2 * _TAKEOVER_S:
            raise Failed(
                f"an earlier bootstrap of this node does not end (its process id is in {path})",
                hint="end that process there, or wait for it, and try again",
            )
        time.sleep(0.1)


def is_running(directory: Path) -> bool:
    """Return whether the executor of this folder is running. If so, the bootstrap has nothing left to do."""
    try:
        with (directory / "lock").open("r+b") as file:
            return not try_lock(file.fileno())
    except OSError:
        return False


def end_others(pools: Path, machine: str, own: Path) -> None:
    """End the executors, with all their processes, of earlier nodes of this pool on this machine."""
    for directory in pools.glob(f"{glob.escape(machine)}~*"):
        if directory == own:
            continue
        began = time.monotonic()
        while is_running(directory):
            waited = time.monotonic() - began
            if waited > 2 * _TAKEOVER_S:
                raise Failed(
                    f"an executor that this pool had here before does not end (its process id is in {directory}/lock)",
                    hint="end that process there, and try again",
                )
            with suppress(OSError, ValueError):  # the fork server of a killed executor ends the executor's tasks
                pid = int((directory / "lock").read_text())
                # send no signal if another process has meanwhile got the same process id
                if os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGTERM if waited < _TAKEOVER_S else signal.SIGKILL)
            time.sleep(0.02)
        _remove(directory)


def sweep(pools: Path, host: str) -> None:
    """Remove the folders of executors that are no longer running because this host crashed or lost power.

    ``host``: the result of `this_host`. Only folders of this host that are older than a day are removed.
    """
    with suppress(OSError), os.scandir(pools) as entries:
        for entry in entries:
            directory = Path(entry.path)
            if entry.stat().st_mtime < time.time() - 86400 and _is_of(host, directory) and not is_running(directory):
                _remove(directory)


def this_host() -> str:
    """Return a name for this host.

    Hosts that share a home folder have different names, even if all are called localhost.

    A host without a machine id gets a new name with each reboot. Its old folders are then never removed.
    """
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with suppress(OSError, ValueError):
            machine_id = Path(path).read_text().strip()
            if len(machine_id) >= 32:  # the file may be empty, or contain the text "uninitialized"
                return f"{socket.gethostname()} {hashlib.sha256(machine_id.encode()).hexdigest()[:16]}"
    return socket.gethostname()


def _is_of(host: str, directory: Path) -> bool:
    try:
        return (directory / "host").read_text() == host
    except OSError:
        return False


def _remove(directory: Path) -> None:
    for folder in {socket_path_of(directory).parent, directory}:
        shutil.rmtree(folder, ignore_errors=True)


def socket_path_of(directory: Path) -> Path:
    """Return the path of the executor's socket: in ``directory`` or, if that path is too long for a socket, in /tmp."""
    path = directory / "executor.sock"
    if len(os.fsencode(path.with_suffix(".new"))) < _SUN_PATH:
        return path
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"outrider-{os.getuid()}-{name}" / "executor.sock"


def start(
    installation: Installation,
    plan: Mapping[str, Any],
    python: Path,
    directory: Path,
    *,
    env: Mapping[str, str],
    mounted: socket.socket | None,
) -> None:
    """Start the executor, and wait until it accepts connections on its socket.

    ``mounted``: the socket of the volumes' supervisor, which the executor inherits.
    """
    path = socket_path_of(directory)
    if path.parent != directory:
        _make_private(path.parent)
        installation.scratch.append(path.parent)
    log = directory / "log"
    with suppress(FileNotFoundError):
        log.unlink()
    options = ["--directory", str(directory), "--socket", str(path), "--lease", str(plan["lease_s"]), "--remove"]
    if plan["address"] is not None:
        options += ["--address", plan["address"]]
    if plan["lease_file"]:
        options += ["--lease-file", plan["lease_file"]]
    if mounted is not None:
        options += ["--volumes", str(mounted.fileno())]
    pass_on = [] if mounted is None else [mounted]
    try:
        installation.run([str(python), "-I", plan["runtime"], "daemon", *options], env=env, pass_on=pass_on)
    except Failed as failure:
        with suppress(OSError):
            failure.log = [*failure.log, *log.read_text(errors="replace").splitlines()][-TAIL_LINES:]
        raise


def _make_private(directory: Path) -> None:
    """Create a folder that only this user can access, inside a folder that all users can write.

    Raises Failed if the folder exists and is not private.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        reason = f"{directory} is there and is not a private folder of this user (uid {os.getuid()})"
        raise Failed(reason, hint=f"remove {directory} there, or have its owner (uid {status.st_uid}) do so")
