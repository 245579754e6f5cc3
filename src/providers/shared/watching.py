"""Decide when to warn about a watcher (a task that polls a provider) that fails. No clock: callers pass the time.

WATCH-1: no failure ends a watcher: the failure is counted, and the watcher continues.
WATCH-2: a watcher that has had no success for `BLIND_S` warns once, and once more at its next success.
WATCH-3: an error that is not a ProviderError is a defect of the watcher: each type of such an error warns once.
"""

from __future__ import annotations

from ..base import Warned
from ..errors import ProviderError

BLIND_S = 30.0  # seconds without a success, after which a watcher warns
LONGEST_S = 30.0  # seconds, the longest pause between two tries


class Watching:
    def __init__(self, what: str) -> None:
        """Count the failures of a watcher. ``what``: what it watches, such as "the machines of train in us-east-1"."""
        self._what = what
        self.failures = 0  # failures since the last success
        self._since = 0.0
        self._blind = False
        self._defects: set[type[Exception]] = set()

    @property
    def pause_s(self) -> float:
        """The pause (seconds) between a failure and the next try."""
        return min(LONGEST_S, 2.0 ** min(self.failures - 1, 10))

    def failed(self, error: Exception, now: float) -> Warned | None:
        if not self.failures:
            self._since = now
        self.failures += 1
        if now - self._since >= BLIND_S and not self._blind:
            self._blind = True
            blind = f"nothing has been seen of {self._what} for {now - self._since:.0f} s, in {self.failures} tries"
            return Warned(f"{blind} ({_in_words(error)}): until it goes well, losses show by connections alone")
        if not isinstance(error, ProviderError) and type(error) not in self._defects:
            self._defects.add(type(error))
            return Warned(f"who watches {self._what} has failed by a defect ({_in_words(error)}): it is tried again")
        return None

    def succeeded(self, now: float) -> Warned | None:
        blind, self._blind, self.failures = self._blind, False, 0
        return Warned(f"{self._what} are seen again, after {now - self._since:.0f} s") if blind else None


def _in_words(error: Exception) -> str:
    words = str(error).strip().rstrip(".")
    if isinstance(error, ProviderError) and words:
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
