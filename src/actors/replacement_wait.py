"""The time for which a broadcast waits for replacements of lost nodes: the pool's ``replace_timeout``. Pure.

`generations` decides when a node is missing, and what happens when the wait is over (GANG-9, GANG-16).
"""

from __future__ import annotations


class ReplacementWait:
    def __init__(self, timeout_s: float) -> None:
        self.ends_at: float | None = None  # None: the broadcast does not wait, or waits without a limit
        self.over_early = False  # whether the wait ended before the generation was fenced
        self._timeout_s = timeout_s

    def begin(self, now: float) -> None:
        """Begin the wait because a node is missing; a running wait keeps its end."""
        self.ends_at = self.ends_at or now + self._timeout_s

    def begin_anew(self, now: float) -> None:
        """Restart the wait because another node is missing: each missing node has the whole time."""
        self.ends_at = now + self._timeout_s

    def lasts_on(self, now: float) -> None:
        """Handle that a machine waits in its provider's queue: a running wait starts again from now."""
        if self.ends_at is not None:
            self.begin_anew(now)

    def fenced(self, now: float) -> None:
        """Handle that the generation is fenced: a wait that ended earlier takes effect now."""
        if self.over_early:
            self.ends_at = now

    def stop(self) -> None:
        """End the wait without any consequence."""
        self.ends_at = None
        self.over_early = False
