"""Decide when a call that failed for a transient reason is repeated: back-off with jitter."""

from __future__ import annotations

from typing import Literal

# What was carried out: nothing, nothing (it never arrived), perhaps (the cloud failed), perhaps (the answer is lost).
Trouble = Literal["throttled", "unreached", "broken", "lost"]

# (longest pause after the first try, doubled each time; longest pause of all; number of tries).
# A throttled call is tried until its time is up, as it will go through at some time.
_BACK_OFF: dict[Trouble, tuple[float, float, float]] = {
    "throttled": (1.0, 10.0, float("inf")),
    "unreached": (0.5, 2.0, 4),
    "broken": (0.5, 5.0, 6),
    "lost": (0.5, 5.0, 6),
}


def retry(kind: Trouble | None, attempt: int, *, safe: bool, luck: float) -> float | None:
    """Seconds to wait before the next try; None: do not retry.

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
