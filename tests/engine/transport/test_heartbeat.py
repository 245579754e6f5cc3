"""When the beats of a pool's connections are made: at the same moments, and none too late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.transport import heartbeat
from outrider.engine.transport.heartbeat import (
    HEARTBEAT_S,
    QUIET_S,
    SILENCE_S,
    TOGETHER_S,
    Beats,
    Heartbeat,
    together,
)

times = st.floats(0.0, 1e6)


class Played:
    """The clock, the loop's timers and the node of one heartbeat, which begins at ``now``."""

    def __init__(self, now: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.hears = now, True
        self.pinged: list[float] = []
        self.begun: list[float] = []  # other connections
        self.cuts: list[float] = []
        monkeypatch.setattr(heartbeat, "time", Mock(monotonic=lambda: self.now))
        route: Any = Mock(begin_another=lambda _: self.begun.append(self.now))
        self.heartbeat = Heartbeat(route, self, same_host=False, beats=Mock())
        self.heartbeat.silence.answered(now)
        self.heartbeat.start()

    def ping(self) -> None:
        self.pinged.append(self.now)
        if self.hears:
            self.heartbeat.silence.answered(self.now)

    def cut(self, *_: object, **__: object) -> None:
        self.cuts.append(self.now)
        self.heartbeat.stop()

    def until(self, end: float) -> None:
        while (at := self.heartbeat.beats_at) is not None and at <= end:
            self.now = at
            self.heartbeat.beat()


@pytest.mark.parametrize("began", [1000.0, 1000.06, 1000.12])
def test_a_node_that_answers_is_pinged_every_two_seconds(began: float, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(began, monkeypatch)
    played.until(began + 100)
    pauses = [after - before for before, after in zip(played.pinged, played.pinged[1:], strict=False)]
    assert len(played.pinged) == pytest.approx(100 / HEARTBEAT_S, abs=1)
    assert set(pauses) == {HEARTBEAT_S}
    assert not played.begun
    assert not played.cuts


@pytest.mark.parametrize("began", [1000.0, 1000.06, 1000.12])
def test_a_silence_leads_to_another_connection_and_then_to_the_end(
    began: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(began, monkeypatch)
    played.until(began + 20)
    heard_at, played.hears = played.pinged[-1], False
    played.until(began + 100)
    assert played.begun[0] == pytest.approx(heard_at + QUIET_S)
    assert played.cuts == [pytest.approx(heard_at + SILENCE_S)]
    assert len([at for at in played.pinged if at > heard_at]) >= 2


@pytest.mark.anyio
async def test_beats_of_one_moment_are_made_though_one_of_them_fails() -> None:
    loop, failures, beaten = asyncio.get_running_loop(), list[Any](), asyncio.Event()
    loop.set_exception_handler(lambda _, told: failures.append(told["exception"]))
    beats, at = Beats(), time.monotonic()

    def due(beat: Callable[[], object], beats_at: float | None = at) -> None:
        beats.add(Mock(beat=beat, beats_at=beats_at), at)

    stopped = Mock()
    due(Mock(side_effect=ValueError("a defect")))
    due(stopped, beats_at=None)
    due(beaten.set)
    await beaten.wait()
    assert [str(each) for each in failures] == ["a defect"]
    stopped.assert_not_called()


@given(times, st.floats(0.0, HEARTBEAT_S))
def test_no_beat_is_later_than_it_is_due(now: float, in_s: float) -> None:
    assert now <= together(now + in_s, now) <= now + in_s


@given(times)
def test_the_beats_of_many_connections_are_made_together(now: float) -> None:
    first = together(now + HEARTBEAT_S, now)
    assert abs(first / TOGETHER_S - round(first / TOGETHER_S)) < 1e-6
    assert first > now + HEARTBEAT_S - TOGETHER_S - 1e-6


@given(times)
def test_the_limits_of_a_silence_are_met_exactly(now: float) -> None:
    """It is seen when it has lasted for so long, and after one early beat at most."""
    for limit_s in (QUIET_S, SILENCE_S):
        early = together(now + limit_s, now)
        assert together(now + limit_s, early) == now + limit_s
