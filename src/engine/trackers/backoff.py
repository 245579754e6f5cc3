"""The pause after a failed delivery to a tracker. No clock; the random number is an argument."""

from __future__ import annotations

FIRST_S, MOST_S = 0.5, 60.0
REFUSED_S = 10.0  # shortest pause after an error that shows a wrong token or address
RETRY_AFTER_MOST_S = 300.0  # longest pause that a tracker's server can request with Retry-After
OVER_MOST_S = 1.0  # longest pause after the run's end, as the pool's program may be waiting for the data


class Backoff:
    """The pauses after failed deliveries to one tracker. Each is twice as long as the previous, until one delivery
    succeeds.

    Jitter varies them.
    """

    def __init__(self) -> None:
        self.tries = 0

    def taken(self) -> None:
        self.tries = 0

    def failed(
        self, chance: float, *, retry_after_s: float | None = None, refused: bool = False, over: bool = False
    ) -> float:
        """Return how many seconds to wait after a failed delivery.

        Args:
            chance: A random number from 0 to 1, for the jitter.
            retry_after_s: The pause that the tracker's server requests; None: it requests none.
            refused: True: the token or the address is wrong.
            over: True: the run has ended.
        """
        usual = min(MOST_S, FIRST_S * 2.0 ** min(self.tries, 10)) * (0.5 + chance / 2)
        self.tries += 1
        if retry_after_s is not None:
            return min(max(0.0, retry_after_s), RETRY_AFTER_MOST_S)
        if over:
            return min(usual, OVER_MOST_S)
        return max(usual, REFUSED_S) if refused else usual
