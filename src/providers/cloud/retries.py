"""Decide when a call is repeated that failed for a transient reason: back-off with jitter."""

from __future__ import annotations

from typing import Literal

from ...lazy_dataclass import dataclass

TRY_S = 10.0  # seconds; each try of a call gets at least this much of the call's time
# Carried out or not: throttled: no; unreached: no (never sent); broken: perhaps (the cloud failed); lost: perhaps.
Trouble = Literal["throttled", "unreached", "broken", "lost"]

# (longest pause after the first try, doubled each time; longest pause of all; number of tries).
# A throttled call is tried until its time is over, as it will succeed at some time.
_BACK_OFF: dict[Trouble, tuple[float, float, float]] = {
    "throttled": (1.0, 10.0, float("inf")),
    "unreached": (0.5, 2.0, 4),
    "broken": (0.5, 5.0, 6),
    "lost": (0.5, 5.0, 6),
}


def retry(kind: Trouble | None, attempt: int, *, safe: bool, luck: float) -> float | None:
    """Return the seconds to wait before the next try; None: do not retry.

    ``attempt`` counts from 1. ``safe``: the call is idempotent. A call that was throttled or never arrived was not
    carried out, so it is retried in any case. ``luck``: in [0, 1), for full jitter ("Exponential Backoff And Jitter",
    AWS Architecture Blog).
    """
    if kind is None or (not safe and kind in {"broken", "lost"}):
        return None
    first, most, tries = _BACK_OFF[kind]
    if attempt >= tries:
        return None
    return luck * min(most, first * 2.0 ** min(attempt - 1, 30))


@dataclass(slots=True, kw_only=True)
class Tries:
    """The tries of one call. ``safe``: the call is idempotent. ``timeout_s``: seconds for all tries together."""

    safe: bool
    timeout_s: float
    unsure: bool = False  # an earlier try without an answer may have been carried out
    tries: int = 0
    renewed: bool = False  # whether the credentials were renewed, which is done once

    @property
    def try_s(self) -> float:
        """Return the seconds for one try. A call that is not idempotent gets all the time, as it may have no second
        try.
        """
        return max(TRY_S, self.timeout_s / 3) if self.safe else self.timeout_s

    def pause_s(self, trouble: Trouble | None, *, reads: bool, luck: float) -> float | None:
        """Record a failed try; return the seconds until the next one, as `retry` does. ``reads``: the call changes
        nothing.
        """
        self.unsure = self.unsure or (not reads and trouble in {"broken", "lost"})
        return retry(trouble, self.tries, safe=self.safe, luck=luck)
