"""Join standard input and output to the step server of this node: what `srun --unbuffered --overlap` runs there.

    python3 -I -S relay.py FOLDER

This file must be understood by Python 3.6. It knows the socket by ``FOLDER/nodes/NODE`` (see "A Slurm job's nodes" in
docs/protocol.md), for which it waits a little. It ends with status 0 when the server hangs up, and with 1 and a
sentence where there is none.
"""

import errno
import json
import os
import select
import socket
import sys
import time

CHUNK_BYTES = 256 << 10
WAIT_S = 5.0  # for a step that has just begun
LOOK_S = 0.05


def main() -> int:
    folder, node = sys.argv[1], os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        server = connected(described(os.path.join(folder, "nodes", node), time.monotonic() + WAIT_S), node)
    except LookupError as error:
        sys.stderr.write(f"outrider: {error.args[0]}\n")
        return 1
    carry(0, 1, server)
    return 0


def described(path: str, until: float) -> "dict[str, str]":
    """Return what the step server has written. A LookupError says that there is none, or what it says instead."""
    while True:
        try:
            with open(path, encoding="utf-8") as file:
                said: dict[str, str] = json.load(file)
        except FileNotFoundError:
            if time.monotonic() > until:
                raise LookupError(f"no step of Outrider's runs on this node, as there is no {path}") from None
            time.sleep(LOOK_S)
        else:
            if said.get("error"):
                raise LookupError(said["error"])
            return said


def connected(said: "dict[str, str]", node: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(said["socket"])
    except OSError as error:
        server.close()
        raise LookupError(f"the step server on {node} does not answer at {said['socket']}: {error.strerror}") from error
    return server


def carry(source: int, sink: int, server: socket.socket) -> None:
    """Carry bytes both ways until the server hangs up, or nobody reads ``sink``. A side that takes nothing stops its
    own direction alone. The end of ``source`` is passed on.
    """
    server.setblocking(False)
    os.set_blocking(sink, False)  # a pipe or a terminal of this process's own
    up = down = b""
    hears = True  # the server takes what comes from the source
    reads_source = True
    while True:
        reading = [each for each, wanted in ((source, reads_source and not up), (server, not down)) if wanted]
        writing = [each for each, wanted in ((server, up), (sink, down)) if wanted]
        readable, writable, _ = select.select(reading, writing, [])
        if source in readable:
            more = read(source)
            if more == b"":
                reads_source = False
                if hears:
                    hang_up(server)
            up = (more or b"") if hears else b""
        if up and (source in readable or server in writable):
            try:
                up = up[server.send(up) :]
            except BlockingIOError:
                pass
            except OSError:  # it has what it wanted: what it still says goes out
                up, hears = b"", False
        if server in readable:
            more = read(server.fileno())
            if more == b"":
                return
            down = more or b""
        if down and (server in readable or sink in writable):
            try:
                down = down[os.write(sink, down) :]
            except BlockingIOError:
                pass
            except OSError:  # nobody reads on
                return


def read(fd: int) -> "bytes | None":
    """Return what has come; empty: the source has ended; None: there was nothing after all."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in {errno.EIO, errno.ECONNRESET}:  # a terminal, or a socket, that is closed at its other end
            return b""
        raise


def hang_up(server: socket.socket) -> None:
    try:
        server.shutdown(socket.SHUT_WR)
    except OSError:  # it has hung up itself
        pass


if __name__ == "__main__":
    sys.exit(main())
