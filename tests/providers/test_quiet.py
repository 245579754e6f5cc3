"""Two real ends of asyncssh with nothing but our packets between them."""

from __future__ import annotations

import asyncio
import logging
import socket

import asyncssh
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from outrider.providers.quiet import quieten, unlogged

pytestmark = pytest.mark.anyio
ROUNDS = 200
SIZE_BYTES = 4096


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def packets(caplog):
    """The names of all packets from here on, of both ends."""
    asyncssh.set_debug_level(3)
    caplog.set_level(logging.DEBUG, logger="asyncssh")
    yield lambda: [record.getMessage().partition("Sent ")[2].partition(" ")[0] for record in caplog.records]
    asyncssh.set_debug_level(1)


class Echo(asyncssh.SSHServer):
    def connection_made(self, conn):
        self.conn = conn
        quieten(conn)

    def begin_auth(self, username):
        return False

    def unix_connection_requested(self, dest_path):
        return self.conn.create_unix_channel(encoding=None), Back()


class Back(asyncssh.SSHUNIXSession):
    def connection_made(self, chan):
        self.chan = chan

    def data_received(self, data, datatype=None):
        self.chan.write(data)


class Client(asyncssh.SSHUNIXSession):
    def __init__(self):
        self.came, self.wanted, self.full = b"", 0, asyncio.Event()

    def connection_made(self, chan):
        self.chan = chan

    def data_received(self, data, datatype=None):
        self.came += data
        if len(self.came) == self.wanted:
            self.full.set()

    async def echoed(self, data):
        self.came, self.wanted = b"", len(data)
        self.full.clear()
        self.chan.write(data)
        await self.full.wait()
        return self.came


@pytest.fixture
async def client(tmp_path):
    """A channel to an echo; both ends renew their keys every 64 KiB."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "ssh"))
    here = socket.socket(socket.AF_UNIX)
    renewal = {"rekey_bytes": 16 * SIZE_BYTES, "encryption_algs": ["aes128-gcm@openssh.com"], "config": None}
    async with asyncssh.listen(sock=listener, server_factory=Echo, server_host_keys=[key], **renewal):
        here.connect(str(tmp_path / "ssh"))
        here.setblocking(False)
        public = asyncssh.import_public_key(key.export_public_key())
        async with asyncssh.connect(sock=here, known_hosts=([public], [], []), username="u", **renewal) as connection:
            quieten(connection)
            yield (await connection.create_unix_connection(Client, "/echo", encoding=None))[1]


async def test_only_messages_are_sent(client, packets):
    for number in range(5):
        assert await client.echoed(b"%d" % number) == b"%d" % number
    assert {name for name in packets() if name} == {"MSG_CHANNEL_DATA"}


async def test_keys_are_renewed_under_load(client, packets):
    for number in range(ROUNDS):
        data = number.to_bytes(2, "big") * (SIZE_BYTES // 2)
        assert await client.echoed(data) == data
    assert packets().count("MSG_NEWKEYS") >= 10
    assert "MSG_IGNORE" not in packets()


async def test_a_key_is_expanded_once_also_after_its_renewal(client, packets, monkeypatch):
    made = []

    def aesgcm(key):
        made.append(key)
        return AESGCM(key)

    monkeypatch.setattr("asyncssh.crypto.cipher.AESGCM", aesgcm)
    for number in range(ROUNDS):
        data = number.to_bytes(2, "big") * (SIZE_BYTES // 2)
        assert await client.echoed(data) == data
    assert packets().count("MSG_NEWKEYS") >= 10
    assert len(made) < ROUNDS // 4  # of asyncssh's own: those around a renewal


async def test_what_was_changed_on_the_way_is_refused(client):
    connection = client.chan.get_connection()
    cipher = connection._recv_encryption._cipher
    sealed = AESGCM(cipher._key).encrypt(cipher._iv, b"data", b"head")
    assert cipher.verify_and_decrypt(b"head", sealed[:-17] + b"x", sealed[-16:]) is None
    cipher._iv = cipher._iv[:4] + (int.from_bytes(cipher._iv[4:], "big") - 1).to_bytes(8, "big")
    assert cipher.verify_and_decrypt(b"head", sealed[:-16], sealed[-16:]) == b"data"


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_packets_are_logged_where_somebody_looked_when_the_channel_was_opened(client, packets, caplog, level):
    caplog.set_level(level, logger="asyncssh")
    unlogged(client.chan)
    caplog.set_level(logging.DEBUG, logger="asyncssh")
    assert await client.echoed(b"data") == b"data"
    sent = [line for line in (record.getMessage() for record in caplog.records) if "Sent MSG_CHANNEL_DATA" in line]
    assert len(sent) == (2 if level == logging.DEBUG else 1)  # the echo's end is logged in any case
