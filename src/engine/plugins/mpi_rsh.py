"""A replacement for ssh with which ``mpirun`` starts its daemons: this node's agent runs a command on another node.

    python mpi_rsh.py SOCKET [ssh's options] HOST COMMAND...

A stand-alone program that uses only the standard library. Like ssh it passes on stdin, stdout, stderr and the exit
status, and joins the command's words by blanks for the remote shell. Frames on the agent's socket: a byte for the kind,
a length of four bytes, the content.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading

RSH = "OUTRIDER_MPI_RSH"  # variable with the path of a script that runs this program; the plugin sets it on the node
ASK, IN, OUT, ERR, EXIT = 0, 1, 2, 3, 4  # an empty IN means the end of stdin
PIECE_BYTES = 64 * 1024
FAILED = 255  # ssh's own exit status for "the connection failed"
_WITH_VALUE = frozenset("bcDEeFIiJLlmOopQRSWw")  # ssh's options that take a value

_HEAD = struct.Struct(">BI")


def connect(path: str) -> socket.socket:
    """Connect to a unix socket at a path of any length; ``sun_path`` holds only 107 bytes."""
    sock = socket.socket(socket.AF_UNIX)
    anchor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120
    try:
        sock.connect(f"/proc/self/fd/{anchor}/{os.path.basename(path)}")  # noqa: PTH119
    finally:
        os.close(anchor)
    return sock


def send(sock: socket.socket, kind: int, data: bytes = b"") -> None:
    sock.sendall(_HEAD.pack(kind, len(data)) + data)


def receive(sock: socket.socket) -> tuple[int, bytes] | None:
    """Return the next frame (kind, content); None when the other end is closed."""
    head = _exactly(sock, _HEAD.size)
    if head is None:
        return None
    kind, size = _HEAD.unpack(head)
    data = _exactly(sock, size)
    return None if data is None else (kind, data)


def host_and_command(words: list[str]) -> tuple[str, str]:
    """Split ssh's arguments into host and command, dropping options.

    Raises:
        ValueError: there is no host or no command.
    """
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if len(option) == 2 and option[1] in _WITH_VALUE and rest:
            rest.pop(0)
    if len(rest) < 2:
        raise ValueError(f"a host and a command, after ssh's options: {words}")
    return rest[0].rpartition("@")[2], " ".join(rest[1:])


def main(arguments: list[str]) -> int:
    path, *words = arguments
    try:
        host, command = host_and_command(words)
        sock = connect(path)
        send(sock, ASK, json.dumps({"host": host, "command": command, "cwd": os.getcwd()}).encode())  # noqa: PTH109
    except (OSError, ValueError) as error:
        print(f"outrider: {error}", file=sys.stderr)
        return FAILED
    threading.Thread(target=_pass_stdin, args=(sock,), daemon=True).start()
    while (frame := receive(sock)) is not None:
        kind, data = frame
        if kind == EXIT:
            return int(data)
        _write_all(2 if kind == ERR else 1, data)
    print("outrider: the connection to the pool was lost", file=sys.stderr)
    return FAILED


def _pass_stdin(sock: socket.socket) -> None:
    try:
        while data := os.read(0, PIECE_BYTES):
            send(sock, IN, data)
        send(sock, IN)
    except OSError:  # the command has ended
        pass


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            more = sock.recv(size - len(data))
        except OSError:
            return None
        if not more:
            return None
        data += more
    return data


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # the thread may be waiting for stdin
