"""What crosses an SSH connection: each packet alone, without one that is to be ignored before it."""

from __future__ import annotations

from typing import Any

import anyio
import asyncssh
import pytest

from outrider.engine.transport import ssh
from outrider.engine.transport.flow_control import ReceiveWindow
from outrider.engine.transport.ssh import TAG_BYTES
from outrider.providers.base import Address, Machine, MachineId

from .conftest import Serve, Site
from .test_packet_ends import HANDSHAKE, sealed

pytestmark = pytest.mark.anyio
IGNORE, DEBUG = 2, 4  # RFC 4253, 11.2 and 11.3


async def kinds_sent(site: Site, connected: ssh.Connected) -> list[int]:
    kinds: list[int] = []
    heard: Any = site.connections[-1]
    heard.log_received_packet = lambda kind, *_: kinds.append(kind)
    assert (await ssh.RemoteShell(connected.connection).run(["cat"], stdin=b"some")).stdout == b"some"
    connected.abort()
    return kinds


async def test_a_connection_by_the_pools_key_sends_nothing_to_ignore(serve: Serve) -> None:
    async with serve() as site:
        key = asyncssh.read_private_key(site.folder / "key")
        machine = Machine(MachineId("pool/m"), Address("127.0.0.1", site.port), site.public_key)
        kinds = await kinds_sent(site, await ssh.connect(machine, key))
    assert kinds
    assert IGNORE not in kinds


async def test_a_connection_by_the_users_own_login_sends_nothing_to_ignore(serve: Serve) -> None:
    async with serve() as site:
        machine = site.machine(known_hosts=(site.known_hosts(),), config=())
        kinds = await kinds_sent(site, await ssh.connect(machine, asyncssh.generate_private_key("ssh-ed25519")))
    assert kinds
    assert IGNORE not in kinds


def test_no_cipher_has_an_initialization_vector_that_is_to_be_hidden() -> None:
    assert not [cipher for cipher in ssh.CIPHERS if "cbc" in cipher]


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
async def test_packets_are_put_into_words_for_a_debug_log_alone(
    serve: Serve, level: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[Any] = []
    monkeypatch.setattr(asyncssh.connection.SSHConnection, "log_sent_packet", lambda *_: put.append(1))
    caplog.set_level(level, "asyncssh")
    async with serve() as site:
        key = asyncssh.read_private_key(site.folder / "key")
        machine = Machine(MachineId("pool/m"), Address("127.0.0.1", site.port), site.public_key)
        connected = await ssh.connect(machine, key)
        put.clear()
        connected.connection.send_packet(DEBUG, bytes(9))
        assert bool(put) is (level == "DEBUG")
        connected.abort()


async def test_what_the_server_has_passed_on_is_told(serve: Serve) -> None:
    async with serve() as site:
        key = asyncssh.read_private_key(site.folder / "key")
        machine = Machine(MachineId("pool/m"), Address("127.0.0.1", site.port), site.public_key)
        connected = await ssh.connect(machine, key)
        trip_s = ssh.round_trip_s(connected.connection)
        assert trip_s is not None
        assert 0 < trip_s < 1
        assert ssh.NEAR_WINDOW_BYTES < ssh.blob_window(connected.connection) <= ssh.WINDOW_BYTES
        writer, reader, _ = await connected.connection.open_session("cat > /dev/null; echo done", encoding=None)
        told = list[int]()
        ssh.tell_taken(writer.channel, told.append)
        size_bytes = 8 << 20
        for _ in range(size_bytes >> 15):
            writer.write(bytes(32 << 10))
            await writer.drain()
        writer.write_eof()
        assert await reader.read() == b"done\n"
        assert size_bytes / 2 < sum(told) <= size_bytes
        connected.abort()


async def test_what_comes_is_taken_a_packet_at_a_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = list[bytes]()
    take = asyncssh.connection.SSHConnection.data_received

    def taken(connection: asyncssh.connection.SSHConnection, data: bytes, datatype: int | None = None) -> None:
        if connection.is_client():
            pieces.append(data)
        take(connection, data, datatype)

    monkeypatch.setattr(asyncssh.connection.SSHConnection, "data_received", taken)
    async with serve() as site:
        key = asyncssh.read_private_key(site.folder / "key")
        machine = Machine(MachineId("pool/m"), Address("127.0.0.1", site.port), site.public_key)
        connected = await ssh.connect(machine, key)
        assert connected.connection.get_extra_info("recv_cipher") == ssh.CIPHERS[0]
        pieces.clear()
        await ssh.RemoteShell(connected.connection).run(["true"])
        connected.abort()
    assert any(len(piece) == 4 + int.from_bytes(piece[:4], "big") + TAG_BYTES for piece in pieces)


class Played:
    """A connection of asyncssh that is closed by a packet that is wrong."""

    def __init__(self) -> None:
        self.taken = list[bytes]()

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        del datatype
        self.taken.append(data)

    def get_extra_info(self, name: str) -> object:
        if name == "recv_cipher":
            return ssh.CIPHERS[0]
        return None if self.taken and b"wrong" in self.taken[-1] else "a socket"


def test_nothing_is_taken_behind_a_packet_that_ends_the_connection() -> None:
    played = Played()
    ssh.take_packets_alone(played)
    played.data_received(HANDSHAKE)
    first, wrong = sealed(100), sealed(100).replace(b"\xff" * 5, b"wrong", 1)
    played.data_received(first + wrong + first)
    assert played.taken == [HANDSHAKE, first, wrong]


class Session(asyncssh.SSHClientSession[bytes]):
    """Of a command whose output is taken packet by packet."""

    def __init__(self) -> None:
        self.came, self.window, self.over = bytearray(), ReceiveWindow(64 << 10, 0.0001), anyio.Event()

    def connection_made(self, chan: Any) -> None:
        ssh.take_data(chan, self.came.__iadd__, self.window)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.over.set()


async def test_the_data_of_a_channel_comes_whole_through_a_window_that_is_smaller(serve: Serve) -> None:
    async with serve() as site:
        key = asyncssh.read_private_key(site.folder / "key")
        machine = Machine(MachineId("pool/m"), Address("127.0.0.1", site.port), site.public_key)
        connected = await ssh.connect(machine, key)
        command = "seq 1 300000"
        _, session = await connected.connection.create_session(Session, command, encoding=None, window=64 << 10)
        assert isinstance(session, Session)
        await session.over.wait()
        assert session.came == "".join(f"{number}\n" for number in range(1, 300_001)).encode()
        connected.abort()
