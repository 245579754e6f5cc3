"""How much is sent ahead of what a server has passed on: little where the network is near or slow, enough elsewhere."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from outrider.engine.transport.flow_control import (
    LEAST_BYTES,
    MOST_BYTES,
    SENT_S,
    SendAhead,
    least_round_trip_s,
    window,
)

CONSUMED_BYTES = 96 << 10  # of which sshd tells at a time
WINDOW_BYTES = 2 << 20  # sshd's
SLICE_BYTES = 32 << 10


def carried(rate: float, round_trip_s: float, seconds: float) -> tuple[float, int]:
    """Send over a network of this rate, and return the rate that came of it and the most that waited at the end."""
    ahead, step_s = SendAhead(round_trip_s), min(0.0005, 32e3 / rate)
    now, at_server, untold, acks, waited, passed = 0.0, 0.0, 0.0, list[tuple[float, int]](), 0, 0.0
    while now < seconds:
        while ahead.room and ahead.under_way < WINDOW_BYTES:
            ahead.sent(SLICE_BYTES)
            at_server += SLICE_BYTES
        moved = min(at_server, rate * step_s)
        at_server, untold, now = at_server - moved, untold + moved, now + step_s
        passed += moved if now > seconds / 2 else 0
        waited = max(waited, int(at_server)) if now > seconds / 2 else 0
        while untold >= CONSUMED_BYTES:
            untold -= CONSUMED_BYTES
            acks.append((now + round_trip_s, CONSUMED_BYTES))
        while acks and acks[0][0] <= now:
            ahead.taken(acks.pop(0)[1], now)
    return passed / (seconds / 2), waited


@pytest.mark.parametrize("rate", [1e6, 12.5e6, 125e6, 500e6])
@pytest.mark.parametrize("round_trip_s", [0.0001, 0.001, 0.02])
def test_the_network_is_kept_busy_and_little_waits(rate: float, round_trip_s: float) -> None:
    """AHEAD-1"""
    reached, waited = carried(rate, round_trip_s, 3.0 if rate > 2e6 else 8.0)
    assert reached > 0.95 * min(rate, WINDOW_BYTES / (round_trip_s + CONSUMED_BYTES / rate))
    bound = max(LEAST_BYTES, min(MOST_BYTES, SENT_S * rate)) + 2.2 * rate * round_trip_s + 2 * SLICE_BYTES
    assert waited < bound


def test_a_server_that_tells_late_is_sent_more_until_it_tells() -> None:
    """AHEAD-2"""
    ahead = SendAhead(0.0)
    while ahead.most_bytes < 8 << 20:
        ahead.sent(ahead.most_bytes - ahead.under_way)
        assert not ahead.room
        ahead.silent()
        assert ahead.room


def test_over_a_far_network_the_servers_window_alone_counts() -> None:
    assert window(MOST_BYTES, 0.01) > 4 << 20
    assert window(MOST_BYTES, 0.0) == MOST_BYTES


def test_the_kernels_word_on_round_trips_is_understood() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        accepted: Any = listener.accept()[0]
        with accepted:
            for _ in range(5):
                sock.sendall(b"x")
                accepted.recv(1)
            trip_s = least_round_trip_s(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
    assert trip_s is not None
    assert 0 < trip_s < 1
    assert least_round_trip_s(bytes(100)) is None
    assert least_round_trip_s(struct.pack("I", 0xFFFFFFFF) * 60) is None


def taken_never_counts(ahead: SendAhead, count: int, _now: float) -> None:
    ahead.under_way -= count


def silence_is_nothing(_: SendAhead) -> None:
    pass


@pytest.mark.parametrize(
    ("invariant", "guard", "without", "check"),
    [
        ("AHEAD-1", "taken", taken_never_counts, lambda: test_the_network_is_kept_busy_and_little_waits(12.5e6, 0.001)),
        ("AHEAD-2", "silent", silence_is_nothing, test_a_server_that_tells_late_is_sent_more_until_it_tells),
    ],
)
def test_an_invariant_falls_without_its_guard(
    invariant: str, guard: str, without: Any, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    del invariant
    monkeypatch.setattr(SendAhead, guard, without)
    with pytest.raises(AssertionError):
        check()
