"""The time for which a broadcast waits for nodes in the place of lost ones: the pool's ``replace_timeout``. Pure.

`generations` says when a node is lacking, and what follows when the wait is over (GANG-9, GANG-16).
"""

from __future__ import annotations


class ReplacementWait:
    def __init__(self, timeout_s: float) -> None:
        self.ends_at: float | None = None  # None: nothing is waited for, or without a limit
        self.over_early = False  # the wait was over before the generation was fenced
        self._timeout_s = timeout_s

    def begin(self, now: float) -> None:
        """Begin the wait because a node is lacking; a running wait keeps its end."""
        self.ends_at = self.ends_at or now + self._timeout_s

    def begin_anew(self, now: float) -> None:
        """Begin the wait anew because a further node is lacking: each has the whole time."""
        self.ends_at = now + self._timeout_s

    def lasts_on(self, now: float) -> None:
        """Handle that a machine waits in its provider's queue: a running wait counts from now."""
        if self.ends_at is not None:
            self.begin_anew(now)

    def fenced(self, now: float) -> None:
        """Handle that the generation is fenced: a wait that was over early ends now."""
        if self.over_early:
            self.ends_at = now

    def stop(self) -> None:
        """End the wait, with nothing to follow."""
        self.ends_at = None
        self.over_early = False
