"""Two real ends of asyncssh. What one of them sends, and how much of it asyncssh itself has handled."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import Counter
from contextlib import asynccontextmanager

import asyncssh
import pytest
from asyncssh.connection import SSHConnection
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from outrider.providers import shortcut
from outrider.providers.shortcut import shorten, shorten_channel

pytestmark = pytest.mark.anyio
ROUNDS = 200
SIZE_BYTES = 4096
NEWKEYS, IGNORE, DATA, WINDOW_ADJUST = 21, 2, 94, 93
AES, CHACHA = "aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def handled(monkeypatch):
    """How many packets of each kind asyncssh has sent, and (None) how many it has read, at both ends."""
    counts = Counter()
    monkeypatch.setattr(shortcut, "KNOWN", {asyncssh.__version__})  # a new one is to pass these tests first
    send, receive = SSHConnection.send_packet, SSHConnection._recv_packet

    def send_packet(self, kind, *fields, handler=None):
        counts[kind] += 1
        send(self, kind, *fields, handler=handler)

    def recv_packet(self):
        done = receive(self)
        counts[None] += bool(done)
        return done

    monkeypatch.setattr(SSHConnection, "send_packet", send_packet)
    monkeypatch.setattr(SSHConnection, "_recv_packet", recv_packet)
    return counts


class Echo(asyncssh.SSHServer):
    encoding = None

    def connection_made(self, conn):
        self.conn = conn
        shorten(conn)

    def begin_auth(self, username):
        return False

    def unix_connection_requested(self, dest_path):
        return self.conn.create_unix_channel(encoding=dest_path.strip("/") or None), Back()


class Back(asyncssh.SSHUNIXSession):
    def connection_made(self, chan):
        shorten_channel(chan)
        self.chan = chan

    def data_received(self, data, datatype=None):
        self.chan.write(data)

    def eof_received(self):
        return True


class Client(asyncssh.SSHUNIXSession):
    def __init__(self, nothing=b""):
        self.came, self.wanted, self.nothing = nothing, 0, nothing
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, chan):
        shorten_channel(chan)
        self.chan = chan

    def data_received(self, data, datatype=None):
        if data == b"raise":
            raise ZeroDivisionError
        self.came += data
        if len(self.came) == self.wanted:
            self.full.set_result(None)

    def connection_lost(self, exc):
        if not self.full.done():
            self.full.set_exception(exc or EOFError())

    async def echoed(self, data):
        self.came, self.wanted = self.nothing, len(data)
        self.full = asyncio.get_running_loop().create_future()
        self.chan.write(data)
        await self.full
        return self.came


@asynccontextmanager
async def echo(directory, cipher=AES, encoding=None, **options):
    """A channel to an echo. ``options`` are of both ends."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "ssh"))
    here = socket.socket(socket.AF_UNIX)
    common = {"encryption_algs": [cipher], "compression_algs": None, "config": None, **options}
    async with asyncssh.listen(sock=listener, server_factory=Echo, server_host_keys=[key], **common):
        here.connect(str(directory / "ssh"))
        here.setblocking(False)
        public = asyncssh.import_public_key(key.export_public_key())
        async with asyncssh.connect(sock=here, known_hosts=([public], [], []), username="u", **common) as connection:
            shorten(connection)
            session = lambda: Client("" if encoding else b"")  # noqa: E731
            yield (await connection.create_unix_connection(session, f"/{encoding or ''}", encoding=encoding))[1]


@pytest.fixture
async def client(tmp_path, handled):
    async with echo(tmp_path) as client:
        handled.clear()
        yield client


def test_the_steps_of_the_asyncssh_that_is_installed_are_known():
    """When this fails: read what is new in its `send_packet`, `_recv_packet` and `write`. Pools are slower so long."""
    assert asyncssh.__version__ in shortcut.KNOWN


async def test_asyncssh_handles_no_data(client, handled):
    for number in range(5):
        assert await client.echoed(b"%d" % number) == b"%d" % number
    assert not handled


async def test_more_than_a_window_holds(client, handled):
    data = random.Random(0).randbytes(5 << 20)
    assert await client.echoed(data) == data
    assert handled[WINDOW_ADJUST] >= 2
    assert not handled[DATA]


