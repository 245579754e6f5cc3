"""One end of a session: counts reliable frames, keeps them until acknowledged, and resends them on reconnect. No I/O.

Both ends count the reliable frames of each direction in order, without sending numbers; an `Ack` contains the number of
frames that have arrived. A connection that breaks at any byte loses nothing and repeats nothing:

    SESSION-1  each reliable message is delivered exactly once
    SESSION-2  messages are delivered in the order in which they were sent
    SESSION-3  a frame is kept until the other end has acknowledged it, and no longer
    SESSION-4  if a read contains bytes that violate the protocol, no message of that read is delivered
    SESSION-5  an end with a limit for kept frames closes the session if the other end sends data while more than the
               limit is unacknowledged
    SESSION-6  a `Ping` or `Pong` follows all reliable frames that were sent before it; if one of these is missing, the
               session is over, because a reconnect would resend the wrong ones
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
_COUNTS = frozenset({Ping, Pong})  # uncounted messages that contain the number of frames sent before them
# without `Hello`, which the server handles before a session exists
FOR_NODES = frozenset(get_args(ToNode | BothWays)) - {Hello}
FOR_CLIENTS = frozenset(get_args(ToClient | BothWays))
ACK_EVERY = 64  # after so many received frames an `Ack` is sent; with a heartbeat, it is sent after a single frame
# A client's limit for one node. It is large: a node that works correctly but stalls may leave its tasks' messages and,
# for each task, a window of items unacknowledged. 400 tasks with the largest messages and items that are sent in frames
# are 400 * 17 * 64 KiB = 425 MiB.
KEPT_BYTES = 512 << 20


class FramesLost(ProtocolError):
    """Raised when frames are missing though the connection was not lost: a bug. The session cannot continue."""


def attempt_digest(attempts: Iterable[int]) -> tuple[int, int]:
    """Return a fingerprint of attempts: how many there are, and the sum of their numbers modulo 2**62."""
    numbers = tuple(attempts)
    return len(numbers), sum(numbers) % 2**62


class Session:
    """One side of a session. It begins disconnected: frames wait until `resume` gets the frame count of the other end.

    Args:
        accepts: the messages that the other end may send: `FOR_NODES` or `FOR_CLIENTS`.
        keeps_bytes: limit for the bytes kept for the other end while it sends data. While it is away, there is no
            limit: after a reconnect its greeting contains how much it has received. An executor has no limit, because
            it keeps only results that its client has requested.
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
        self.received = 0  # reliable frames received
        self.kept_bytes = 0  # bytes sent or queued, and not acknowledged; if it grows, the other end is slow or away
        self._acked = 0  # the value of `received` in the last Ack
        self._acknowledge = False
        # own reliable frames that the other end has acknowledged; the next frame is the first in `_kept`
        self._acknowledged = 0
        self._kept: deque[bytes | codec.SharedFrame] = deque()
        self._out: list[bytes] = []
        self.connected = False
        self._splitter = codec.Splitter()

    def send(self, message: Message) -> None:
        """Queue a message for the next `flush`. Uncounted messages are dropped while there is no connection."""
        frame = codec.encode(message)
        if type(message) not in UNCOUNTED:
            self._keep(frame)
        elif self.connected:
            self._out.append(frame)
            # with a heartbeat, acknowledge at the latest now, so that the other end can drop its kept frames
            if self.received != self._acked:
                self._acknowledge = True

    def send_body(self, body: bytes) -> None:
        """Queue the body of a reliable message that is forwarded unchanged."""
        self._keep(codec.frame(body))

    def send_shared(self, frame: codec.SharedFrame) -> None:
        """Queue a frame of which one part is shared with frames of other sessions."""
        self._kept.append(frame)
        self.kept_bytes += len(frame)
        if self.connected:
            self._out += frame.head, frame.tail

    @property
    def sent(self) -> int:
        """Return the number of reliable frames sent, including those that wait for the next `flush` or connection."""
        return self._acknowledged + len(self._kept)

    @property
    def pending(self) -> bool:
        """Return whether `flush` would return any bytes."""
        return self.connected and (bool(self._out) or self.received - self._acked >= ACK_EVERY)

    def flush(self) -> bytes:
        """Return the bytes to write now, with a due `Ack` first; empty if there are none or there is no connection."""
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
        """Return the messages completed by ``data``, except `Ack`, each with its body, which can be forwarded.

        Raises:
            ProtocolError: the data is invalid, and none of it counts as received: the other end sends it again after a
                reconnect. Or the other end acknowledges too few of the sent frames.
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
        """Handle the loss of the connection: drop an incomplete received frame, keep unacknowledged frames."""
        self.connected = False
        self._splitter = codec.Splitter()
        self._out.clear()

    def resume(self, peer_received: int) -> None:
        """Begin a new connection. The other end has received ``peer_received`` of our frames; the rest is sent again.

        Raises:
            ProtocolError: the number is impossible, or lower than before: this is not the other end of the session.
        """
        self._release(peer_received)
        self.connected = True
        self._acknowledge = True  # the other end may not know yet how many of its frames have arrived here
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
