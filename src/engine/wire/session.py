"""One end of a session: counts reliable frames, keeps them until acknowledged, and resends them on reconnect. No I/O.

Both ends count the reliable frames of each direction implicitly, in order; an `Ack` says how many arrived. A connection
that breaks at any byte loses nothing and repeats nothing:

    SESSION-1  each reliable message is delivered exactly once
    SESSION-2  in the order it was sent
    SESSION-3  a frame is kept until the other end has acknowledged it, and no longer
    SESSION-4  bytes that are not the protocol deliver nothing of the read they came in
    SESSION-5  an end that has a bound on what it keeps breaks with one that speaks while more is unacknowledged
    SESSION-6  a `Ping` or `Pong` comes behind all reliable frames that were sent before it; if one of these is missing
               the session is over, for a reconnect would send the wrong ones again
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import get_args

from . import codec
from .codec import ProtocolError
from .messages import Ack, BothWays, Hello, Message, Ping, Pong, Refused, Sampled, ToClient, ToNode, Welcome

UNCOUNTED = frozenset({Hello, Welcome, Refused, Ack, Ping, Pong, Sampled})
_COUNTS = frozenset({Ping, Pong})  # uncounted messages that say how many frames went before them
FOR_NODES = frozenset(get_args(ToNode | BothWays)) - {Hello}  # which the server takes before there is a session
FOR_CLIENTS = frozenset(get_args(ToClient | BothWays))
ACK_EVERY = 64  # reliable frames received that make an `Ack` due; with a heartbeat a single one does
# At a client, for one node: generous. An honest node that stalls leaves its tasks' orders, and a window of items for
# each, unacknowledged: 400 tasks with the largest orders and items that ride in frames are 400 * 17 * 64 KiB = 425 MiB.
KEPT_BYTES = 512 << 20


class FramesLost(ProtocolError):
    """Frames are missing without a loss of the connection: a defect. The session cannot go on."""


def attempt_digest(attempts: Iterable[int]) -> tuple[int, int]:
    """Return a fingerprint of attempts: their number, and the sum of their numbers modulo 2**62."""
    numbers = tuple(attempts)
    return len(numbers), sum(numbers) % 2**62


class Session:
    """One side of a session. It begins disconnected: frames wait until `resume` gives the count of the other end.

    ``accepts`` are the messages that the other end may send: `FOR_NODES` or `FOR_CLIENTS`. ``keeps_bytes`` bounds what
    is kept for the other end while it answers. While it is away nothing counts against it: its greeting tells how much
    it has. An executor has no bound: it keeps the results of its client's own orders.
    """

    __slots__ = (
        "_accepts",
        "_acked",
        "_acknowledge",
        "_acknowledged",
        "_keeps_bytes",
        "_kept",
        "_out",
        "_splitter",
        "connected",
        "kept_bytes",
        "received",
    )

    def __init__(self, accepts: frozenset[type[Message]] = FOR_CLIENTS, *, keeps_bytes: float = math.inf) -> None:
        self._accepts = accepts
        self._keeps_bytes = keeps_bytes
        self.received = 0  # reliable frames
        self.kept_bytes = 0  # sent, or to be sent, and not acknowledged: when it grows, the other end is slow or away
        self._acked = 0  # of `received`, in the last Ack
        self._acknowledge = False
        self._acknowledged = 0  # reliable frames of ours that the other end has; `_kept` begins behind it
        self._kept: deque[bytes | codec.SharedFrame] = deque()
        self._out: list[bytes] = []
        self.connected = False
        self._splitter = codec.Splitter()

    def send(self, message: Message) -> None:
        """Queue for the next `flush`. Uncounted messages are lost while there is no connection."""
        frame = codec.encode(message)
        if type(message) not in UNCOUNTED:
            self._keep(frame)
        elif self.connected:
            self._out.append(frame)
            if self.received != self._acked:  # a heartbeat: the other end forgets what we have, at the latest now
                self._acknowledge = True

    def send_body(self, body: bytes) -> None:
        """Queue the unchanged body of a relayed reliable frame."""
        self._keep(codec.frame(body))

    def send_shared(self, frame: codec.SharedFrame) -> None:
        """Queue a frame that shares a part with frames of other sessions."""
        self._kept.append(frame)
        self.kept_bytes += len(frame)
        if self.connected:
            self._out += frame.head, frame.tail

    @property
    def sent(self) -> int:
        """Return the number of reliable frames that were sent, or wait for the next `flush` or connection."""
        return self._acknowledged + len(self._kept)

    @property
    def pending(self) -> bool:
        """Return whether `flush` has something to write."""
        return self.connected and (bool(self._out) or self.received - self._acked >= ACK_EVERY)

    def flush(self) -> bytes:
        """Return the bytes to write now; empty if there are none or no connection. An `Ack` that is due comes first."""
        if not self.connected:
            return b""
        if self._acknowledge or self.received - self._acked >= ACK_EVERY:
            self._acknowledge = False
            self._acked = self.received
            self._out.insert(0, codec.encode(Ack(self.received)))
        elif not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages of `feed_framed`, without their bodies."""
        return [message for message, _ in self.feed_framed(data)]

    def feed_framed(self, data: bytes) -> list[tuple[Message, bytes]]:
        """Return the messages completed by ``data``, without the session's own, each with its body, to be relayed.

        Raises:
            ProtocolError: nothing of ``data`` counts as received; after a reconnect the other end sends it again. Or
                the other end acknowledges too few of the sent frames.
            FramesLost: see SESSION-6.
        """
        messages: list[tuple[Message, bytes]] = []
        counted = 0
        for body in self._splitter.feed(data):
            message = codec.decode(body)
            kind = type(message)
            if kind not in self._accepts:
                raise ProtocolError(f"{kind.__name__} goes the other way")
            if kind is Ack:
                self._release(message.received)  # type: ignore[union-attr]
                continue
            if kind not in UNCOUNTED:
                counted += 1
            elif kind in _COUNTS and message.frames not in (0, self.received + counted):  # type: ignore[union-attr]
                sent, arrived = message.frames, self.received + counted  # type: ignore[union-attr]
                raise FramesLost(f"{sent} frames were sent and {arrived} arrived: a defect of Outrider")
            messages.append((message, body))
        if self.kept_bytes > self._keeps_bytes:
            raise ProtocolError(f"it speaks, and has not acknowledged {self.kept_bytes} bytes that it was sent")
        self.received += counted
        return messages

    def lost(self) -> None:
        """Handle the loss of the connection: half a frame is forgotten, the rest kept."""
        self.connected = False
        self._splitter = codec.Splitter()
        self._out.clear()

    def resume(self, peer_received: int) -> None:
        """Begin a new connection: the other end greeted that it has ``peer_received`` of our frames; send the rest.

        Raises:
            ProtocolError: it cannot have that many, or had more before: it is not the other end of this session.
        """
        self._release(peer_received)
        self.connected = True
        self._acknowledge = True  # the other end may know less than we have by now
        self._out = []
        for frame in self._kept:
            self._out += (frame,) if isinstance(frame, bytes) else (frame.head, frame.tail)

    def _keep(self, frame: bytes) -> None:
        self._kept.append(frame)
        self.kept_bytes += len(frame)
        if self.connected:
            self._out.append(frame)

    def _release(self, acknowledged: int) -> None:
        news = acknowledged - self._acknowledged
        if not 0 <= news <= len(self._kept):
            sent = self._acknowledged + len(self._kept)
            raise ProtocolError(
                f"{acknowledged} frames acknowledged, of {sent} sent and {self._acknowledged} acknowledged before"
            )
        for _ in range(news):
            self.kept_bytes -= len(self._kept.popleft())
        self._acknowledged = acknowledged
