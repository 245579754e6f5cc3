"""The choice of the calls whose events are written into the record: the first calls of each function.

Further calls are only counted.

CALLS-1: at most `EACH` calls of each function are recorded. CALLS-2: a call is recorded from its beginning to its end,
    or not at all. CALLS-3: every call is counted, recorded or not.
"""

from __future__ import annotations

from collections import Counter

EACH = 333  # most calls of one function that are recorded; each call has three events


class RecordedCalls:
    """The choice of a run's recorded calls.

    ``names``: job -> function, for each recorded call that has not ended.
    """

    def __init__(self, each: int = EACH) -> None:
        self._each = each
        self.names: dict[int, str] = {}
        self.begun: dict[str, int] = {}  # function -> number of its calls
        self.failures: Counter[str] = Counter()
        self.failed_calls = 0

    def began(self, job: int, name: str) -> bool:
        """Count a call that begins.

        Return whether it is recorded. Every call of a pool comes through here, so it must be fast.
        """
        number = self.begun.get(name, 0) + 1
        self.begun[name] = number
        if number > self._each:
            return False
        self.names[job] = name
        return True

    def failed(self, name: str) -> bool:
        """Count a call that failed, recorded or not. Return whether this failure is recorded as an event."""
        self.failures[name] += 1
        self.failed_calls += 1
        return self.failures[name] <= self._each

    def counts(self) -> dict[str, dict[str, int]]:
        """Return, for each function, how many of its calls there were, how many are recorded, and how many failed."""
        return {
            name: {"calls": calls, "recorded": min(calls, self._each), "failed": self.failures[name]}
            for name, calls in sorted(self.begun.items())
        }
