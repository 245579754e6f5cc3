"""One SSH connection to a machine, with a verified host key, and commands that run over it.

`PacketEnds` (RFC 4253, section 6) cuts received data into packets. asyncssh keeps received data in one buffer, and
copies the remaining data twice for each packet that it takes out. A read of 256 KiB contains eight of sshd's packets,
so each byte would be copied nine times. If data is passed on one packet at a time, no data remains to be copied.

PACKETS-1: the pieces are the received data, in order and without gaps. If the ends cannot be found, the data passes
    unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import socket
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncssh

from ...lazy_dataclass import dataclass
from ...providers.base import Login, Machine
from ...providers.shared.inherited_files import keep_here
from ...providers.shared.ssh_stops import CIPHERS, Dialling, Stop, dial
from ..api.printable import plainly
from ..image.commands import CommandResult
from . import login
from .flow_control import ReceiveWindow, least_round_trip_s, window
from .login import CONNECT_S
from .route import Interpose, connected

TAG_BYTES = 16  # length of the authentication tag (RFC 5647, section 5.1)
HANDSHAKE_BYTES = 1 << 18  # limit for a server's unencrypted data; after more, the data is not cut into packets
_NEWKEYS = 21  # number of the message SSH_MSG_NEWKEYS (RFC 4253, section 7.3)


class PacketEnds:
    """The finder of packet ends in one direction of a connection; it needs all data from the first byte on."""

    def __init__(self, cipher: Callable[[], str | None]) -> None:
        """Begin before the first byte. ``cipher``: returns the cipher's name; it is called after the key exchange."""
        self._cipher = cipher
        self._handshake: bytes | None = b""  # the received handshake; None: the handshake is complete
        self._seen = True  # whether the ends of packets can be found
        self._head = b""  # the first bytes of a packet whose length field is incomplete
        self._left = 0  # bytes of the current packet that have not arrived yet

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Cut received data into pieces. The caller must process each piece before it requests the next."""
        if self._handshake is not None:
            yield data
            self._handshake += data
            self._look_for_keys(self._handshake)
        elif self._seen:
            yield from self._cut(data)
        else:
            yield data

    def _look_for_keys(self, handshake: bytes) -> None:
        end = handshake_end(handshake)
        if end is not None:
            self._handshake = None
            self._seen = "gcm" in (self._cipher() or "")  # other ciphers encrypt the lengths of packets
            for _ in self._cut(handshake[end:]):
                pass
        elif len(handshake) > HANDSHAKE_BYTES:
            self._handshake, self._seen = None, False

    def _cut(self, data: bytes) -> Iterator[bytes]:
        at, end = 0, self._left
        if self._head:
            head = self._head + data[: 4 - len(self._head)]
            if len(head) < 4:
                self._head = head
                yield data
                return
            end = len(head) + int.from_bytes(head, "big") + TAG_BYTES - len(self._head)
        while end + 4 <= len(data):
            if end > at:
                yield data[at:end]
                at = end
            end += 4 + int.from_bytes(data[end : end + 4], "big") + TAG_BYTES
        self._head = data[end:]
        self._left = max(end - len(data), 0)
        if at < end < len(data):
            yield data[at:end]
            at = end
        yield data[at:]


def handshake_end(data: bytes) -> int | None:
    """Return the end of the last unencrypted packet; None: that packet has not arrived."""
    at = 0
    # RFC 4253, section 4.2: a server may send other lines before its version line
    while not data.startswith(b"SSH-", at):
        at = data.find(b"\n", at) + 1
        if not at:
            return None
    at = data.find(b"\n", at) + 1
    while at and len(data) >= at + 6:
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 5] == _NEWKEYS:
            return end if end <= len(data) else None
        at = end
    return None


# Receive window of a channel, for downloads: 50 MB/s at a round trip of 80 ms, as much as Linux's TCP buffers allow.
# sshd fills the window if the network is slower than the executor, and copies its buffer each time it grows: a window
# of 16 MiB cost sshd 3 s of processor time.
WINDOW_BYTES = 4 << 20
NEAR_WINDOW_BYTES = 768 << 10  # receive window for a blob at a round trip near 0, as other data waits behind the blob
PACKET_BYTES = 64 << 10  # largest packet: malloc would allocate larger packets by mmap, which is slow
# seconds between probes of a silent connection, for example during a long installation; three unanswered probes end it
ALIVE_S = 15.0
SLICE_BYTES = 256 << 10  # bytes of a command's input or output per read or write
LAST_BYTES = 64 << 10  # last bytes of stderr, and of stdout without an ``output`` callback, to show in errors
_MSG_IGNORE = 2  # number of the message SSH_MSG_IGNORE (RFC 4253, section 11.2)
# RFC 4254, section 5.2; the packet contains this number, the channel, and the number of bytes to add to the window
_MSG_CHANNEL_WINDOW_ADJUST = 93
# RFC 4254, section 5.2; the packet contains this number, the channel, the length of the data, and the data
_MSG_CHANNEL_DATA = 94

T = TypeVar("T")


class Client(Dialling):
    """An asyncssh client that processes received data one packet at a time."""

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        super().connection_made(conn)
        take_packets_alone(conn)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Connected:
    """A connection to a machine, with the connections to the jump hosts on the way; all of them end together.

    Forked children do not inherit the sockets.
    """

    connection: asyncssh.SSHClientConnection
    hops: Sequence[asyncssh.SSHClientConnection] = ()
    # called at the end of `abort`: ends the command on which this connection runs, or leaves the shared connection
    release: Callable[[], object] | None = None
    # the connection to a login host on which a command carries this connection; None: no login host
    carrier: Connected | None = None

    def __post_init__(self) -> None:
        keep_here(self)

    def fileno(self) -> int:
        """Return the descriptor of the only socket, which leads to the first host on the way; -1: the socket is
        closed.
        """
        first = self.hops[0] if self.hops else self.connection
        sock = first.get_extra_info("socket")
        return -1 if sock is None else sock.fileno()

    @property
    def way_is_lost(self) -> bool:
        """Return whether the connection to a host on the way is closed, which proves nothing about the machine
        itself.
        """
        if any(hop.is_closed() for hop in self.hops):
            return True
        return self.carrier is not None and (self.carrier.connection.is_closed() or self.carrier.way_is_lost)

    def abort(self) -> None:
        self.connection.abort()
        for hop in reversed(self.hops):
            hop.abort()
        if self.release is not None:
            self.release()


def send_nothing_to_ignore(connection: asyncssh.connection.SSHConnection) -> None:
    """Stop asyncssh from sending an SSH_MSG_IGNORE before each packet.

    That message hides the initialization vector of a cipher in CBC mode (RFC 4251, section 9.3.1); `CIPHERS` has no
    such cipher.
    """
    # the user's own configuration may select such a cipher
    if "cbc" in (connection.get_extra_info("send_cipher") or ""):
        return
    send_packet = connection.send_packet

    def send(kind: int, *parts: bytes, **options: Any) -> None:
        if kind != _MSG_IGNORE:
            send_packet(kind, *parts, **options)

    connection.send_packet = send  # type: ignore[method-assign, assignment]  # asyncssh has no option for it
    log_no_packets(connection)


def take_packets_alone(connection: Any) -> None:
    """Make the connection process received data one packet at a time; the module's docstring gives the reason."""
    take, info = connection.data_received, connection.get_extra_info
    # A ProxyCommand carries the connection: change nothing, or the end of the command would not be noticed.
    if info("socket") is None:
        return
    ends = PacketEnds(partial(info, "recv_cipher"))

    def received(data: bytes, datatype: int | None = None) -> None:
        for piece in ends.pieces(data):
            take(piece, datatype)
            if info("socket") is None:  # the connection was closed, perhaps because of an error in this packet
                return

    connection.data_received = received


