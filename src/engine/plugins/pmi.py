"""A server for PMI-1, the protocol by which MPICH, Intel MPI and others learn their ranks.

A server serves one generation: one run of a broadcast on a fixed set of nodes.

The protocol consists of lines of ``name=value`` words over a socket that a rank finds in ``PMI_FD``: ranks put the
addresses that they listen on into a common space, meet at barriers, and get the values of other ranks (MPICH,
src/pmi/src/pmi_v1.c). `KeyValueSpace` decides the replies. This file is also a program that runs as a process of its
own beside rank 0, because a rank waits for replies inside ``MPI_Init``, where it holds the interpreter lock. The file
imports only the standard library.

Before a socket carries PMI, both ends prove that they know the pool's secret, which was sent over SSH.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal

SIZES = "kvsname_max=256 keylen_max=64 vallen_max=1024"  # the same limits as in Hydra, MPICH's launcher
NONCE_BYTES = 16
GREETING_S = 10.0
LINE_BYTES = 64 * 1024  # longest line from a rank: far more than a name and a value within `SIZES` need

Reply = tuple[int, str]  # (rank, line)


class KeyValueSpace:
    """The values that the ranks of one broadcast have put, and the ranks that wait at a barrier.

    No I/O: it takes lines and returns lines.
    """

    def __init__(self, name: str, size: int, values: Mapping[str, str]) -> None:
        """Create the space. ``name``: unique on these hosts, as MPICH names its shared memory after it."""
        self._name, self._size = name, size
        self._values = dict(values)
        self._published: dict[str, str] = {}
        self._waiting: set[int] = set()
        self.aborted: dict[int, int] = {}  # rank -> exit status

    def heard(self, rank: int, line: str) -> list[Reply]:  # noqa: PLR0911, PLR0912  a table
        words = _words(line)
        match words.get("cmd"):
            case "init":
                return [(rank, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1")]
            case "get_maxes":
                return [(rank, f"cmd=maxes rc=0 {SIZES}")]
            case "get_appnum":
                return [(rank, "cmd=appnum rc=0 appnum=0")]
            case "get_my_kvsname":
                return [(rank, f"cmd=my_kvsname rc=0 kvsname={self._name}")]
            case "get_universe_size":
                return [(rank, f"cmd=universe_size rc=0 size={self._size}")]
            case "put":
                self._values[words.get("key", "")] = words.get("value", "")
                return [(rank, "cmd=put_result rc=0 msg=success")]
            case "get":
                value = self._values.get(words.get("key", ""))
                result = "rc=-1 msg=key_not_found value=unknown" if value is None else f"rc=0 msg=success value={value}"
                return [(rank, f"cmd=get_result {result}")]
            case "barrier_in":
                self._waiting.add(rank)
                if len(self._waiting) < self._size:
                    return []
                self._waiting.clear()
                return [(each, "cmd=barrier_out rc=0") for each in range(self._size)]
            case "publish_name":
                self._published[words.get("service", "")] = words.get("port", "")
                return [(rank, "cmd=publish_result rc=0 info=ok")]
            case "unpublish_name":
                known = self._published.pop(words.get("service", ""), None) is not None
                return [(rank, f"cmd=unpublish_result rc={0 if known else -1} info=ok")]
            case "lookup_name":
                port = self._published.get(words.get("service", ""))
                return [(rank, "cmd=lookup_result rc=-1 info=unknown" if port is None else
                         f"cmd=lookup_result rc=0 info=ok port={port}")]  # fmt: skip
            case "finalize":
                return [(rank, "cmd=finalize_ack rc=0")]
            case None:  # a spawn request, whose lines end with "endcmd": refused, because a pool cannot add ranks
                return [(rank, "cmd=spawn_result rc=-1")] if line == "endcmd" else []
            case "abort":
                self.aborted[rank] = _number(words.get("exitcode", ""), default=1)
                return []
            case other:
                return [(rank, f"cmd={other}_result rc=-1")]


def mapping(hosts: Sequence[str]) -> str:
    """Return ``PMI_process_mapping``, which shows the ranks that share a host and its memory. ``hosts``: by rank."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    runs = [(numbers[host], len(list(ranks))) for host, ranks in groupby(hosts)]
    blocks: list[tuple[int, int, int]] = []  # (first host, consecutive hosts, ranks on each)
    for number, count in runs:
        if blocks and blocks[-1][0] + blocks[-1][1] == number and blocks[-1][2] == count:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1, count)
        else:
            blocks.append((number, 1, count))
    return f"(vector,{','.join(f'({first},{hosts_},{each})' for first, hosts_, each in blocks)})"


