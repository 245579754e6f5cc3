"""The executor on a real host: a `Home` behind a unix socket that sshd forwards to. Outlives who started it.

    python3 outrider-executor-<digest>.pyz --directory ~/.outrider/<pool>

Returns when the socket ``<directory>/door`` can be connected to (printing its path), or when another daemon of the
directory is there already. What goes wrong later is in ``<directory>/log``. Ends by itself: see `Home`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import forkserver

if TYPE_CHECKING:
    import asyncio

    from .door import Door
    from .home import Home

LEASE_S = 600.0  # until a client has said its own
_READY, _FAILED = b"+", b"-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the daemon, or run it (``--foreground``). The exit status."""
    options = _parser().parse_args(arguments)
    directory: Path = options.directory.expanduser().absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(directory / "door")
        return 0
    if options.foreground:
        _serve(directory, options.address, options.lease, ready=None)
    return _detached(directory, options.address, options.lease)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="outrider-executor", description="Run an Outrider executor on this host.")
    parser.add_argument(
        "--directory", type=Path, required=True, help="its socket, its log, and the tasks' work directory"
    )
    parser.add_argument("--address", default=_own_address(), help="by which the pool's other hosts reach this one")
    parser.add_argument("--lease", type=float, default=LEASE_S, help="seconds without any client after which it ends")
    parser.add_argument("--foreground", action="store_true", help="run here instead of in the background")
    return parser


def _own_address() -> str:
    """The address of the interface that leads out; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: nobody's
        except OSError:  # no network
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def _detached(directory: Path, address: str, lease_s: float) -> int:
    """Run in a session of its own; wait until that is ready."""
    waiting, ready = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            _redirect(directory / "log")
            _serve(directory, address, lease_s, ready=ready)
        except BaseException:  # noqa: BLE001 - nobody above
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(ready)
    os.waitpid(pid, 0)
    if os.read(waiting, 1) == _READY:
        print(directory / "door")
        return 0
    print(f"the executor did not start; see {directory / 'log'}", file=sys.stderr)
    return 1


def _redirect(log: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _serve(directory: Path, address: str, lease_s: float, *, ready: int | None) -> NoReturn:
    """The fork server first, while this process is small; then the loop."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        forkserver.serve(theirs)
    theirs.close()
    import asyncio  # the fork server is to be without it

    asyncio.run(_until_ended(ours, directory, address, lease_s, ready))
    os._exit(0)


async def _until_ended(forks: socket.socket, directory: Path, address: str, lease_s: float, ready: int | None) -> None:
    import asyncio

    from .home import Home

    ended = asyncio.Event()
    home = Home(forks, directory=directory, address=address, same_host=False, ended=ended.set, lease_s=lease_s)
    await home.start()
    door = directory / "door"
    server = await asyncio.get_running_loop().create_unix_server(_protocol(home), sock=_listening(door))
    if ready is not None:
        os.write(ready, _READY)
        os.close(ready)
    try:
        await ended.wait()
    finally:
        server.close()
        door.unlink(missing_ok=True)
        await home.close()


def _listening(door: Path) -> socket.socket:
    """A socket that is there, under its name, only once it can be connected to."""
    sock = socket.socket(socket.AF_UNIX)
    new = door.with_suffix(".new")
    new.unlink(missing_ok=True)
    sock.bind(str(new))
    new.chmod(0o600)
    sock.listen(64)
    new.rename(door)
    return sock


def _protocol(home: Home) -> type[asyncio.Protocol]:
    import asyncio

    class Connection(asyncio.Protocol):
        """A connection of the socket is a channel of the home."""

        door: Door
        transport: asyncio.Transport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport  # type: ignore[assignment]
            transport.max_size = 65536  # type: ignore[attr-defined]  # asyncio's 256 KiB cost 16 us of mmap per read
            self.door = home.door(self)

        def data_received(self, data: bytes) -> None:
            self.door.received(data)

        def pause_writing(self) -> None:
            self.door.pause_writing()

        def resume_writing(self) -> None:
            self.door.resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            del exc
            self.door.lost()

        def write(self, data: bytes) -> None:
            self.transport.write(data)

        def close(self) -> None:
            self.transport.close()

        def pause_reading(self) -> None:
            self.transport.pause_reading()

        def resume_reading(self) -> None:
            self.transport.resume_reading()

    return Connection


if __name__ == "__main__":
    sys.exit(main())
