"""Connect standard input and output to the step server of this node. An SSH login or `srun` runs this program there.

    python3 -I -S relay.py FOLDER
    python3 -I -S relay.py --run srun -u [options] python3 -I -S relay.py --framed FOLDER

This file must be valid in Python 3.6. It finds the server's socket through ``FOLDER/nodes/NODE`` (see "A Slurm job's
nodes" in docs/protocol.md). It waits for that file for a few seconds, but not longer than its client waits. It exits
with status 0 when the server closes the connection, and with 1 and a message if there is no server. SIGTERM ends the
second form and its command.

The first form passes its standard input and output, as descriptors, to the server, whose sshd reads and writes them
itself. This process then carries no bytes; it keeps running because the SSH login closes its streams when the command
of the login ends.

Slurm sends streams in pieces of 1024 bytes, and its sockets have no TCP_NODELAY: of two small pieces, the second waits
for the acknowledgement of the first, which the other end delays by 40 ms unless it has data to send. So the second form
has a relay at each end of srun. The two relays exchange frames: a length of 4 bytes, then that many bytes. A relay
writes a frame as a whole, because each separate piece would become a packet of the SSH connection to the login host. A
relay that has waited `STALL_S` for the rest of a frame writes the part that has arrived, and sends an empty frame to
the other relay, because the empty frame carries the acknowledgement. If srun's own socket can be given TCP_NODELAY
(Linux 5.6), the relay beside srun also sends an empty frame after each whole frame: with TCP_NODELAY, srun sends it at
once.
"""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

CHUNK_BYTES = 64 << 10  # bytes to read at once; a larger buffer would be mapped and unmapped for each read
WAIT_S = 5.0  # seconds to wait for a step that has just started
LOOK_S = 0.05
# After the client has closed its end, the relay exits when the server has sent nothing for this time (seconds): the
# node then counts as hanging.
LINGER_S = 15.0
KILL_S = 5.0  # seconds from SIGTERM to SIGKILL of the command
STALL_S = 0.0003  # seconds to wait for the rest of a frame; pieces in transit arrive sooner
# Write an incomplete frame when this many bytes of it have arrived; smaller parts cost both relays more processor time.
PART_BYTES = 64 << 10
# While at least this many bytes of a frame are missing, a pause (seconds) lets several pieces arrive for one read.
MUCH_BYTES, PAUSE_S = 32 << 10, 0.001
# F_SETPIPE_SZ of <linux/fcntl.h>, and the buffer size (bytes) for pipes. A large buffer helps, as Slurm stops while a
# pipe is full.
SET_PIPE_SIZE, PIPE_BYTES = 1031, 256 << 10
LENGTH = struct.Struct("!I")
EMPTY = LENGTH.pack(0)
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # system call numbers, equal on all architectures that Slurm supports


def main() -> int:
    if sys.argv[1] == "--run":
        return run(sys.argv[2:])
    folder, node = sys.argv[-1], os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        server = connected(described(os.path.join(folder, "nodes", node), time.monotonic() + WAIT_S), node)
    except LookupError as error:
        sys.stderr.write(f"outrider: {error.args[0]}\n")
        return 1
    if sys.argv[1] == "--framed":
        server.send(b"\0")
        carry(Framed(Side(0, 1)), Side(server.fileno(), server.fileno(), hang_up=server))
    else:
        hand_over(server)
    return 0


def hand_over(server: socket.socket) -> None:
    """Pass this process's streams to the server. Then copy the error output of the server's process until it ends."""
    for end in (0, 1):
        enlarge(end)
    rights = struct.pack("ii", 0, 1)
    server.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    # Replace this process's copies of the streams, so that the peers see the end of file.
    with open(os.devnull, "r+b", buffering=0) as null:
        os.dup2(null.fileno(), 0)
        os.dup2(null.fileno(), 1)
    data = b"."
    while data:
        try:
            data = server.recv(CHUNK_BYTES)
        except ConnectionResetError:
            break
        os.write(2, data)


def enlarge(end: int) -> None:
    """Increase the buffer of a pipe, if possible."""
    try:
        fcntl.fcntl(end, SET_PIPE_SIZE, PIPE_BYTES)
    except OSError:  # not a pipe, or the user's limit for pipe buffers is reached
        pass


