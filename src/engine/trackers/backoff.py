"""The pause after a failed delivery to a tracker. No clock; the random number is an argument."""

from __future__ import annotations

FIRST_S, MOST_S = 0.5, 60.0
REFUSED_S = 10.0  # shortest pause after an error because the token or the address is wrong
RETRY_AFTER_MOST_S = 300.0  # longest pause that a tracker's Retry-After can request
OVER_MOST_S = 1.0  # longest pause when the run is over, because the owner may wait


class Backoff:
    """The pauses of one tracker. Each is twice as long as the last, with jitter, until a delivery succeeds."""

    def __init__(self) -> None:
        self.tries = 0

    def taken(self) -> None:
        self.tries = 0

    def failed(
        self, chance: float, *, retry_after_s: float | None = None, refused: bool = False, over: bool = False
    ) -> float:
        """Return how many seconds to wait now. ``chance``: a random number from 0 to 1."""
        usual = min(MOST_S, FIRST_S * 2.0 ** min(self.tries, 10)) * (0.5 + chance / 2)
        self.tries += 1
        if retry_after_s is not None:
            return min(max(0.0, retry_after_s), RETRY_AFTER_MOST_S)
        if over:
            return min(usual, OVER_MOST_S)
        return max(usual, REFUSED_S) if refused else usual