@pytest.mark.parametrize("longest", [1, 40, 5000])
@pytest.mark.parametrize("rekey_bytes", [1 << 30, SIZE_BYTES])
async def test_however_the_bytes_are_cut(tmp_path, handled, longest, rekey_bytes):
    async with echo(tmp_path, rekey_bytes=rekey_bytes) as client:
        handled.clear()
        connection = client.chan.get_connection()
        receive, dice = connection.data_received, random.Random(longest)

        def in_pieces(data, datatype=None):
            while data:
                size = dice.randint(1, longest)
                receive(data[:size])
                data = data[size:]

        connection.data_received = in_pieces
        for size in (1, 15, 16, 17, 300, 20_000, 17, 20_000):
            data = dice.randbytes(size)
            assert await client.echoed(data) == data
        assert bool(handled) == (rekey_bytes == SIZE_BYTES)


async def test_packets_are_as_the_rfc_wants_them(client, monkeypatch):
    connection = client.chan.get_connection()
    transport, cipher = connection._transport, connection._send_encryption._cipher
    write, packets, nonces = transport.write, [], [cipher._iv]

    def note(data):
        packets.append(AESGCM(cipher._key).decrypt(nonces[-1], data[4:], data[:4]))
        nonces.append(cipher._iv)
        write(data)

    monkeypatch.setattr(transport, "write", note)
    before = connection._send_seq, connection._recv_seq, client.chan._send_window
    for size in range(1, 40):
        data = bytes(range(size))
        assert await client.echoed(data) == data
        assert len(packets[-1]) % 16 == 0
        assert 4 <= packets[-1][0] < 20
        assert packets[-1][10 : -packets[-1][0]] == data
    client.chan.write(b"")
    assert len(packets) == len({*nonces}) - 1 == 39
    sent = sum(range(1, 40))
    after = connection._send_seq, connection._recv_seq, client.chan._send_window
    assert after == (before[0] + 39, before[1] + 39, before[2] - sent)