def run(argv: "list[str]") -> int:
    """Run the command, and connect its streams to this process's streams. Return its exit status.

    The data from and to the command is framed (a length, then the bytes).
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    command = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603
    assert command.stdin is not None
    assert command.stdout is not None
    side, linger_s = Side(command.stdout.fileno(), command.stdin.fileno(), hang_up=command.stdin), 0.0
    try:
        if carry(Side(0, 1), Framed(side, of=command.pid)):
            linger_s = LINGER_S
        command.stdin.close()
        command.stdout.close()
        command.wait(linger_s)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also runs after SIGTERM, which means that the connection is no longer needed
        ended(command)
    return command.returncode


def ended(command: "subprocess.Popen[bytes]") -> None:
    """End the command if it still runs."""
    for wait_s, signalled in ((0.0, command.terminate), (KILL_S, command.kill)):
        try:
            command.wait(wait_s)
        except subprocess.TimeoutExpired:
            signalled()
    command.wait()


def described(path: str, until: float) -> "dict[str, str]":
    """Return the contents of the step server's file. Raises LookupError if there is no file, or with its error text."""
    while True:
        try:
            with open(path, encoding="utf-8") as file:
                facts: dict[str, str] = json.load(file)
        except FileNotFoundError:
            if time.monotonic() > until:
                raise LookupError(f"no step of Outrider's runs on this node, as there is no {path}") from None
            # Stop waiting when the client closes; otherwise a job's end would wait for this process.
            if hung_up(0, LOOK_S):
                raise LookupError("nobody wants the connection any more") from None
        else:
            if facts.get("error"):
                raise LookupError(facts["error"])
            return facts


