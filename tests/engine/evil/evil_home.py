"""An executor that errs on purpose: the real one with a few lines changed. It is imported by the nodes of a pool.

The first machine of the pool that finds an order in the folder ``OUTRIDER_EVIL`` carries it out; all others are honest.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from outrider.engine.node import client_channels
from outrider.engine.node import server as node_server
from outrider.engine.node.server import ExecutorServer
from outrider.engine.wire import codec, messages
from outrider.engine.wire import messages as m
from outrider.engine.wire.session import FOR_NODES, UNCOUNTED, Session

HOSTNAME = "evil"
FAR = (0, 2**31, 2**62, 2**63 - 2, 2**63 - 1)
BEFORE = 60  # attempts before the newest: finished, cancelled, other nodes'. What comes next may be its own by then
FORGED = m.Value(b"\x80\x05\x8c\x06forged.", None)  # the pickle of a text

# What may be said of an attempt, or at all, within the ranges of the protocol.
WORDS: dict[type[Any], Callable[[int], m.Message]] = {
    m.Started: m.Started,
    m.Done: lambda attempt: m.Done(attempt, FORGED if attempt % 2 else m.Value(b"", (9,), "forged"), 1),
    m.Failed: lambda attempt: m.Failed(attempt, "call", "ValueError", "forged", "", FORGED, 1, ""),
    m.Ended: lambda attempt: m.Ended(attempt, list(m.Cause)[attempt % len(m.Cause)], attempt % 300, "forged"),
    m.Returned: lambda attempt: m.Returned((attempt, attempt, 0)),
    m.Yield: lambda attempt: m.Yield(attempt, FORGED),
    m.Credit: lambda attempt: m.Credit(attempt, attempt % 3 - 1, 2**63 - 1),
    m.Output: lambda attempt: m.Output(attempt, 1, b"", 2**63 - 1),
    m.Logged: lambda attempt: m.Logged(
        attempt,
        b"\x91\x94\x00\x01\x02\x81\xa1x\x03" if attempt % 2 else b"{",
        2**63 - 1,
        "forged" if attempt % 5 == 0 else None,
    ),
    m.PreemptionNotice: lambda attempt: m.PreemptionNotice(f"forged {attempt}", None),
    m.StopChecks: lambda attempt: m.StopChecks(attempt, attempt % 5, attempt % 7, 2**63 - 1),
    m.Ports: lambda attempt: m.Ports(attempt % 99, tuple(range(1 + attempt % 60_000, 400 + attempt % 60_000))),
    m.Welcome: lambda attempt: m.Welcome(1, True, attempt, {}, ("b",), (1,)),
    m.Refused: lambda attempt: m.Refused(f"forged {attempt}", {}),
    m.Sampled: lambda attempt: m.Sampled(
        1e14, attempt % 2, 1e6, 2**47, 0, 2**63 - 1, 0, 2**63 - 1, 0, (m.GpuSample(2**63 - 1, None, 0, 0, 1e6),) * 100
    ),
    m.Stacks: lambda attempt: m.Stacks(attempt % 7, attempt if attempt % 3 else None, "forged\x1b[2J" * 9, 2**63 - 1),
    m.Profiled: lambda attempt: m.Profiled(attempt, "forged\x1b[2J", f"forged {attempt}", "forged\x1b[2J" * 9),
    m.NotMoved: lambda attempt: m.NotMoved(f"forged {attempt}", "forged\x1b[2J" * 9),
    messages.Kept: lambda attempt: messages.Kept(
        attempt, f"forged {attempt}", 2**63 - 1, attempt % 3, 2**63 - 1, True, 2**47, 0, f"forged {attempt}"
    ),
    messages.Joined: messages.Joined,
    messages.Stored: lambda attempt: messages.Stored(attempt, f"forged {attempt}", 2**63 - 1, 2**63 - 1),
    messages.Replicated: lambda attempt: messages.Replicated(
        f"forged {attempt}", "/dev/zero", "forged\x1b[2J" * (attempt % 2)
    ),
    m.Serving: lambda attempt: m.Serving(f"forged {attempt}", None, "forged\x1b[2J" * 9),
    m.Arrived: lambda attempt: m.Arrived(f"forged {attempt}", 2**47, "forged", True, "forged\x1b[2J" * 9),
    m.Ping: m.Ping,
    m.Pong: lambda attempt: m.Pong(attempt, 2**63 - 1),
}
COSTS_THE_NODE: dict[type[Any], Callable[[int], m.Message]] = {
    m.Ack: m.Ack,  # of frames that nobody sent
    m.Unfit: lambda attempt: m.Unfit(f"forged {attempt}", False),
}


# What it says of a blob, in place of the blob or of that it has one; what follows (None: nothing) ends the channel.
BLOB_WORDS: dict[type[Any], bytes] = {
    m.Have: codec.encode(m.Have("forged", 100)) + bytes(101),
    m.Missing: codec.encode(m.Missing("forged")),
}
BLOB_BREACHES = {
    "no word": b"",
    "half a blob": codec.encode(m.Have("forged", 100)) + bytes(50),
    "half a frame": codec.encode(m.Have("forged", 100))[:3],
    "another message": codec.encode(m.Ping(1)),
    "no frame": b"\xff" * 100,
}


class Order(NamedTuple):
    """What an evil executor does; all of it happens as often as a task is sent to it."""

    kinds: tuple[str, ...] = ()  # says these, of all attempts that are not its own
    frames: tuple[bytes, ...] = ()  # says these as they are, as a part of its session
    raw: bytes = b""  # writes this into the control channel
    own: tuple[tuple[str, int], ...] = ()  # of the very attempt that came: a message, and how often
    sizes: tuple[int, ...] = ()  # of blobs: announces these, one after the other
    blobs: bytes | None = None  # answers whatever is asked or sent of blobs by this
    closes: bool = False  # the channel, behind that
    floods: int = 1  # says `kinds` so many times over
    facts: tuple[tuple[str, object], ...] = ()  # of its welcome
    hangs_up: bool = False  # as soon as it has greeted
    acknowledges: bool = True  # what it has received
    yields: tuple[bytes, ...] = ()  # values of the very attempt that came


OWN: dict[str, Callable[[int], m.Message]] = {
    "Yield": lambda attempt: m.Yield(attempt, m.Value(bytes(60_000))),
    "Credit": lambda attempt: m.Credit(attempt, 0, 2**60),
}


def packed(kind: type[Any], *fields: object) -> bytes:
    """A body that `codec.body` would write, whatever is in the fields."""
    return bytes(msgpack.packb((codec.TAGS[kind], *fields)))


def place(folder: Path, order: Order) -> None:
    (folder / "order").write_bytes(pickle.dumps(tuple(order)))


def serve(listener: socket.socket, forks: socket.socket, **options: Any) -> None:
    """What `providers.base.EntryPoints.executor` names."""
    node_server.ExecutorServer = make  # type: ignore[misc,assignment]
    node_server.serve(listener, forks, **options)


def make(forks: Any, **options: Any) -> ExecutorServer:
    folder = Path(os.environ["OUTRIDER_EVIL"])
    try:
        (folder / "order").rename(folder / "taken")
    except FileNotFoundError:
        return ExecutorServer(forks, **options)
    return EvilExecutor(Order(*pickle.loads((folder / "taken").read_bytes())), forks, **options)


class EvilExecutor(ExecutorServer):
    def __init__(self, order: Order, forks: Any, **options: Any) -> None:
        super().__init__(forks, **options)
        self._order = order
        if not order.acknowledges:
            self._session = _Ungrateful(FOR_NODES)
        self._store._same_host = False  # large results go through channels, which it serves
        self._sizes = iter(order.sizes * 1000)
        if order.sizes:
            client_channels.Have = self._have  # type: ignore[misc,assignment]
        if order.blobs is not None:
            client_channels.BlobOut.begin = lambda blob: self._blob(blob._transport)  # type: ignore[method-assign]
            client_channels.BlobIn.data_received = lambda blob, data: self._blob(blob._transport)  # type: ignore[method-assign]

    def _blob(self, transport: asyncio.Transport) -> None:
        transport.write(self._order.blobs or b"")
        if self._order.closes:
            transport.close()

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"hostname": HOSTNAME} | dict(self._order.facts)

    def _have(self, blob: str, size_bytes: int) -> m.Have:
        return m.Have(blob, next(self._sizes))

    def greeted(self, transport: asyncio.Transport, hello: m.Hello, rest: bytes) -> None:
        super().greeted(transport, hello, rest)
        if self._order.hangs_up:
            self._loop.call_later(0.001, transport.close)

    def _obey(self, message: m.Message, body: bytes) -> None:
        super()._obey(message, body)
        if isinstance(message, m.Run):
            self._err(message.attempt)

    def _err(self, newest: int) -> None:
        for body in self._words(newest):
            if type(codec.decode_again(body)) in UNCOUNTED:
                self._session._out.append(codec.frame(body))
            else:
                self._session.send_body(body)
        for body in self._order.frames:
            self._session.send_body(body)
        if self._order.raw:
            self._session._out.append(self._order.raw)

    def _words(self, newest: int) -> Iterator[bytes]:
        worker_of = self._workers._scheduler.worker_of
        attempts = [*range(max(0, newest - BEFORE), newest), newest + 10_000, *FAR]
        words = {kind.__name__: word for kind, word in (WORDS | COSTS_THE_NODE).items()}
        for kind in self._order.kinds * self._order.floods:
            for attempt in attempts:
                if worker_of(attempt) is None:
                    yield codec.body(words[kind](attempt))
        for kind, often in self._order.own:
            yield from [codec.body(OWN[kind](newest))] * often
        for data in self._order.yields:
            yield codec.body(m.Yield(newest, m.Value(data)))


class _Ungrateful(Session):
    __slots__ = ()

    def flush(self) -> bytes:
        self._acknowledge, self._acked = False, self.received
        return super().flush()