def round_trip_s(connection: asyncssh.SSHClientConnection) -> float | None:
    """Return the shortest round trip of the connection so far; None: unknown, for example behind a jump host."""
    sock = connection.get_extra_info("socket")
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    return least_round_trip_s(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))


def blob_window(connection: asyncssh.SSHClientConnection) -> int:
    """Return the receive window for a blob over this connection, chosen by the connection's round trip."""
    trip_s = round_trip_s(connection)
    return WINDOW_BYTES if trip_s is None else min(WINDOW_BYTES, window(NEAR_WINDOW_BYTES, trip_s))


def tell_taken(channel: Any, taken: Callable[[int], object]) -> None:
    """Call ``taken`` with a number of bytes each time the server reports that it has passed on data of a channel."""
    process = channel.process_packet

    def processed(kind: int, number: int, packet: Any) -> Any:
        result = process(kind, number, packet)
        if kind == _MSG_CHANNEL_WINDOW_ADJUST:
            taken(int.from_bytes(packet.get_full_payload()[5:9], "big"))
        return result

    channel.process_packet = processed


def take_data(channel: Any, take: Callable[[memoryview], object], granted: ReceiveWindow) -> None:
    """Call ``take`` with the data of each packet of a channel, and extend the server's window."""
    process = channel.process_packet

    def processed(kind: int, number: int, packet: Any) -> Any:
        payload = packet.get_full_payload()
        if kind != _MSG_CHANNEL_DATA or int.from_bytes(payload[5:9], "big") != len(payload) - 9:
            return process(kind, number, packet)
        if not channel.is_closing():
            take(memoryview(payload)[9:])
            more = granted.taken(len(payload) - 9, time.monotonic())
            if more:
                channel.send_packet(_MSG_CHANNEL_WINDOW_ADJUST, more.to_bytes(4, "big"))
        return True

    channel.process_packet = processed