def proof(secret: str, *facts: object) -> str:
    return hmac.new(secret.encode(), repr(facts).encode(), hashlib.sha256).hexdigest()


class AbortWatch:
    """A rank's second connection, over which the server makes the rank exit after ``MPI_Abort``."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._left = threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="outrider-mpi").start()

    def leave(self) -> None:
        """Log out of the server after success; if the rank has called ``MPI_Abort``, the process exits here."""
        try:
            self._sock.sendall(b"leaving\n")
        except OSError:  # the server has ended, because rank 0 has ended; this rank will end, too
            return
        self._left.wait(GREETING_S)

    def close(self) -> None:
        self._sock.close()

    def _listen(self) -> None:
        try:
            while word := _line(self._sock):
                if word == "left":
                    break
                os._exit(int(word))
        except (OSError, ValueError):
            pass
        self._left.set()


def connect(
    address: str, port: int, rank: int, secret: str, *, role: Literal["rank", "watch"], within_s: float
) -> socket.socket:
    """Connect to the server and authenticate; after that the socket carries PMI.

    The socket of a ``watch`` carries the lines of `AbortWatch` instead. Waits for a server that has not started yet.

    Raises:
        TimeoutError: no server that knows the secret replied in time.
    """
    deadline = time.monotonic() + within_s
    last: Exception | None = None
    while (left := deadline - time.monotonic()) > 0:
        try:
            sock = socket.create_connection((address, port), timeout=min(left, GREETING_S))
        except OSError as error:
            last = error
            time.sleep(0.02)
            continue
        try:
            theirs = _line(sock)
            ours = os.urandom(NONCE_BYTES).hex()
            sock.sendall(f"{role} {rank} {ours} {proof(secret, role, rank, theirs)}\n".encode())
            if hmac.compare_digest(_line(sock), proof(secret, "server", rank, ours)):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            last = PermissionError("it does not know this pool's secret")
        except OSError as error:
            last = last if isinstance(last, PermissionError) else error
        sock.close()
        time.sleep(0.1)
    raise TimeoutError(f"no PMI server answered at {address}:{port} within {within_s:g} s ({last})")


# --- the server ------------------------------------------------------------------------------------------------------


class Lines:
    """Split received bytes into whole lines. The pieces of a line are joined once, when its end has arrived."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0  # bytes of all pieces together

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes.

        Raises:
            ValueError: a line is longer than `LINE_BYTES`.
        """
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces, self._size = [], 0
        self._pieces.append(rest)
        self._size += len(rest)
        longest = max(self._size, *map(len, lines), 0)
        if longest > LINE_BYTES:
            raise ValueError(f"a line of {longest} bytes, of at most {LINE_BYTES}")
        return lines


class Server:
    """Accept ranks, authenticate them and reply to them, until stdin ends."""

    def __init__(self, listener: socket.socket, size: int, secret: str, hosts: Sequence[str]) -> None:
        self._listener, self._size, self._secret = listener, size, secret
        self._space = KeyValueSpace(f"outrider_{os.urandom(8).hex()}", size, {"PMI_process_mapping": mapping(hosts)})
        self._ready = selectors.DefaultSelector()
        self._ranks: dict[int, socket.socket] = {}
        self._watches: dict[int, socket.socket] = {}
        self._unread: dict[socket.socket, Lines] = {}

    def serve(self, until: int) -> None:
        """Serve until the descriptor ``until`` becomes readable, which means that this run of the broadcast is over."""
        self._ready.register(self._listener, selectors.EVENT_READ)
        self._ready.register(until, selectors.EVENT_READ)
        while True:
            for key, _ in sorted(self._ready.select(), key=_ranks_first):
                if key.fileobj == until:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data[0] == "rank":
                    self._read(key.data[1])
                else:
                    self._left(key.data[1])

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.settimeout(GREETING_S)
        try:
            nonce = os.urandom(NONCE_BYTES).hex()
            sock.sendall(f"{nonce}\n".encode())
            role, number, theirs, shown = _line(sock).split(" ")
            rank = int(number)
            if not (0 <= rank < self._size and hmac.compare_digest(shown, proof(self._secret, role, rank, nonce))):
                raise PermissionError
            sock.sendall(f"{proof(self._secret, 'server', rank, theirs)}\n".encode())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError):  # the connection is not from one of the ranks
            sock.close()
            return
        known = self._ranks if role == "rank" else self._watches
        self._forget(rank, known)
        known[rank], self._unread[sock] = sock, Lines()
        self._ready.register(sock, selectors.EVENT_READ, (role, rank))

    def _left(self, rank: int) -> None:
        """Reply to the watch of a rank that logs out, or remove the watch of a rank that is gone."""
        sock = self._watches.get(rank)
        if sock is not None:
            self._send(rank, self._watches, "left")
            self._forget(rank, self._watches)

    def _read(self, rank: int) -> None:
        sock = self._ranks.get(rank)
        if sock is None:  # the connection was removed after `select` returned
            return
        try:
            data = sock.recv(LINE_BYTES)
            lines = self._unread[sock].feed(data) if data else None
        except (OSError, ValueError):  # the rank is dead, or sends an endless line, which no MPI does
            lines = None
        if lines is None:  # the rank has finalized, or is dead: then the pool ends the other ranks
            self._forget(rank, self._ranks)
            return
        for line in lines:
            for to, reply in self._space.heard(rank, line.decode("ascii", "replace").strip()):
                self._send(to, self._ranks, reply)
        if rank in self._space.aborted:
            self._send(rank, self._watches, str(self._space.aborted[rank]))

    def _send(self, rank: int, to: dict[int, socket.socket], line: str) -> None:
        if rank in to:
            try:
                to[rank].sendall(f"{line}\n".encode())
            except OSError:
                self._forget(rank, to)

    def _forget(self, rank: int, known: dict[int, socket.socket]) -> None:
        sock = known.pop(rank, None)
        if sock is not None:
            del self._unread[sock]
            self._ready.unregister(sock)
            sock.close()


def _ranks_first(ready: tuple[selectors.SelectorKey, int]) -> bool:
    """Return a key that sorts watches behind ranks, so that a rank's abort is read before the same rank logs out."""
    data = ready[0].data
    return data is not None and data[0] == "watch"


def _number(text: str, *, default: int) -> int:
    try:
        return int(text) & 0xFF or default
    except ValueError:
        return default


def _words(line: str) -> dict[str, str]:
    head, separator, value = line.partition(" value=")  # a value extends to the end of the line
    words = dict(_pairs(head.split()))
    return words | {"value": value} if separator else words


def _pairs(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            yield name, value


def _line(sock: socket.socket) -> str:
    """Read a line byte by byte, because the bytes after it belong to other readers.

    Raises:
        OSError: the connection was closed, or the line is too long.
    """
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte or len(line) > 256:
            raise ConnectionResetError("it was closed in the greeting")
        line += byte
    return line[:-1].decode("ascii", "replace")


def main() -> None:
    """Read the settings from stdin, a line of JSON with the listener's fd, and serve until stdin ends."""
    line = b""
    while not line.endswith(b"\n"):  # unbuffered, because the server watches stdin's descriptor for its end
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    order = json.loads(line)
    listener = socket.socket(fileno=order["listener"])
    Server(listener, order["size"], order["secret"], order["hosts"]).serve(until=0)


if __name__ == "__main__":
    main()
