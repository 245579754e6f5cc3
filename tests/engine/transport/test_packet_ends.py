"""What comes over an SSH connection is cut where its packets end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.transport.ssh import TAG_BYTES, PacketEnds, handshake_end

GCM = "aes128-gcm@openssh.com"
HELLO = b"a line before it\r\nSSH-2.0-server\r\n"
KEXINIT, NEWKEYS = 20, 21


def plain(kind: int, size: int = 30) -> bytes:
    """A packet before there is a cipher: its length, that of its padding, and its kind (RFC 4253, 6)."""
    return size.to_bytes(4, "big") + b"\4" + bytes([kind]) + bytes(size - 2)


def sealed(size: int) -> bytes:
    return size.to_bytes(4, "big") + b"\xff" * (size + TAG_BYTES)


HANDSHAKE = HELLO + plain(KEXINIT, 800) + plain(31) + plain(NEWKEYS)


def cut(reads: list[bytes], cipher: str | None = GCM) -> list[bytes]:
    ends = PacketEnds(lambda: cipher)
    return [piece for data in reads for piece in ends.pieces(data)]


def in_reads(data: bytes, sizes: list[int]) -> list[bytes]:
    reads = list[bytes]()
    while data:
        size = sizes[len(reads) % len(sizes)]
        reads.append(data[:size])
        data = data[size:]
    return reads


def test_each_packet_of_a_read_is_a_piece() -> None:
    packets = [sealed(300), sealed(12), sealed(40_000)]
    assert cut([HANDSHAKE, b"".join(packets)]) == [HANDSHAKE, *packets]


def test_packets_are_cut_from_the_first_one_behind_the_handshake_on() -> None:
    first, second = sealed(300), sealed(500)
    begun = HANDSHAKE + first[:100]
    assert cut([begun, first[100:] + second]) == [begun, first[100:], second]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.lists(st.integers(1, 300), min_size=1, max_size=9))
def test_nothing_is_lost_and_no_piece_goes_past_a_packet(sizes: list[int], reads: list[int]) -> None:
    """PACKETS-1"""
    packets = [sealed(size) for size in sizes]
    pieces = cut([HANDSHAKE, *in_reads(b"".join(packets), reads)])
    assert b"".join(pieces) == HANDSHAKE + b"".join(packets)
    at, ends = 0, {sum(map(len, packets[: number + 1])) for number in range(len(packets))}
    for piece in pieces[1:]:
        inside = {end for end in ends if at < end < at + len(piece)}
        assert all(at + len(piece) - end < 4 or at < end < at + 4 for end in inside), "but for a length that is cut"
        at += len(piece)


@given(st.binary(max_size=3000), st.lists(st.integers(1, 300), min_size=1, max_size=9), st.booleans())
def test_what_is_no_packet_goes_on_as_well(garbage: bytes, reads: list[int], greeted: bool) -> None:
    """PACKETS-1"""
    data = HANDSHAKE + garbage if greeted else garbage
    assert b"".join(cut(in_reads(data, reads))) == data


@pytest.mark.parametrize("cipher", ["chacha20-poly1305@openssh.com", None])
def test_packets_whose_lengths_are_encrypted_are_not_cut(cipher: str | None) -> None:
    data = sealed(300) + sealed(12)
    assert cut([HANDSHAKE, data], cipher) == [HANDSHAKE, data]


def test_the_handshake_ends_behind_the_packet_that_says_so() -> None:
    assert handshake_end(HANDSHAKE + b"more") == len(HANDSHAKE)
    assert {handshake_end(HANDSHAKE[:size]) for size in range(len(HANDSHAKE))} == {None}


def test_a_server_that_never_encrypts_is_not_remembered_for_ever() -> None:
    line = b"x" * 1000 + b"\n"
    pieces = cut([line] * 400 + [HANDSHAKE, sealed(30) + sealed(30)])
    assert pieces[-1] == sealed(30) + sealed(30)


def test_the_cut_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """PACKETS-1: here without the bytes of a length that came in two reads."""

    def forgets(ends: PacketEnds, data: bytes) -> Iterator[bytes]:
        ends._head = b""
        yield from cut_as_it_should(ends, data)

    cut_as_it_should = PacketEnds._cut
    whole, packets = HANDSHAKE + sealed(300), [sealed(300), sealed(12), sealed(40)]
    reads = [whole, packets[0] + packets[1][:2], packets[1][2:] + packets[2]]
    assert cut(reads)[-2:] == [packets[1][2:], packets[2]]
    monkeypatch.setattr(PacketEnds, "_cut", forgets)
    assert cut(reads)[-2:] != [packets[1][2:], packets[2]]
