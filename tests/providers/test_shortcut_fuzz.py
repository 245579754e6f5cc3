"""The shortcut differs in nothing from asyncssh: the same sealed bytes go to a plain connection and to a shortened one.

Packets are valid, malformed, cut short, altered, repeated and out of order; they arrive in pieces of any size, and the
sessions that get them pause, close, abort, write and raise. A fixed seed, for some seconds; more by `OUTRIDER_FUZZ`
(seconds) and `OUTRIDER_FUZZ_SEED`.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from outrider.providers import shortcut
from outrider.providers.shortcut import shorten, shorten_channel

pytestmark = pytest.mark.anyio
SECONDS = float(os.environ.get("OUTRIDER_FUZZ", "8"))
SEED = int(os.environ.get("OUTRIDER_FUZZ_SEED", "1"))
LEAST = 40  # runs, however slow the machine is
CIPHER = "aes128-gcm@openssh.com"
WINDOW_BYTES, PACKET_BYTES = 1 << 24, 1 << 15
IGNORE, DEBUG, GLOBAL_REQUEST, WINDOW_ADJUST, DATA, EXTENDED, EOF, CLOSE, REQUEST = 2, 4, 80, 93, 94, 95, 96, 97, 98


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- the two connections ----------------------------------------------------------------------------------------------


class Session(asyncssh.SSHUNIXSession[bytes]):
    """Notes what it is given, and does what the data says."""

    def __init__(self) -> None:
        self.data, self.told = b"", list[object]()

    def connection_made(self, chan: Any) -> None:
        self.chan = chan

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        self.data += data
        match data[:5]:
            case b"PAUSE":
                self.chan.pause_reading()
            case b"CLOSE":
                self.chan.close()
            case b"ABORT":
                self.chan.get_connection().abort()
            case b"WRITE":
                self.chan.write(data)
            case b"RAISE":
                raise ZeroDivisionError
            case _:
                pass

    def eof_received(self) -> bool:
        self.told.append("eof")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(type(exc).__name__)


class Server(asyncssh.SSHServer):
    def connection_made(self, conn: Any) -> None:
        self.conn, self.sessions, self.lost = conn, list[Session](), list[str]()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(type(exc).__name__)

    def begin_auth(self, username: str) -> bool:
        return False

    def unix_connection_requested(self, dest_path: str) -> Any:
        self.sessions.append(Session())
        return self.conn.create_unix_channel(encoding=None, window=WINDOW_BYTES, max_pktsize=PACKET_BYTES), (
            self.sessions[-1]
        )


class Nowhere:
    """In place of the transport: what the server says is heard by nobody."""

    closed = False

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


@asynccontextmanager
async def server(path: Path, key: asyncssh.SSHKey, *, short: bool) -> AsyncIterator[Server]:
    """One with two open channels, cut off from its client."""
    made: list[Server] = []
    listener, here = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    common: dict[str, Any] = {"encryption_algs": [CIPHER], "compression_algs": None, "config": None}
    known = ([asyncssh.import_public_key(key.export_public_key())], [], [])
    async with asyncssh.listen(
        sock=listener, server_factory=lambda: made.append(Server()) or made[0],  # type: ignore[func-returns-value]
        server_host_keys=[key], kex_algs=["curve25519-sha256"], encoding=None, **common,
    ):  # fmt: skip
        here.connect(str(path))
        here.setblocking(False)
        async with asyncssh.connect(sock=here, known_hosts=known, username="u", client_keys=None, **common) as client:
            for _ in range(2):
                await client.create_unix_connection(Session, "/x", encoding=None)
            (served,) = made
            connection: Any = served.conn
            await turns(20)
            if short:
                shorten(connection)
                for session in served.sessions:
                    shorten_channel(session.chan)
            transport, connection._transport = connection._transport, Nowhere()
            transport.pause_reading()
            yield served
            connection._transport = None
            for task in list(connection._tasks):
                task.cancel()
            transport.abort()
            client.abort()
    path.unlink()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- the bytes --------------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "big")


def text(data: bytes) -> bytes:
    return number(len(data)) + data


class Sealer:
    """A peer that knows the keys."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.key, self.nonce = dice.randbytes(16), dice.randbytes(4) + dice.choice([dice.randbytes(8), b"\xff" * 8])
        self.first_nonce = self.nonce
        self._aead = AESGCM(self.key)

    def raw(self, packet: bytes) -> bytes:
        length = number(len(packet))
        sealed = length + self._aead.encrypt(self.nonce, packet, length)
        counted = (int.from_bytes(self.nonce[4:], "big") + 1) % (1 << 64)
        self.nonce = self.nonce[:4] + counted.to_bytes(8, "big")
        return sealed

    def packet(self, payload: bytes, padding: int | None = None) -> bytes:
        if padding is None:
            padding = -(1 + len(payload)) % 16
            padding += 16 if padding < 4 else 0
            if self.dice.random() < 0.2:
                padding = min(240, padding + 16 * self.dice.randint(0, 10))
        return self.raw(bytes([padding]) + payload + self.dice.randbytes(padding))

    def data(self, channel: int, data: bytes, padding: int | None = None) -> bytes:
        return self.packet(bytes([DATA]) + number(channel) + text(data), padding)


