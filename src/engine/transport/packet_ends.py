"""Find the ends of packets in data that arrives over an SSH connection (RFC 4253, section 6). No I/O.

asyncssh keeps received data in one buffer, and copies the remaining data twice for each packet that it takes out. A
read of 256 KiB contains eight of sshd's packets, so each byte would be copied nine times. If data is passed on one
packet at a time, no data remains to be copied.

PACKETS-1: the pieces are the received data, in order and without gaps. If the ends cannot be found, the data passes
    unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

TAG_BYTES = 16  # length of the authentication tag (RFC 5647, section 5.1)
HANDSHAKE_BYTES = 1 << 18  # limit for a server's unencrypted data; after more, the data is not cut into packets
_NEWKEYS = 21  # number of the message SSH_MSG_NEWKEYS (RFC 4253, section 7.3)


class PacketEnds:
    """The finder of packet ends in one direction of a connection; it needs all data from the first byte on."""

    def __init__(self, cipher: Callable[[], str | None]) -> None:
        """Begin before the first byte. ``cipher``: returns the cipher's name; it is called after the key exchange."""
        self._cipher = cipher
        self._handshake: bytes | None = b""  # the received handshake; None: the handshake is complete
        self._seen = True  # whether the ends of packets can be found
        self._head = b""  # the first bytes of a packet whose length field is incomplete
        self._left = 0  # bytes of the current packet that have not arrived yet

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Cut received data into pieces. The caller must process each piece before it requests the next."""
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
            self._seen = "gcm" in (self._cipher() or "")  # other ciphers encrypt the lengths of packets
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
    """Return the end of the last unencrypted packet; None: that packet has not arrived."""
    at = 0
    # RFC 4253, section 4.2: a server may send other lines before its version line
    while not data.startswith(b"SSH-", at):
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
