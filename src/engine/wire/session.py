"""One end of a session between client and node. It resends frames after a reconnect. No I/O.

An end keeps each reliable frame until the other end acknowledges it. Frames carry no sequence numbers: both ends count
the reliable frames of each direction, and an `Ack` message contains the number of frames that have arrived. If a
connection breaks, at any byte, no frame is lost or repeated:

    SESSION-1  each reliable message is delivered exactly once
    SESSION-2  messages are delivered in the order in which they were sent
    SESSION-3  a frame is kept until the other end has acknowledged it, and no longer
    SESSION-4  if the bytes of one read violate the protocol, no message of that read is delivered
    SESSION-5  an end with a limit for kept frames closes the session if the other end sends data while more than the
               limit is unacknowledged
    SESSION-6  a `Ping` or `Pong` arrives after all reliable frames that were sent before it; if such a frame is
               missing, the session is over, because a reconnect would resend the wrong frames
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
# messages that are not counted themselves, and contain the number of reliable frames sent before them
_COUNTS = frozenset({Ping, Pong})
# messages that a session of a node accepts; `Hello` is handled before a session exists
FOR_NODES = frozenset(get_args(ToNode | BothWays)) - {Hello}
FOR_CLIENTS = frozenset(get_args(ToClient | BothWays))
# send an `Ack` after this number of received frames; a heartbeat sends it earlier, even after a single frame
ACK_EVERY = 64
# The maximum size of the frames that a client keeps for one node. It is large, because a correct node that is stalled
# may leave many frames unacknowledged: 425 MiB for 400 tasks, if each has 17 messages or streamed items of the maximum
# size of 64 KiB.
KEPT_BYTES = 512 << 20


class FramesLost(ProtocolError):
    """Raised when frames are missing although the connection was not lost, which is a bug.

    The session cannot continue.
    """


def attempt_digest(attempts: Iterable[int]) -> tuple[int, int]:
    """Return a fingerprint of attempts: the number of attempts, and the sum of their attempt numbers modulo 2**62."""
    numbers = tuple(attempts)
    return len(numbers), sum(numbers) % 2**62


class Session:
    """One end of a session. It begins without a connection: `resume` starts one, and sends the frames that wait.

    Args:
        accepts: The messages that the other end may send: `FOR_NODES` or `FOR_CLIENTS`.
        keeps_bytes: Maximum size of the unacknowledged frames while the other end sends data. While the other end is
            disconnected, there is no limit, because on reconnect it reports how many frames it has received. An
            executor (the node's daemon) has no limit, because it keeps only results that its client has requested.
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
        # size of the frames that are sent or queued, and not acknowledged; grows if the other end is slow or
        # disconnected
        self.kept_bytes = 0
        self._acked = 0  # number of received frames that the last sent `Ack` contained
        self._acknowledge = False
        # number of our reliable frames that the other end has acknowledged; the next frame is the first in `_kept`
        self._acknowledged = 0
        self._kept: deque[bytes | codec.SharedFrame] = deque()
        self._out: list[bytes] = []
        self.connected = False
        self._splitter = codec.Splitter()

    def send(self, message: Message) -> None:
        """Queue a message for the next `flush`.

        Messages that are not counted are dropped while there is no connection.
        """
        frame = codec.encode(message)
        if type(message) not in UNCOUNTED:
            self._keep(frame)
        elif self.connected:
            self._out.append(frame)
            # a heartbeat is being sent: send an `Ack` with it, so that the other end can drop frames that it keeps
            if self.received != self._acked:
                self._acknowledge = True

    def send_body(self, body: bytes) -> None:
        """Queue the encoded body of a reliable message that this process only forwards."""
        self._keep(codec.frame(body))

    def send_shared(self, frame: codec.SharedFrame) -> None:
        """Queue a frame that shares one of its two parts with frames of other sessions."""
        self._kept.append(frame)
        self.kept_bytes += len(frame)
        if self.connected:
            self._out += frame.head, frame.tail

    @property
    def sent(self) -> int:
        """Return the number of reliable frames sent, including frames that wait for the next `flush` or connection."""
        return self._acknowledged + len(self._kept)

    @property
    def pending(self) -> bool:
        """Return whether there are bytes to send: `flush` would return them."""
        return self.connected and (bool(self._out) or self.received - self._acked >= ACK_EVERY)

    def flush(self) -> bytes:
        """Return the bytes to write now, beginning with an `Ack` if it is due.

        Empty if there is nothing to send or no connection.
        """
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
        """Like `feed_framed`, but return only the messages, without their encoded bodies."""
        return [message for message, _ in self.feed_framed(data)]

    def feed_framed(self, data: bytes) -> list[tuple[Message, bytes]]:
        """Return the messages that ``data`` completes, except `Ack`. Each comes with its encoded body, for forwarding.

        Raises:
            ProtocolError: the data is invalid. No frame in it counts as received, so the other end sends all of them
                again after a reconnect. Also raised if too many of our frames are unacknowledged (SESSION-5).
            FramesLost: a frame is missing (SESSION-6).
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
        """Handle the loss of the connection: drop the incomplete incoming frame, keep unacknowledged frames."""
        self.connected = False
        self._splitter = codec.Splitter()
        self._out.clear()

    def resume(self, peer_received: int) -> None:
        """Begin a new connection: send again all reliable frames after the first ``peer_received``.

        The other end has already received those first frames.

        Raises:
            ProtocolError: the number is impossible, or lower than before, so the peer is not the other end of this
                session.
        """
        self._release(peer_received)
        self.connected = True
        self._acknowledge = True  # the other end may not know yet how many of its frames have arrived at this end
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
