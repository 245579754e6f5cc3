"""The executor on a remote host: an `ExecutorServer` that clients reach by a unix socket, which sshd forwards.

    python3 -I <runtime> daemon --directory ~/.cache/outrider/pools/<pool>-<node>

The command prints the path of the socket ``<directory>/executor.sock`` and returns when the socket accepts connections,
or when another daemon already runs for the directory. The daemon keeps running after the command, and writes errors to
``<directory>/log``. `ExecutorServer` describes when it ends.
Tasks run with this process's Python, packages and environment. The folders in ``OUTRIDER_PATH`` come first in their
`sys.path`.

`GpuQuery` finds the GPUs of the host that CUDA would show to a program: those of `nvidia-smi`, limited by
CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import site
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import forkserver, limits

if TYPE_CHECKING:
    import subprocess


_QUERY = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_GPUS_WITHIN_S = 20.0  # time limit for nvidia-smi: without persistence mode the driver takes seconds to initialize


class GpuQuery:
    """A running `nvidia-smi`, if the host has an NVIDIA driver. It takes a second, so call `answer` later."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        if (tool := shutil.which("nvidia-smi")) and any(Path("/dev").glob("nvidia[0-9]*")):
            import subprocess  # imported here to keep it out of the fork server

            self._running = subprocess.Popen(  # noqa: S603
                [tool, *_QUERY], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )

    def answer(self) -> list[tuple[str, float]]:
        """Return (name, memory in GB) of each GPU; an empty list if the tool does not reply in time."""
        if self._running is None:
            return []
        import subprocess

        try:
            table, _ = self._running.communicate(timeout=_GPUS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._running.kill()  # do not wait for its end: the kernel cannot kill a process that hangs in the driver
            if self._running.stdout is not None:
                self._running.stdout.close()
            return []
        return parse_gpus(table.decode(errors="replace"), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(table: str, visible: str | None = None) -> list[tuple[str, float]]:
    """Return (name, memory in GB) of each GPU in lines such as ``0, GPU-5f3c..., NVIDIA H200, 143771``.

    Args:
        table: lines of `nvidia-smi`: index, UUID, name, memory in MiB or ``[N/A]``.
        visible: the value of CUDA_VISIBLE_DEVICES, None if unset.
    """
    gpus: list[tuple[str, str, str, float]] = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit():  # other lines are warnings
            index, uuid, name, mebibytes = cells
            memory_gb = round(int(mebibytes) / 1024, 1) if mebibytes.isdigit() else 0.0
            gpus.append((index, uuid, name.removeprefix("NVIDIA "), memory_gb))
    if visible is not None:
        chosen = []
        for wanted in (part.strip() for part in visible.split(",")):
            named = [
                each for each in gpus if each[0] == wanted or (wanted[:4] == "GPU-" and each[1].startswith(wanted))
            ]
            # CUDA ignores a name that does not match exactly one GPU, and all names after it
            if len(named) != 1 or named[0] in chosen:
                break
            chosen += named
        gpus = chosen
    return [(name, memory_gb) for _, _, name, memory_gb in gpus]


LEASE_S = 600.0  # seconds without any client after which the daemon ends; a client may set another value
_UNMOUNTED_S = 6.0  # longest wait for the volumes to be unmounted; later their supervisor still unmounts them
_READY = b"+"


def main() -> int:
    """Start the daemon in the background, or run it in this process (``--foreground``); return the exit status."""
    options = _parser().parse_args()
    directory: Path = options.directory.expanduser().absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    options.directory = directory
    options.socket = options.socket or directory / "executor.sock"
    options.lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(options.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(options.socket)
        return 0
    if options.foreground:
        _serve(options, ready=None)
    return _detached(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="outrider daemon", description="Run an Outrider executor on this host.")
    parser.add_argument(
        "--directory", type=Path, required=True, help="its socket, its log, and the tasks' work directory"
    )
    parser.add_argument("--socket", type=Path, help="its socket, where the directory's path is too long for one")
    parser.add_argument("--address", default=_own_address(), help="by which the pool's other hosts reach this one")
    parser.add_argument("--lease", type=float, default=LEASE_S, help="seconds without any client after which it ends")
    parser.add_argument("--lease-file", default="", help="the machine's own lease: touched while a client is heard")
    parser.add_argument("--volumes", type=int, default=-1, help="the descriptor of a socket: they live as long as it")
    parser.add_argument("--foreground", action="store_true", help="run here instead of in the background")
    parser.add_argument("--remove", action="store_true", help="remove the directory in the end")
    return parser


def _own_address() -> str:
    """Return this host's address in the SSH connection that started the daemon, or that of the default route."""
    arrived = os.environ.get("SSH_CONNECTION", "").split()  # client address, its port, server address, its port
    # a loopback address means that the connection came through a local tunnel
    if len(arrived) == 4 and arrived[2] not in {"127.0.0.1", "::1"}:
        return arrived[2]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that no host has (RFC 5737); a UDP connect sends no packet
        except OSError:  # no network
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def _detached(options: argparse.Namespace) -> int:
    """Start the executor in the background, in its own session, and wait until it is ready; return the exit status."""
    waiting, ready = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            _redirect(options.directory / "log")
            _serve(options, ready=ready)
        except BaseException:  # noqa: BLE001 - no caller handles it
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(ready)
    os.waitpid(pid, 0)
    if os.read(waiting, 1) == _READY:
        print(options.socket)
        return 0
    print(f"the executor did not start; see {options.directory / 'log'}", file=sys.stderr)
    return 1


def _redirect(log: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _serve(options: argparse.Namespace, *, ready: int | None) -> NoReturn:
    """Start the fork server while this process is small (has few modules), then run the executor.

    Both processes hold the directory's lock, which is free when both have ended.
    """
    os.ftruncate(options.lock, 0)
    os.pwrite(options.lock, str(os.getpid()).encode(), 0)
    gpus = GpuQuery()  # takes up to a second, in parallel with the start of the executor
    sees_others = sys.base_prefix in site.PREFIXES  # False in a virtual environment without system packages
    if sees_others and Path(users := site.getusersitepackages()).is_dir():
        site.addsitedir(users)  # add the user's packages, which `python3 -I` leaves out
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        forkserver.serve(theirs, options.lock)
    theirs.close()
    limits.raise_descriptors()
    import asyncio  # imported after the fork, to keep it out of the fork server

    asyncio.run(_until_ended(ours, options, gpus, ready))
    os._exit(0)


async def _until_ended(forks: socket.socket, options: argparse.Namespace, gpus: GpuQuery, ready: int | None) -> None:
    import asyncio

    from .server import ExecutorServer

    executor = ExecutorServer(
        forks,
        directory=options.directory,
        address=options.address,
        same_host=False,
        accelerators=await asyncio.to_thread(gpus.answer),
        lease_s=options.lease,
        lease_file=options.lease_file,
    )
    directory, path = options.directory, options.socket
    server = await executor.listen(_listening(path))
    if ready is not None:
        os.write(ready, _READY)
        os.close(ready)
    try:
        await executor.ended.wait()
    finally:
        server.close()
        if _is_ours(options):
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - blocking is harmless: the loop has ended its work
        await executor.close()
        if options.volumes >= 0:
            await asyncio.to_thread(_unmounted, options.volumes)
        if options.remove and _is_ours(options):
            for folder in {directory, path.parent}:
                shutil.rmtree(folder, ignore_errors=True)


def _unmounted(fd: int) -> None:
    """Notify the volumes' supervisor that no task uses the volumes any more, and wait until it has unmounted them.

    The supervisor closes its end of the socket after the unmount. Wait at most `_UNMOUNTED_S`.
    """
    with socket.socket(fileno=fd) as supervisor:
        supervisor.settimeout(_UNMOUNTED_S)
        with suppress(OSError):
            supervisor.shutdown(socket.SHUT_WR)
            supervisor.recv(1)


def _is_ours(options: argparse.Namespace) -> bool:
    """Return whether the directory still has the file that this process locked; if not, another executor may use it."""
    try:
        return os.path.samestat(os.stat(options.directory / "lock"), os.fstat(options.lock))  # noqa: PTH116
    except OSError:
        return False


def _listening(path: Path) -> socket.socket:
    """Return a listening unix socket, whose path appears only when the socket accepts connections."""
    sock = socket.socket(socket.AF_UNIX)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    sock.bind(str(new))
    new.chmod(0o600)
    sock.listen(64)
    new.rename(path)
    return sock


if __name__ == "__main__":
    sys.exit(main())
