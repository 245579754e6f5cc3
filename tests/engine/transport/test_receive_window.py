"""How much a host may send of a blob: enough for the network, and little that a short result waits behind."""

from __future__ import annotations

import pytest

from outrider.engine.transport.flow_control import MOST_WINDOW_BYTES, QUEUED_S, ReceiveWindow

FIRST_BYTES = 768 << 10
PACKET_BYTES = 32 << 10


def carried(rate: float, round_trip_s: float | None, seconds: float = 0.3) -> tuple[float, int]:
    """Receive from a host at this rate. Return the rate that came of it, and the largest window in the second half."""
    trip_s = round_trip_s or 0.0
    window, step_s = ReceiveWindow(FIRST_BYTES, round_trip_s), PACKET_BYTES / rate
    now, allowed, told, came, most = 0.0, FIRST_BYTES, list[tuple[float, int]](), 0, 0
    under_way = list[float]()
    while now < seconds:
        now += step_s
        while told and told[0][0] <= now:
            allowed += told.pop(0)[1]
        if allowed >= PACKET_BYTES:
            allowed -= PACKET_BYTES
            under_way.append(now + trip_s / 2)
        if under_way and under_way[0] <= now:
            under_way.pop(0)
            came += PACKET_BYTES if now > seconds / 2 else 0
            more = window.taken(PACKET_BYTES, now)
            if more:
                told.append((now + trip_s / 2, more))
        most = max(most, window.bytes) if now > seconds / 2 else 0
    return came / (seconds / 2), most


@pytest.mark.parametrize("rate", [12.5e6, 125e6, 600e6])
@pytest.mark.parametrize("round_trip_s", [0.0, 0.0001, 0.001])
def test_the_network_is_kept_busy_and_little_waits(rate: float, round_trip_s: float) -> None:
    """AHEAD-4"""
    reached, most = carried(rate, round_trip_s)
    assert reached > 0.95 * rate
    assert most <= max(FIRST_BYTES, 1.1 * rate * (QUEUED_S + 2 * round_trip_s))


def test_it_grows_with_a_fast_network_as_far_as_it_may() -> None:
    """AHEAD-4"""
    assert carried(600e6, 0.0001)[1] > 2 * FIRST_BYTES
    assert carried(5e9, 0.0001)[1] == MOST_WINDOW_BYTES


def test_it_stays_as_it_is_where_no_round_trip_is_known() -> None:
    assert carried(600e6, None)[1] == FIRST_BYTES


@pytest.mark.parametrize("count", [1, 1000, PACKET_BYTES, FIRST_BYTES])
def test_a_host_is_told_of_all_that_was_taken_and_no_more(count: int) -> None:
    window = ReceiveWindow(FIRST_BYTES, None)
    allowed = FIRST_BYTES
    for _ in range(3 * FIRST_BYTES // count):
        allowed -= count
        assert allowed >= 0, "a host that keeps to it always may send another"
        allowed += window.taken(count, 0.0)
        assert FIRST_BYTES // 2 <= allowed <= FIRST_BYTES


def test_the_window_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """AHEAD-4"""
    monkeypatch.setattr(ReceiveWindow, "_follow_rate", lambda *_: None)
    with pytest.raises(AssertionError):
        test_it_grows_with_a_fast_network_as_far_as_it_may()