async def test_keys_are_renewed_under_load(tmp_path, handled):
    async with echo(tmp_path, rekey_bytes=16 * SIZE_BYTES) as client:
        handled.clear()
        for number in range(ROUNDS):
            data = number.to_bytes(2, "big") * (SIZE_BYTES // 2)
            assert await client.echoed(data) == data
        assert handled[NEWKEYS] >= 10
        assert handled[DATA] < ROUNDS // 4  # those written during a renewal


async def test_keys_are_renewed_in_time_and_data_waits_for_it(client, handled):
    connection = client.chan.get_connection()
    connection._rekey_time, client.wanted = 0.0, 3
    for data in (b"a", b"b", b"c"):
        client.chan.write(data)
    assert len(connection._deferred_packets) == 3
    await client.full
    assert client.came == b"abc"
    assert handled[NEWKEYS] == 2


async def test_compressed_data_is_left_to_asyncssh(tmp_path, handled):
    async with echo(tmp_path, compression_algs=["zlib@openssh.com"]) as client:
        handled.clear()
        assert await client.echoed(b"data" * 100) == b"data" * 100
        assert handled[DATA] == 2


async def test_nothing_overtakes_what_asyncssh_still_handles(client):
    """It awaits what a handler returns before it reads on."""
    connection = client.chan.get_connection()
    connection._recv_handler, client.wanted = lambda: False, 4
    client.chan.write(b"data")
    while not (connection._inpbuf or client.came):
        await asyncio.sleep(0)
    assert client.came == b""
    connection._recv_handler = connection._recv_pkthdr
    connection._recv_data()
    await client.full
    assert client.came == b"data"


async def test_text_is_left_to_asyncssh(tmp_path, handled):
    async with echo(tmp_path, encoding="utf-8") as client:
        assert await client.echoed("däta") == "däta"


async def test_data_puts_a_keepalive_off(tmp_path):
    async with echo(tmp_path, keepalive_interval=600) as client:
        connection = client.chan.get_connection()
        before = connection._keepalive_timer
        await client.echoed(b"data")
        assert before.cancelled()
        assert connection._keepalive_timer is not before


async def test_what_the_window_does_not_hold_waits_and_what_comes_later_stays_behind_it(client):
    client.wanted, client.chan._send_window = 6, 2
    client.chan.write(b"data")
    assert client.chan.get_write_buffer_size() == 2
    client.chan._send_window = 100
    client.chan.write(b"..")
    await client.full
    assert client.came == b"data.."


async def test_more_than_a_packet_goes_into_several(client, monkeypatch):
    transport, sizes = client.chan.get_connection()._transport, []
    write = transport.write
    monkeypatch.setattr(transport, "write", lambda data: (sizes.append(len(data)), write(data)))
    client.chan._send_pktsize = 3
    assert await client.echoed(b"datadata") == b"datadata"
    assert len(sizes) >= 3


async def test_there_is_no_extended_data_in_such_a_channel(client):
    with pytest.raises(OSError, match="extended data"):
        client.chan.write(b"data", 1)


@pytest.mark.parametrize("eof", [False, True])
async def test_a_peer_that_errs_is_refused(client, handled, eof):
    """A length that does not fit; data after the end of it."""
    if eof:
        client.chan.write_eof()
        while not handled[None]:  # read by itself: what comes in the same read is asyncssh's anyway
            await asyncio.sleep(0)
    where = client.chan._send_chan.to_bytes(4, "big")
    client.chan.get_connection().send_packet(DATA, where, (4 if eof else 5).to_bytes(4, "big"), b"data")
    with pytest.raises(asyncssh.ProtocolError):
        await client.full


async def test_what_was_changed_on_the_way_ends_the_connection(client, monkeypatch):
    transport = client.chan.get_connection()._transport
    write = transport.write
    monkeypatch.setattr(transport, "write", lambda data: write(data[:-1] + bytes([data[-1] ^ 1])))
    with pytest.raises(asyncssh.MACError):
        await client.echoed(b"data")


async def test_a_packet_that_is_too_long_ends_the_connection(client, monkeypatch):
    transport = client.chan.get_connection()._transport
    monkeypatch.setattr(transport, "write", lambda _, write=transport.write: write(b"\x7f" + bytes(100)))
    with pytest.raises(asyncssh.ProtocolError):
        await client.echoed(b"data")


async def test_a_session_that_raises_ends_its_connection(client):
    with pytest.raises(ZeroDivisionError):
        await client.echoed(b"raise")


async def test_more_than_the_window_that_was_given_ends_the_connection(client):
    client.chan._recv_window = 2
    with pytest.raises(asyncssh.ProtocolError):
        await client.echoed(b"data")


async def test_a_closed_channel_takes_and_gives_nothing(client):
    client.chan.write(b"data")
    client.chan.close()
    with pytest.raises(BrokenPipeError):
        client.chan.write(b"data")
    await client.chan.wait_closed()
    assert client.came == b""


async def test_a_burst_into_a_connection_whose_other_end_is_gone_is_no_warning_of_asyncios(client, caplog):
    connection = client.chan.get_connection()
    connection._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    for _ in range(20):
        client.chan.write(b"data")
    with pytest.raises((EOFError, OSError, asyncssh.Error)):
        await client.full
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_another_cipher_is_left_to_asyncssh(tmp_path, handled):
    async with echo(tmp_path, CHACHA) as client:
        handled.clear()
        assert await client.echoed(b"data") == b"data"
        assert handled == {DATA: 2, IGNORE: 2, None: 4}


async def test_an_asyncssh_that_nobody_has_read_is_left_as_it_is(tmp_path, handled, monkeypatch):
    monkeypatch.setattr(asyncssh, "__version__", "3.0.0")
    async with echo(tmp_path) as client:
        handled.clear()
        assert await client.echoed(b"data") == b"data"
        assert handled == {DATA: 2, IGNORE: 2, None: 4}


async def test_who_debugs_asyncssh_sees_every_packet(tmp_path, caplog):
    asyncssh.set_debug_level(3)
    caplog.set_level(logging.DEBUG, logger="asyncssh")
    try:
        async with echo(tmp_path) as client:
            caplog.clear()
            assert await client.echoed(b"data") == b"data"
            said = [record.getMessage() for record in caplog.records]
    finally:
        asyncssh.set_debug_level(1)
    assert sum("Sent MSG_CHANNEL_DATA" in line for line in said) == 2
    assert sum("Received MSG_CHANNEL_DATA" in line for line in said) == 2