def flipped(sealed: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(sealed))
    return sealed[:at] + bytes([sealed[at] ^ 1 << dice.randrange(8)]) + sealed[at + 1 :]


def padded_with_all(s: Sealer, c: int, d: bytes) -> bytes:
    """A padding of 255, of which 16 to 32 bytes are there."""
    payload = bytes([DATA]) + number(c) + text(d[:20])
    return s.raw(b"\xff" + payload + s.dice.randbytes(32 - (len(payload) + 1) % 16))


def padded_with_nothing(s: Sealer, c: int, d: bytes) -> bytes:
    payload = bytes([DATA]) + number(c) + number(0) + bytes(6)
    return s.raw(b"\0" + payload + bytes(-(len(payload) + 1) % 16))


LENGTHS = (0, 1, 2, 11, 12, 16, 255, 65535, 1 << 18, (1 << 18) + 1, 1 << 20, 2**31, 2**32 - 1)
LARGE = (33_000, 34_000, 40_000, 64_000, 66_000, 100_000, 263_000)
KINDS: dict[str, tuple[float, Callable[[Sealer, int, bytes], bytes]]] = {  # how often, and what
    "data": (40, lambda s, c, d: s.data(c, d)),
    "no data": (2, lambda s, c, d: s.data(c, b"")),
    "orders": (4, lambda s, c, d: s.data(c, s.dice.choice([b"PAUSE", b"CLOSE", b"ABORT", b"WRITE", b"RAISE"]) + d[:9])),
    "two": (1, lambda s, c, d: s.data(c, d) + s.data(c, d)),
    "repeated": (0.7, lambda s, c, d: s.data(c, d) * 2),
    "altered": (0.7, lambda s, c, d: flipped(s.data(c, d), s.dice)),
    "cut": (0.5, lambda s, c, d: s.data(c, d)[: -s.dice.randint(1, 20)]),
    "noise": (0.7, lambda s, c, d: s.dice.randbytes(s.dice.randint(1, 60))),
    "length": (0.7, lambda s, c, d: number(s.dice.choice(LENGTHS)) + s.data(c, d)[4:]),
    "large": (5, lambda s, c, d: s.data(c, s.dice.randbytes(s.dice.choice(LARGE)))),
    "window": (0.7, lambda s, c, d: b"".join(s.data(c, s.dice.randbytes(32768)) for _ in range(3))),
    "padding": (2, lambda s, c, d: s.data(c, d, s.dice.randint(0, 20))),
    "padding, much": (1, lambda s, c, d: s.data(c, d[:100], 15 + 16 * s.dice.randint(1, 14))),
    "padding, all": (1, padded_with_all),
    "padding, none": (1, padded_with_nothing),
    "text's length": (1.2, lambda s, c, d: s.packet(
        bytes([DATA]) + number(c) + number(len(d) + s.dice.randint(-3, 3)) + d)),
    "no channel": (1, lambda s, c, d: s.data(s.dice.choice([7, 99, 2**32 - 1]), d)),
    "short": (1.2, lambda s, c, d: s.packet((bytes([DATA]) + number(c) + number(0))[: s.dice.randint(0, 9)])),
    "extended": (1, lambda s, c, d: s.packet(bytes([EXTENDED]) + number(c) + number(1) + text(d))),
    "eof": (1, lambda s, c, d: s.packet(bytes([EOF]) + number(c))),
    "close": (1, lambda s, c, d: s.packet(bytes([CLOSE]) + number(c))),
    "adjust": (3, lambda s, c, d: s.packet(bytes([WINDOW_ADJUST]) + number(c) + number(s.dice.randint(0, 1 << 20)))),
    "request": (1, lambda s, c, d: s.packet(bytes([REQUEST]) + number(c) + text(b"nope") + b"\1")),
    "ignore": (5, lambda s, c, d: s.packet(bytes([IGNORE]) + text(d[:64]))),
    "debug": (2, lambda s, c, d: s.packet(bytes([DEBUG, 0]) + text(b"x") + text(b""))),
    "global": (0.7, lambda s, c, d: s.packet(bytes([GLOBAL_REQUEST]) + text(b"keepalive@openssh.com") + b"\1")),
    "unknown": (2, lambda s, c, d: s.packet(bytes([s.dice.choice([3, 60, 99, 100, 192, 255, 0, 1])]) + number(1))),
    "keys": (0.5, lambda s, c, d: s.packet(bytes([s.dice.choice([20, 21, 30, 31])]) + d[:40])),
}  # fmt: skip


