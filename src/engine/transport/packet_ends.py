"""The ends of packets in the data that arrives over an SSH connection (RFC 4253, 6). No I/O.

asyncssh keeps received data in one buffer, and copies the rest of it twice for each packet that it takes out. A
read of 256 KiB has eight of sshd's packets: each byte is copied nine times. If a packet comes alone, nothing is left.

PACKETS-1: the pieces are the received data, in order and without a gap. If ends cannot be found, data passes unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

TAG_BYTES = 16  # RFC 5647, 5.1
HANDSHAKE_BYTES = 1 << 18  # data of a server that sends more before it encrypts is not cut
_NEWKEYS = 21  # RFC 4253, 7.3


class PacketEnds:
    """One direction of a connection, from its first byte on."""

    def __init__(self, cipher: Callable[[], str | None]) -> None:
        """Set ``cipher``, which returns the name of the connection's cipher. It is called once the cipher is agreed."""
        self._cipher = cipher
        self._handshake: bytes | None = b""  # None: it is over
        self._seen = True  # whether the ends of packets can be found
        self._head = b""  # the beginning of a packet, while its length is not complete
        self._left = 0  # bytes of the present packet

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Cut received data into pieces. Process each piece before the next is requested."""
        if self._handshake is not None:
            yield data
            self._handshake += data
            self._look_for_keys(self._handshake)
        elif self._seen:
            yield from self._cut(data)
        else:
            yield data

    def _look_for_keys(self, handshake: bytes) -> None:
        end = handshake_end(handshake)
        if end is not None:
            self._handshake = None
            self._seen = "gcm" in (self._cipher() or "")  # others encrypt the lengths of packets
            for _ in self._cut(handshake[end:]):
                pass
        elif len(handshake) > HANDSHAKE_BYTES:
            self._handshake, self._seen = None, False

    def _cut(self, data: bytes) -> Iterator[bytes]:
        at, end = 0, self._left
        if self._head:
            head = self._head + data[: 4 - len(self._head)]
            if len(head) < 4:
                self._head = head
                yield data
                return
            end = len(head) + int.from_bytes(head, "big") + TAG_BYTES - len(self._head)
        while end + 4 <= len(data):
            if end > at:
                yield data[at:end]
                at = end
            end += 4 + int.from_bytes(data[end : end + 4], "big") + TAG_BYTES
        self._head = data[end:]
        self._left = max(end - len(data), 0)
        if at < end < len(data):
            yield data[at:end]
            at = end
        yield data[at:]


def handshake_end(data: bytes) -> int | None:
    """Return where the last unencrypted packet ends; None: it has not come yet."""
    at = 0
    while not data.startswith(b"SSH-", at):  # RFC 4253, 4.2: other lines may come before that of the version
        at = data.find(b"\n", at) + 1
        if not at:
            return None
    at = data.find(b"\n", at) + 1
    while at and len(data) >= at + 6:
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 5] == _NEWKEYS:
            return end if end <= len(data) else None
        at = end
    return None
