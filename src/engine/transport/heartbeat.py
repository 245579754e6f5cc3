"""Heartbeats of a connection: the node is pinged, and what its silence leads to is done.

After `QUIET_S` of silence another connection is begun beside the one there is; after `SILENCE_S` that one is cut. What
counts as silence, `silence` decides; what a cut connection means for the node, `actors.failure_detector`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from .route import Route
from .silence import SilenceClock

HEARTBEAT_S = 2.0
QUIET_S = 3.5  # TCP's own pauses double, so another connection may get through where this one does not
SILENCE_S = 6.0  # with the time for reconnecting, a black hole is seen in 9 s; a stall of 3 s is nothing
TOGETHER_S = 0.1  # beats of all nodes fall on its multiples: for 1,000 nodes the loop wakes up ten times a second


class Cut(Protocol):
    def __call__(self, cause: str, *, silent: bool = ..., early_s: float = ...) -> None: ...


class Heartbeat:
    """``same_host``: the node is on this very computer, so it is not the network that is silent."""

    def __init__(self, route: Route, ping: Callable[[], None], cut: Cut, *, same_host: bool) -> None:
        """``ping``: has a ping sent."""
        self.silence = SilenceClock()
        self._route, self._ping, self._cut, self._same_host = route, ping, cut, same_host
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat_in(HEARTBEAT_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        silent_s = self.silence.lasts(time.monotonic())
        if silent_s >= SILENCE_S:
            self._cut(f"silent for {SILENCE_S:g} s", silent=not self._same_host)
            return
        if silent_s < QUIET_S:
            self._route.begin_no_other()
        else:
            self._route.begin_another(self._reached_anew)
        self._ping()
        left = [limit_s - silent_s for limit_s in (QUIET_S, SILENCE_S) if silent_s < limit_s]
        self._beat_in(min(HEARTBEAT_S, *left))

    def _beat_in(self, seconds: float) -> None:
        now = time.monotonic()
        at = together(now + seconds, now)
        self.silence.expect(at)
        self._timer = asyncio.get_running_loop().call_later(at - now, self.beat)

    def _reached_anew(self) -> None:
        """Change over, unless the present connection has come back or was dropped."""
        silent_s = self.silence.lasts(time.monotonic())
        if silent_s < QUIET_S:
            self._route.begin_no_other()
        elif self._timer is not None:
            self._cut(f"silent for {silent_s:.0f} s, and reached anew", early_s=SILENCE_S - silent_s)


def together(at: float, now: float) -> float:
    """Return when a beat that is due ``at`` is made: with those of other nodes and not later, unless it is due soon."""
    return at if at - now < 2 * TOGETHER_S else at - at % TOGETHER_S