def drawn(dice: random.Random, sealer: Sealer, channels: list[int]) -> tuple[list[str], list[bytes]]:
    """Some packets, in pieces."""
    kinds = dice.choices([*KINDS], [often for often, _ in KINDS.values()], k=dice.randint(1, 14))
    stream = b""
    for kind in kinds:
        data = dice.randbytes(dice.choice([1, 5, 15, 16, 17, 100, 1000, 4000, 16_000, 32_000]))
        stream += KINDS[kind][1](sealer, dice.choice(channels), data)
    cuts = sorted({dice.randrange(len(stream) + 1) for _ in range(dice.choice([0, 3, 20, 200]))})
    return kinds, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if b > a]


# --- what became of them ----------------------------------------------------------------------------------------------


async def fed(served: Server, sealer: Sealer, pieces: list[bytes], pauses: list[bool]) -> dict[str, Any]:
    connection: Any = served.conn
    cipher = connection._recv_encryption._cipher
    cipher._key, cipher._iv = sealer.key, sealer.first_nonce
    for piece, pause in zip(pieces, pauses, strict=True):
        if connection._transport is None:  # a real one would bring no more
            break
        connection.data_received(piece)
        await turns(3 * pause)
    await turns(10)
    closed = connection._transport is None
    fields = "_recv_window", "_recv_state", "_send_state", "_recv_buf", "_send_buf", "_send_window"
    return {
        "closed": closed,
        "lost": served.lost,
        "heard": [(session.data, session.told) for session in served.sessions],
        "channels": [[getattr(session.chan, field) for field in fields] for session in served.sessions],
        "nonce": cipher._iv,
        "sequence": None if closed else connection._recv_seq,  # of a closed one it counts for nothing
        "unread": 0 if closed else len(connection._inpbuf) + (16 if connection._recv_handler != connection._recv_pkthdr
                                                              else 0),
    }  # fmt: skip


async def test_the_shortcut_does_what_asyncssh_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcut, "KNOWN", {asyncssh.__version__})
    key = asyncssh.generate_private_key("ssh-ed25519")
    until, run = time.monotonic() + SECONDS, 0
    while run < LEAST or time.monotonic() < until:
        run += 1
        seed = SEED * 1_000_000 + run
        dice = random.Random(seed)
        sealer, kinds, pieces, pauses = Sealer(dice), list[str](), list[bytes](), list[bool]()
        found: list[dict[str, Any]] = []
        for short in (False, True):
            async with server(tmp_path / "ssh", key, short=short) as served:
                if not short:
                    kinds, pieces = drawn(dice, sealer, [session.chan._recv_chan for session in served.sessions])
                    pauses = [dice.random() < 0.3 for _ in pieces]
                found.append(await fed(served, sealer, pieces, pauses))
        plain, shortened = found
        assert shortened == plain, f"seed {seed}: {kinds}"
