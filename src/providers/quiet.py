"""asyncssh without what it does for each packet and nobody needs: an empty packet, a log line, a key schedule.

The empty packet (MSG_IGNORE, in a write of its own) is against attacks on CBC ciphers, of which none is ever negotiated
here. The line is put together and thrown away, unless asyncssh's debug level is 3. The AES key is expanded for each
packet, although it is the same until keys are renewed. All are left out by giving one connection, one channel, one
cipher its own method by the name that asyncssh calls: where a version of asyncssh calls another, what it did before is
back, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncssh

MSG_IGNORE, MSG_NEWKEYS = 2, 21  # RFC 4253, 11.2 and 7.3
OF_CIPHERS = ("_key", "_iv", "_update_iv", "encrypt_and_sign", "verify_and_decrypt")
TAG_BYTES = 16  # RFC 5647, 6.2


def quieten(connection: asyncssh.SSHClientConnection | asyncssh.SSHServerConnection) -> None:
    """From now on a message is one packet, one write, and one wake-up of the other side."""
    send, loop = connection.send_packet, asyncio.get_running_loop()

    def send_packet(kind: int, *fields: bytes, handler: Any = None) -> None:
        if kind != MSG_IGNORE:
            send(kind, *fields, handler=handler)
        if kind == MSG_NEWKEYS:
            loop.call_soon(_keep_keys, connection)

    connection.send_packet = send_packet  # type: ignore[method-assign,assignment]
    _keep_keys(connection)


def unlogged(channel: asyncssh.SSHUNIXChannel[bytes] | asyncssh.SSHClientChannel[bytes]) -> None:
    """Its packets are not logged, unless somebody looks at what asyncssh says for debugging. 3 us of a round trip."""
    if not logging.getLogger("asyncssh").isEnabledFor(logging.DEBUG):
        channel.log_sent_packet = channel.log_received_packet = _nothing  # type: ignore[method-assign,assignment]


def _keep_keys(connection: asyncssh.SSHClientConnection | asyncssh.SSHServerConnection) -> None:
    """AES-GCM keys, those in use and those of which the other side will say that it uses them, are expanded once."""
    for name in ("_send_encryption", "_recv_encryption", "_next_recv_encryption"):
        cipher = getattr(getattr(connection, name, None), "_cipher", None)
        known = type(cipher).__name__ == "GCMCipher" and all(hasattr(cipher, each) for each in OF_CIPHERS)
        if known and "encrypt_and_sign" not in vars(cipher):
            _keep_key(cipher)


def _keep_key(cipher: Any) -> None:
    """What asyncssh's own methods do. The nonce stays in the cipher, where they count it."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    aead = AESGCM(cipher._key)

    def encrypt_and_sign(header: bytes, data: bytes) -> tuple[bytes, bytes]:
        sealed = aead.encrypt(cipher._iv, data, header)
        cipher._update_iv()
        return header + sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]

    def verify_and_decrypt(header: bytes, data: bytes, mac: bytes) -> bytes | None:
        try:
            return aead.decrypt(cipher._iv, data + mac, header)
        except InvalidTag:
            return None
        finally:
            cipher._update_iv()

    cipher.encrypt_and_sign, cipher.verify_and_decrypt = encrypt_and_sign, verify_and_decrypt


def _nothing(*_: object) -> None:
    pass
