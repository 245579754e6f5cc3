"""asyncssh without what it does for every packet and nobody here needs: an empty packet before it, a log line of it.

The empty packet (MSG_IGNORE, in a write of its own) is against attacks on CBC ciphers, of which none is ever negotiated
here. The line is put together and thrown away, unless asyncssh's debug level is 3. Both are left out by giving one
connection, one channel, its own method by the name that asyncssh calls: where a version of asyncssh calls another, what
it did before is back, and nothing else.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncssh

MSG_IGNORE = 2  # RFC 4253, 11.2


def quieten(connection: asyncssh.SSHClientConnection | asyncssh.SSHServerConnection) -> None:
    """From now on a message is one packet, one write, and one wake-up of the other side."""
    send = connection.send_packet

    def send_packet(kind: int, *fields: bytes, handler: Any = None) -> None:
        if kind != MSG_IGNORE:
            send(kind, *fields, handler=handler)

    connection.send_packet = send_packet  # type: ignore[method-assign,assignment]


def unlogged(channel: asyncssh.SSHUNIXChannel[bytes] | asyncssh.SSHClientChannel[bytes]) -> None:
    """Its packets are not logged, unless somebody looks at what asyncssh says for debugging. 3 us of a round trip."""
    if not logging.getLogger("asyncssh").isEnabledFor(logging.DEBUG):
        channel.log_sent_packet = channel.log_received_packet = _nothing  # type: ignore[method-assign,assignment]


def _nothing(*_: object) -> None:
    pass