def log_no_packets(of: Any) -> None:
    """Stop asyncssh from formatting packets for its debug log, unless that log is on.

    asyncssh formats each packet before it checks the log level, which takes a tenth of the time for a packet.
    """
    if not logging.getLogger("asyncssh").isEnabledFor(logging.DEBUG):
        of.log_sent_packet = of.log_received_packet = _ignore


def _ignore(*_: object) -> None:
    pass


PoolKey = asyncssh.SSHKey


def new_key() -> PoolKey:
    """Return a new key pair for a pool.

    The key is stored only if the pool's machines outlive their client: see `engine.client.adoption`.
    """
    return asyncssh.generate_private_key("ssh-ed25519")


def kept_key(text: str) -> PoolKey:
    return asyncssh.import_private_key(text)


async def connect(
    machine: Machine, key: asyncssh.SSHKey | None, host_keys: Sequence[str] = (), interpose: Interpose | None = None
) -> Connected:
    """Connect once. Each host on the way has ``patience_s`` of the machine, or ``CONNECT_S``. Cancel-safe.

    Args:
        machine: The machine.
        key: The pool's key; None: the machine has a login.
        host_keys: Pinned keys that replace the machine's own host key, if the pool has rotated it.
        interpose: Puts a proxy between the connection and its socket.

    Raises:
        OSError, asyncssh.Error: the error of asyncssh; `asyncssh.HostKeyNotVerifiable` for a wrong host key.
    """
    address = machine.address
    if address is None:
        raise ConnectionRefusedError(f"machine {machine.id} has no address yet")
    if machine.login is not None:
        return await _as_the_user(machine, machine.login)
    assert key is not None, "a machine without a login knows the pool's key"
    sock = None if address.path is None else connected(address.path)
    client = Client()
    try:
        if sock is not None and interpose is not None:
            sock = await interpose(machine, sock)
        connection = await asyncssh.connect(
            address.host or machine.id,  # for a socket path, the machine's id stands for the host name
            address.port or 22,
            sock=sock,
            client_factory=lambda: client,
            **with_key(machine, key, host_keys),
        )
    except BaseException:
        if sock is not None and not client.connected:  # after the connect, asyncssh closes the socket itself
            sock.close()
        raise
    send_nothing_to_ignore(connection)
    return Connected(connection)


def common(machine: Machine) -> dict[str, Any]:
    """Return the options for every connection on the way to the machine."""
    within_s = machine.patience_s or CONNECT_S
    options: dict[str, Any] = {
        "compression_algs": None,
        "encoding": None,
        "connect_timeout": within_s,
        "login_timeout": within_s,
    }
    return options if machine.on_this_computer else options | {"keepalive_interval": ALIVE_S}


def with_key(machine: Machine, key: asyncssh.SSHKey, host_keys: Sequence[str]) -> dict[str, Any]:
    """Return the options for the connection to the machine itself, with only the pool's key and pinned host keys."""
    assert machine.address is not None
    return common(machine) | {
        "encryption_algs": CIPHERS,
        "username": machine.address.user or "root",
        "client_keys": [key],
        "known_hosts": ([asyncssh.import_public_key(each) for each in host_keys or (machine.host_key,)], [], []),
        "config": None,  # the user's configuration files are not read
        "agent_path": None,
        "preferred_auth": ["publickey"],
        "gss_host": None,  # no Kerberos: its key exchange would not compare the host key
        "gss_kex": False,
    }


async def _as_the_user(machine: Machine, way: Login) -> Connected:
    assert machine.address is not None
    stops = await login.stops(machine.address, way, machine.host_key)
    return await through(stops, common(machine), to=stops[-1])


async def through(stops: Sequence[Stop], options: dict[str, Any], *, to: Stop | None = None) -> Connected:
    """Connect to each jump host in turn, and then to the machine; see `ssh_stops.dial`."""
    passed = await dial(stops, options, to=to, client=Client, on_connection=send_nothing_to_ignore)
    *hops, last = passed.connections
    return Connected(last, hops, release=None if passed.command is None else passed.command.end)


