"""What goes out on an SSH connection: each packet alone, without one that is to be ignored before it."""

from __future__ import annotations

from typing import Any

import asyncssh
import pytest

from outrider.engine.transport import ssh
from outrider.providers.base import Address, Machine, MachineId

from .conftest import Serve, Site

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
    assert all("gcm" in cipher or "poly1305" in cipher for cipher in ssh.CIPHERS)


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
