"""The time limit of a broadcast's wait for replacements of lost nodes: the pool's ``replace_timeout``. Pure.

`generations` decides when a node is missing, and what happens when the wait is over (GANG-9, GANG-16).
"""

from __future__ import annotations


class ReplacementWait:
    def __init__(self, timeout_s: float) -> None:
        # time at which the wait ends; None: the broadcast does not wait, or waits without a limit
        self.ends_at: float | None = None
        self.over_early = False  # whether the wait ended before all ranks of the old generation had ended (the fence)
        self._timeout_s = timeout_s

    def begin(self, now: float) -> None:
        """Begin the wait because a node is missing. A wait that has already begun keeps its end."""
        self.ends_at = self.ends_at or now + self._timeout_s

    def begin_anew(self, now: float) -> None:
        """Restart the wait because another node is missing: there is the whole time for each missing node."""
        self.ends_at = now + self._timeout_s

    def lasts_on(self, now: float) -> None:
        """Handle that a machine waits in its provider's queue: if the broadcast waits, its time starts again now."""
        if self.ends_at is not None:
            self.begin_anew(now)

    def fenced(self, now: float) -> None:
        """Handle that all ranks of the old generation have ended: if the wait ended before, let it count as ended
        now.
        """
        if self.over_early:
            self.ends_at = now

    def stop(self) -> None:
        """Stop the wait: its time limit has no consequences any more."""
        self.ends_at = None
        self.over_early = False