async def hedged(
    begin: Callable[[], Coroutine[Any, Any, T]], discard: Callable[[T], object], *, every_s: float, at_once: int
) -> T:
    """Return the result of the first call of ``begin`` that succeeds. Every ``every_s``, try again, up to ``at_once``.

    Several tries help because a connection that was begun while the network was down continues late: TCP retries after
    1, 3 and 7 s. After the first success, the other tries are cancelled, and their results are discarded. Cancel-safe
    if ``begin`` is.

    Raises:
        Exception: the first error of a try, if it occurs before any try has succeeded.
    """
    tries: list[asyncio.Task[T]] = []
    taken: asyncio.Task[T] | None = None
    try:
        while True:
            if len(tries) < at_once:
                tries.append(asyncio.ensure_future(begin()))
            pause_s = every_s if len(tries) < at_once else None
            done, _ = await asyncio.wait(tries, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                taken = min(done, key=lambda each: (each.exception() is not None, tries.index(each)))
                return taken.result()
    finally:
        for each in tries:
            if each is not taken:
                each.cancel()
                each.add_done_callback(partial(discard_result, discard))


def discard_result(discard: Callable[[T], object], over: asyncio.Future[T]) -> None:
    if not over.cancelled() and over.exception() is None:
        discard(over.result())


async def opened(opening: Coroutine[Any, Any, T], close: Callable[[T], object]) -> T:
    """Return the channel that ``opening`` returns. If this call is cancelled, close the channel once it is open."""
    task = asyncio.ensure_future(opening)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(partial(discard_result, close))
        raise


class RemoteShell:
    """An `engine.image.commands.CommandRunner` over SSH. Each command has its own channel.

    ``inside``: a command on the machine that runs each of these commands, for example in a container.
    """

    def __init__(self, connection: asyncssh.SSHClientConnection, inside: Sequence[str] = ()) -> None:
        self._connection, self._inside = connection, inside

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        """See `CommandRunner.run`.

        On cancellation, the channel closes: the command gets the end of its input, and can write no more output.
        """
        try:
            session = self._connection.open_session(shlex.join([*self._inside, *argv]), encoding=None)
            streams = await opened(session, lambda late: late[0].channel.close())
        except asyncssh.Error as error:
            raise ConnectionResetError(f"the connection was lost: {plainly(error)}") from error
        feeding = asyncio.ensure_future(_feed(streams[0], stdin))
        ending = asyncio.ensure_future(_end(*streams, output))
        try:
            await asyncio.wait([feeding, ending], return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                feeding.result()
            return await ending
        finally:
            for task in (feeding, ending):
                task.cancel()
                task.add_done_callback(partial(discard_result, lambda _: None))
            streams[0].channel.close()


async def _feed(command: asyncssh.SSHWriter[bytes], stdin: bytes | AsyncIterable[bytes]) -> None:
    """Write all of ``stdin`` as fast as the command reads. When the command ends, drop the rest."""
    async for part in _slices(stdin) if isinstance(stdin, bytes) else stdin:
        try:
            command.write(part)
            await command.drain()
        except (OSError, asyncssh.Error):
            # the command closed its input, or the connection was lost, which `_end` reports
            return
    command.write_eof()


async def _slices(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), SLICE_BYTES):
        yield data[at : at + SLICE_BYTES]


async def _end(
    stdin: asyncssh.SSHWriter[bytes],
    stdout: asyncssh.SSHReader[bytes],
    stderr: asyncssh.SSHReader[bytes],
    output: Callable[[bytes], None] | None,
) -> CommandResult:
    """Return how the command ended, or raise an error if the connection was lost before."""
    channel, out, errors = stdin.channel, bytearray(), bytearray()
    assert isinstance(channel, asyncssh.SSHClientChannel)
    lost: Exception | None = None
    try:
        await asyncio.gather(_read(stdout, output or partial(_keep, out)), _read(stderr, partial(_keep, errors)))
        await channel.wait_closed()
    except (OSError, asyncssh.Error) as error:
        lost = plainly(error)
    status, signal = channel.get_exit_status(), channel.get_exit_signal()
    if status is None:
        raise ConnectionResetError(f"the connection was lost: {lost or 'closed by the other side'}")
    return CommandResult(status if signal is None else None, signal and signal[0], bytes(out), bytes(errors))


async def _read(source: asyncssh.SSHReader[bytes], output: Callable[[bytes], None]) -> None:
    while data := await source.read(SLICE_BYTES):
        output(data)


def _keep(text: bytearray, data: bytes) -> None:
    text += data
    del text[:-LAST_BYTES]
