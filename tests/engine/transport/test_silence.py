"""HEARD-1 to 4: a stall of this program is no silence of a node, what a node says unasked is no answer, all else is."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from outrider.engine.transport.heartbeat import BACKLOG_BYTES, HEARTBEAT_S, LATE_S, MUCH_BYTES, SILENCE_S, SilenceClock

QUICK = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
WITHOUT_GUARD = settings(QUICK, max_examples=5000, database=None, derandomize=True, phases=[Phase.generate])
STALLS = st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.5, 3.0, 60.0]), min_size=1, max_size=12)
SAYS = st.sampled_from([0, 1, MUCH_BYTES // 20, MUCH_BYTES])


def hold(make: type[SilenceClock], stalls: list[float], deaf_after: int, says_bytes: int) -> None:
    """Beats, each late by one of ``stalls``. The node answers each ping at once, and from beat ``deaf_after`` on none;
    with each beat it says so much by itself.
    """
    silence, now = make(), 100.0
    silence.answered(now)
    ran_s = 0.0  # since it was last heard, while this program ran
    for beat, stall in enumerate(stalls):
        silence.expect(now + HEARTBEAT_S)
        now += HEARTBEAT_S + stall
        ran_s += HEARTBEAT_S + (stall if stall <= LATE_S else 0.0)
        silent_s = silence.lasts(now)
        hears = beat < deaf_after
        assert not hears or silent_s < SILENCE_S, "HEARD-1: a node that lives is given up"
        assert silent_s <= ran_s + 1e-6, "HEARD-1: more than the time in which it could be heard"
        assert silent_s >= ran_s - 1e-6, f"HEARD-{3 if says_bytes else 2}: less than the time in which it could answer"
        assert silence.lasts(now) == silent_s, "asked twice, it says the same"
        if silence.received(says_bytes):
            silence.answered(now)
            ran_s = 0.0 if says_bytes >= MUCH_BYTES else ran_s
        if hears:  # the answer to the ping of this beat lies there when the loop comes to it
            silence.answered(now)
            ran_s = 0.0


@QUICK
@given(stalls=STALLS, deaf_after=st.integers(0, 12), says_bytes=SAYS)
def test_silence_is_the_time_in_which_a_node_could_have_answered(
    stalls: list[float], deaf_after: int, says_bytes: int
) -> None:
    hold(SilenceClock, stalls, deaf_after, says_bytes)


def test_a_long_message_on_a_slow_network_is_no_silence() -> None:
    """The answer to a ping waits behind it for many seconds."""
    silence, now = SilenceClock(), 100.0
    silence.answered(now)
    for _ in range(60):
        now += 1.0
        if silence.received(MUCH_BYTES // 4):
            silence.answered(now)
        assert silence.lasts(now) < SILENCE_S


def behind_a_backlog(make: type[SilenceClock]) -> None:
    """The ping waits behind what was sent; the node prints a line each second."""
    silence, now = make(), 100.0
    silence.answered(now)
    for _ in range(60):
        now += 1.0
        if silence.received(100, BACKLOG_BYTES):
            silence.answered(now)
        assert silence.lasts(now) < SILENCE_S, "HEARD-4: a node is given up that hears as fast as it can"


def test_a_ping_behind_much_that_was_sent_is_waited_for() -> None:
    behind_a_backlog(SilenceClock)


def test_a_stall_that_is_seen_between_two_beats_counts_once() -> None:
    silence = SilenceClock()
    silence.answered(100.0)
    silence.expect(102.0)
    assert silence.lasts(101.0) == 1.0
    assert silence.lasts(112.0) == 2.0
    assert silence.lasts(113.0) == 2.0  # it is late still
    silence.expect(115.0)
    assert silence.lasts(115.0) == 4.0


class CountsStalls(SilenceClock):
    def lasts(self, now: float) -> float:
        return now - self.heard_at


class ForgivesAll(SilenceClock):
    def lasts(self, now: float) -> float:
        self.heard_at = now if self._due_at is not None and now - self._due_at > LATE_S else self.heard_at
        return now - self.heard_at


class HearsAll(SilenceClock):
    def received(self, size_bytes: int, sent_bytes: float = 0) -> bool:
        return size_bytes > 0


class KnowsNoBacklog(SilenceClock):
    def received(self, size_bytes: int, sent_bytes: float = 0) -> bool:
        return super().received(size_bytes)


@pytest.mark.parametrize(
    ("broken", "invariant"), [(CountsStalls, "HEARD-1"), (ForgivesAll, "HEARD-2"), (HearsAll, "HEARD-3")]
)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_the_invariant_falls_without_its_guard(broken: type[SilenceClock], invariant: str) -> None:
    @WITHOUT_GUARD
    @given(stalls=STALLS, deaf_after=st.integers(0, 12), says_bytes=SAYS)
    def play(stalls: list[float], deaf_after: int, says_bytes: int) -> None:
        hold(broken, stalls, deaf_after, says_bytes)

    with pytest.raises(AssertionError, match=invariant):
        play()


def test_a_ping_behind_a_backlog_falls_without_its_guard() -> None:
    with pytest.raises(AssertionError, match="HEARD-4"):
        behind_a_backlog(KnowsNoBacklog)
