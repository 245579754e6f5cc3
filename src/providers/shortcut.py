"""Channel data goes straight from a channel into an AES-GCM packet, and back.

asyncssh takes each packet through a dozen general steps: an empty packet before it (MSG_IGNORE, against attacks on
CBC ciphers, of which none is ever negotiated here), a key schedule, log lines that nobody sees. `shorten` takes the
everyday case alone, a whole packet of data for an open channel with keys that are valid. Everything else, and
whatever is doubtful, is given to asyncssh, untouched: its keys, nonces, windows and counts stay where it has them. An
asyncssh whose steps are not known here is left as it is. Measured: docs/decisions/0027-a-shortcut-for-data.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import asyncssh
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

if TYPE_CHECKING:
    Connection = asyncssh.SSHClientConnection | asyncssh.SSHServerConnection
    Channel = asyncssh.SSHUNIXChannel[bytes] | asyncssh.SSHClientChannel[bytes]

KNOWN = {"2.21.0", "2.21.1", "2.22.0", "2.23.0", "2.23.1", "2.24.0", "2.24.1"}  # asyncssh whose steps were read
CHANNEL_DATA = 94  # RFC 4254, 5.2: a byte, the channel, the length of the data
DATA_AT = 10  # in a packet: the padding's length (RFC 4253, 6) and those three come first
LONGEST_BYTES = 256 << 10  # a packet that says it is longer is asyncssh's: to take, or to refuse
LEAST_PADDING_BYTES = 4  # RFC 4253, 6
BLOCK_BYTES, LENGTH_BYTES, TAG_BYTES = 16, 4, 16  # RFC 5647, 7: the length is not encrypted, and not of the blocks


def shorten(connection: Connection) -> None:
    """Install the shortcut on ``connection``, except while asyncssh logs for debugging: such a log shows everything."""
    if asyncssh.__version__ in KNOWN and not logging.getLogger("asyncssh").isEnabledFor(logging.DEBUG):
        shortcut = _Shortcut(connection)
        connection.send_packet = shortcut.send_packet  # type: ignore[method-assign,assignment]
        connection.data_received = shortcut.data_received  # type: ignore[method-assign]


def shorten_channel(channel: Channel) -> None:
    """The same for what is written there, if it fits into one packet and nothing waits before it."""
    connection = channel.get_connection()
    if isinstance(getattr(connection.send_packet, "__self__", None), _Shortcut):
        channel.write = partial(_write, channel, connection, channel.write)  # type: ignore[method-assign]


def _write(
    channel: Any, connection: Any, otherwise: Callable[..., None], data: bytes, datatype: int | None = None
) -> None:
    size = len(data)
    if (
        0 < size <= channel._send_window
        and size <= channel._send_pktsize
        and not channel._send_buf
        and channel._send_state == "open"
        and channel._encoder is None
        and datatype is None
    ):
        channel._send_window -= size
        where = channel._send_chan.to_bytes(4, "big") + size.to_bytes(4, "big")
        connection.send_packet(CHANNEL_DATA, where, data)
    else:
        otherwise(data, datatype)


class _Shortcut:
    """The shortcut of one connection: its `send_packet` and `data_received`, which fall back on asyncssh's own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._send, self._receive = connection.send_packet, connection.data_received

    def send_packet(self, kind: int, *fields: bytes, handler: Any = None) -> None:
        connection = self._connection
        if connection._transport is not None and connection._transport.is_closing():
            return  # asyncio warns of each write to a transport whose other side has gone; its end is on the way to us
        cipher = _gcm(connection._send_encryption)
        if (
            kind != CHANNEL_DATA
            or cipher is None
            or connection._compressor is not None
            or not (connection._auth_complete and connection._kex_complete)
            or connection._rekey_bytes_sent >= connection._rekey_bytes
            or (connection._rekey_seconds and monotonic() >= connection._rekey_time)
        ):
            self._send(kind, *fields, handler=handler)
            return
        payload = b"".join((kind.to_bytes(1, "big"), *fields))
        padding = -(1 + len(payload)) % BLOCK_BYTES
        if padding < 4:
            padding += BLOCK_BYTES
        packet = b"".join((padding.to_bytes(1, "big"), payload, os.urandom(padding)))
        length = len(packet).to_bytes(LENGTH_BYTES, "big")
        sealed = _expanded(cipher).encrypt(cipher._iv, packet, length)
        cipher._update_iv()
        connection._send_seq = (connection._send_seq + 1) & 0xFFFFFFFF
        connection._rekey_bytes_sent += len(packet)
        connection._send(length + sealed)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        connection = self._connection
        cipher = _gcm(connection._recv_encryption)
        if (
            cipher is None
            or connection._decompressor is not None
            or connection._recv_handler != connection._recv_pkthdr  # a packet is half read, or its handler waits
        ):
            self._receive(data, datatype)
            return
        connection._reset_keepalive_timer()
        if connection._inpbuf:
            data = connection._inpbuf + data
            connection._inpbuf = b""
        at = 0
        try:
            while end := _end_of_packet(data, at):
                if not self._delivered(data[at:end], cipher):
                    break
                at = end
            else:
                connection._inpbuf = data[at:]
                return
        except Exception:  # noqa: BLE001  as asyncssh treats those of a session
            connection.internal_error()
            return
        self._receive(data[at:], datatype)

    def _delivered(self, sealed: bytes, cipher: Any) -> bool:
        """False: this packet is asyncssh's."""
        connection = self._connection
        length = sealed[:LENGTH_BYTES]
        try:
            packet = _expanded(cipher).decrypt(cipher._iv, sealed[LENGTH_BYTES:], length)
        except InvalidTag:
            return False
        if len(packet) < DATA_AT or packet[1] != CHANNEL_DATA:
            return False
        channel = connection._channels.get(int.from_bytes(packet[2:6], "big"))
        content = packet[DATA_AT : -packet[0]]
        if (
            packet[0] < LEAST_PADDING_BYTES
            or len(packet) > getattr(connection, "_max_recv_pktlen", LONGEST_BYTES)  # since 2.24.1
            or len(content) != int.from_bytes(packet[6:DATA_AT], "big")
            or channel is None
            or channel._decoder is not None
            or channel._recv_state != "open"
            or channel._recv_window < len(content)
        ):
            return False
        cipher._update_iv()
        connection._recv_seq = (connection._recv_seq + 1) & 0xFFFFFFFF
        channel._accept_data(content)
        return True


def _end_of_packet(data: bytes, at: int) -> int:
    """Return the end of the packet at ``at``; 0: it is incomplete. An incomplete packet longer than `LONGEST_BYTES` is
    not waited for: the end of ``data`` is returned.
    """
    if len(data) - at < LENGTH_BYTES:
        return 0
    length = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
    end = at + LENGTH_BYTES + length + TAG_BYTES
    if end <= len(data):
        return end
    return 0 if length <= LONGEST_BYTES else len(data)


def _gcm(encryption: Any) -> Any:
    """The cipher that it stands for, or None: there is none yet, or it is another."""
    cipher = getattr(encryption, "_cipher", None)
    return cipher if type(cipher).__name__ == "GCMCipher" else None


def _expanded(cipher: Any) -> AESGCM:
    """Return the cipher's AES-GCM key, which is expanded at its first use."""
    try:
        aead: AESGCM = cipher.expanded
    except AttributeError:
        aead = cipher.expanded = AESGCM(cipher._key)
    return aead
