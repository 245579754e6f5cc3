"""Decides whether and when a call that failed for a transient reason is repeated: exponential back-off with jitter."""

from __future__ import annotations

from typing import Literal

from ...lazy_dataclass import dataclass

TRY_S = 10.0  # each try of a call has at least this many seconds of the call's time
# Kinds of transient failures, and whether the call may have been carried out: "throttled" and "unreached": no; "broken"
# (the cloud failed) and "lost" (no response): perhaps.
Trouble = Literal["throttled", "unreached", "broken", "lost"]

# For each kind: the longest pause after the first try, which doubles after each further try; the longest pause of all;
# the number of tries. A throttled call has no limit on tries, because it succeeds at some time.
_BACK_OFF: dict[Trouble, tuple[float, float, float]] = {
    "throttled": (1.0, 10.0, float("inf")),
    "unreached": (0.5, 2.0, 4),
    "broken": (0.5, 5.0, 6),
    "lost": (0.5, 5.0, 6),
}


def retry(kind: Trouble | None, attempt: int, *, safe: bool, luck: float) -> float | None:
    """Return the seconds to wait before the next try; None: do not retry.

    ``attempt``: the number of the failed try, from 1. ``safe``: the call is idempotent. A call that was throttled or
    not sent was not carried out, so it is retried even if it is not idempotent. ``luck``: a random number in [0, 1),
    for full jitter ("Exponential Backoff And Jitter", AWS Architecture Blog).
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
    unsure: bool = False  # whether an earlier try without a response may have been carried out
    tries: int = 0
    renewed: bool = False  # whether the credentials were renewed, which happens once per call

    @property
    def try_s(self) -> float:
        """Return the time limit of one try in seconds. A call that is not idempotent may have only one try, which gets
        all the time.
        """
        return max(TRY_S, self.timeout_s / 3) if self.safe else self.timeout_s

    def pause_s(self, trouble: Trouble | None, *, reads: bool, luck: float) -> float | None:
        """Record a failed try. Return the seconds until the next try; None: do not retry. ``reads``: the call changes
        nothing.
        """
        self.unsure = self.unsure or (not reads and trouble in {"broken", "lost"})
        return retry(trouble, self.tries, safe=self.safe, luck=luck)