def hung_up(fd: int, within_s: float) -> bool:
    """Wait briefly; return whether the peer has closed the descriptor, even if unread data is left."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(within_s * 1000))


def connected(step: "dict[str, str]", node: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(step["socket"])
    except OSError as error:
        server.close()
        raise LookupError(f"the step server on {node} does not answer at {step['socket']}: {error.strerror}") from error
    return server


class Side:
    """One side of a relay: a source to read from, and a sink to which the data of the other side is written."""

    stalled = False  # whether an incomplete frame has arrived

    def __init__(self, source: int, sink: int, hang_up: "socket.socket | object | None" = None) -> None:
        self.source, self.sink, self._hang_up = source, sink, hang_up
        self.open = True  # until the source ends
        self.takes = True  # whether the sink still accepts data
        self.waiting = memoryview(b"")  # data that has to be written to the sink
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    def read(self) -> bytes:
        """Return the available data; empty: none."""
        try:
            data = os.read(self.source, CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            # EIO: a terminal, ECONNRESET: a socket, closed by the peer.
            if error.errno not in {errno.EIO, errno.ECONNRESET}:
                raise
            data = b""
        self.open = self.open and bool(data)
        return data

    def write(self, data: bytes) -> None:
        """Write data of the other side to the sink. Call this only while `waiting` is empty."""
        if self.takes and data:
            self.waiting = memoryview(data)
            self.flush()

    def flush(self) -> None:
        try:
            self.waiting = self.waiting[os.write(self.sink, self.waiting) :]
        except BlockingIOError:
            pass
        except OSError:  # the sink is closed
            self.takes, self.waiting = False, memoryview(b"")

    def much_left(self) -> bool:
        """Return whether much of an incomplete frame is missing."""
        return False

    def nudge(self) -> bytes:
        """Send an empty frame, so that the other relay receives an acknowledgement and continues. Return the data of an
        incomplete frame that `read` has kept back.
        """
        return b""

    def end(self) -> None:
        """Close the sink, so that its reader sees the end of the data."""
        if isinstance(self._hang_up, socket.socket):
            try:
                self._hang_up.shutdown(socket.SHUT_WR)
            except OSError:  # the peer has closed already
                pass
        elif self._hang_up is not None:
            self.takes = False
            self._hang_up.close()  # type: ignore[attr-defined]


class Framed(Side):
    """A side that reads and writes frames. If a frame is incomplete, `read` keeps back up to `PART_BYTES` of it."""

    def __init__(self, side: Side, *, of: "int | None" = None) -> None:
        """Frame the data of a side. ``of``: process id of the child whose sockets carry the data; None: no child of
        this process.
        """
        super().__init__(side.source, side.sink, side._hang_up)
        for end in (self.source, self.sink):
            enlarge(end)
        self._of = of
        self._prompt = False  # whether the sockets have TCP_NODELAY
        self._left = 0  # bytes of the current frame that have not arrived
        self._head = b""  # received bytes of the next frame's length
        self._kept = []  # type: list[bytes]
        self._kept_bytes = 0

    def read(self) -> bytes:
        raw, at = super().read(), 0
        ended = came = False  # `ended`: a frame was completed; `came`: any part of a frame arrived
        while at < len(raw):
            if self._left:
                part = raw[at : at + self._left]
                self._kept.append(part)
                self._kept_bytes += len(part)
                at += len(part)
                self._left -= len(part)
                ended, came = ended or not self._left, True
            else:
                part = raw[at : at + LENGTH.size - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == LENGTH.size:
                    [self._left] = LENGTH.unpack(self._head)
                    self._head = b""
        # Before its first data arrives, the child has no connection on which to set the option.
        if self._of is not None and came:
            self._prompt, self._of = prompt(self._of), None
        self.stalled = bool(self._left or self._head) or (self._prompt and came)
        return self._taken() if ended or not self.open or self._kept_bytes >= PART_BYTES else b""

    def _taken(self) -> bytes:
        kept, self._kept, self._kept_bytes = b"".join(self._kept), [], 0
        return kept

    def much_left(self) -> bool:
        return self._left >= MUCH_BYTES

    def write(self, data: bytes) -> None:
        if data:
            # No empty frame is needed: this frame carries the acknowledgement.
            self.stalled = self.stalled and bool(self._left or self._head)
            super().write(LENGTH.pack(len(data)) + data)

    def nudge(self) -> bytes:
        # One empty frame is enough: when more of the incomplete frame arrives, `stalled` is set again.
        self.stalled = False
        if not self.waiting:
            super().write(EMPTY)
        return self._taken()


def prompt(pid: int) -> bool:
    """Set TCP_NODELAY on the TCP sockets of a child process. Return whether at least one socket got the option."""
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).syscall
        process = call(PIDFD_OPEN, pid, 0)
        if process < 0:
            return False
        sockets = [int(name) for name in os.listdir(f"/proc/{pid}/fd") if is_socket(f"/proc/{pid}/fd/{name}")]
        fds = [fd for fd in (call(PIDFD_GETFD, process, number, 0) for number in sockets) if fd >= 0]
        os.close(process)
        # sum() sets the option on every socket; any() would stop at the first.
        return sum(set_prompt(fd) for fd in fds) > 0
    except (ImportError, OSError, AttributeError):
        return False


def is_socket(link: str) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except OSError:  # the descriptor has just been closed
        return False


def set_prompt(fd: int) -> bool:
    with socket.socket(fileno=fd) as sock:
        try:
            sock.getpeername()  # fails for a listening socket, which has no peer
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            return False
        return True


def carry(far: Side, near: Side) -> bool:
    """Carry bytes in both directions, until the source of ``near`` has ended or its data can no longer be written.

    A sink that accepts no data stops only its own direction. When the source of ``far`` ends, the sink of ``near`` is
    closed. Return False if after that ``near`` was silent for `LINGER_S`; otherwise True.
    """
    until = None  # type: float | None
    while True:
        listening = [(one, other) for one, other in ((far, near), (near, far)) if one.open and not other.waiting]
        sources = [one.source for one, _ in listening]
        writing = [side.sink for side in (far, near) if side.waiting]
        stalled = [(one, other) for one, other in listening if one.stalled]
        left_s = None if until is None else max(0.0, until - time.monotonic())
        readable, writable, _ = select.select(sources, writing, [], STALL_S if stalled else left_s)
        if not readable and not writable:
            if left_s == 0.0:
                return False
            for one, other in stalled:
                other.write(one.nudge())
        for side in (far, near):
            if side.waiting and side.sink in writable:
                side.flush()
        if far.source in readable:
            near.write(far.read())
            if not far.open:
                near.end()
        if near.source in readable:
            far.write(near.read())
        if any(side.much_left() and side.source in readable for side in (far, near)):
            time.sleep(PAUSE_S)
        if not far.takes or (not near.open and not far.waiting):
            return True
        if not far.open and (until is None or readable or writable):
            until = time.monotonic() + LINGER_S


if __name__ == "__main__":
    sys.exit(main())
