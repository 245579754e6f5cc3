"""The choice of calls whose events are in the record: the first calls of each function; others are only counted.

CALLS-1: at most `EACH` calls of each function are recorded. CALLS-2: a call is recorded from its beginning to its end,
or not at all. CALLS-3: every call is counted, recorded or not.
"""

from __future__ import annotations

from collections import Counter

EACH = 333  # most recorded calls of a function; each call has three events


class RecordedCalls:
    """The recorded calls of a run. ``names``: job -> function, for each recorded call that has not ended."""

    def __init__(self, each: int = EACH) -> None:
        self._each = each
        self.names: dict[int, str] = {}
        self.begun: dict[str, int] = {}  # function -> number of its calls
        self.failures: Counter[str] = Counter()
        self.failed_calls = 0

    def began(self, job: int, name: str) -> bool:
        """Count a call; return whether it is recorded. Must be fast, because every call comes through here."""
        number = self.begun.get(name, 0) + 1
        self.begun[name] = number
        if number > self._each:
            return False
        self.names[job] = name
        return True

    def failed(self, name: str) -> bool:
        """Count a failure, also of a call that is not recorded; return whether the failure gets an event of its own."""
        self.failures[name] += 1
        self.failed_calls += 1
        return self.failures[name] <= self._each

    def counts(self) -> dict[str, dict[str, int]]:
        """Return, for each function, how many calls there were, how many are recorded, and how many failed."""
        return {
            name: {"calls": calls, "recorded": min(calls, self._each), "failed": self.failures[name]}
            for name, calls in sorted(self.begun.items())
        }
