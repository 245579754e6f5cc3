"""The waits of saves until the previous state has reached other nodes, and the warnings about them. No I/O, no clock.

With ``every``, a rank has room for only one state that is still on its way to other nodes, so the next save waits for
that state. Thus at most one step whose `save` has returned is missing on some requested node.

WAIT-1: a save waits for at most `WAIT_S`. After one save has waited that long, no later save of this generation waits:
    a client that is suspended for an hour costs the training one wait, and ranks wait for each other once.
"""

from __future__ import annotations

from math import ceil

WAIT_S = 30.0
SAVES = 50  # number of saves over which the waiting time is summed, to compare it with SHARE
SHARE = 0.1  # warn the user if the training spends at least this share of its time in such waits


class MemoryWaits:
    def __init__(self, run: str, every: int) -> None:
        self._run, self._every = run, every
        self.is_abandoned = self._has_warned = False
        self._saves = 0
        self._waited_s = 0.0
        self._since: float | None = None

    def rest_s(self, began: float, now: float) -> float:
        """Return how many more seconds a save may wait if its wait began at ``began``."""
        return 0.0 if self.is_abandoned else began + WAIT_S - now

    def gave_up(self) -> str:
        """Record that a save has waited for the whole `WAIT_S` in vain. Return a warning for the user."""
        self.is_abandoned = True
        return (
            f"A state of {self._run!r} was not on its nodes within {WAIT_S:g} s. From now on no save waits for that, "
            "and steps are left out that would have to wait: after a loss more than one may be done again. "
            "Checkpoints in the storage go on."
        )

    def waited(self, began: float, now: float) -> str:
        """Record a wait that succeeded, even a wait of 0 s. Return a warning for the user; "": no warning."""
        if self._since is None:
            self._since = began
        self._saves += 1
        self._waited_s += now - began
        if self._saves < SAVES:
            return ""
        took_s, waited_s = now - self._since, self._waited_s
        self._saves, self._waited_s, self._since = 0, 0.0, now
        if self._has_warned or waited_s < SHARE * took_s:
            return ""
        self._has_warned = True
        without = ceil(self._every * took_s / max(took_s - waited_s, took_s / 1000))
        return (
            f"The training of {self._run!r} has waited for {waited_s:.1f} of the last {took_s:.1f} s until its states "
            f"were on other nodes, as every={self._every} demands. With every={without} it would hardly wait. Without "
            "every=... it never waits, and steps are left out instead."
        )
