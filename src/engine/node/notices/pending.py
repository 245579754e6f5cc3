"""The notices of all sources: which one holds for the tasks, and what has changed. Pure; time comes in.

PENDING-1: what holds is the soonest end that is still ahead; if none is, the latest of those that have passed.
PENDING-2: a notice keeps its number until its source withdraws it; the next one has another.
PENDING-3: nothing holds exactly while no source has a notice.
PENDING-4: a change is that a source begins to have a notice, withdraws it, or changes its time, and nothing else.
"""

from __future__ import annotations

from ..notice_page import PostedNotice

SAME_S = 1.0  # an end computed twice from what a cloud says differs by its rounding
LONGEST_S = 30 * 86400.0
NAME_CHARS = 64


def bounded(seconds: float) -> float:
    """Limit ``seconds`` to 0 and the longest time that a notice may leave; not-a-number becomes 0."""
    return min(max(seconds, 0.0), LONGEST_S) if seconds == seconds else 0.0  # noqa: PLR0124 (not a number)


class Pending:
    def __init__(self) -> None:
        self.known: dict[str, PostedNotice] = {}  # by source
        self.holds: PostedNotice | None = None
        self._last = 0

    def record(self, source: str, seconds: float | None, now: float) -> bool:
        """Record that a source has a notice, or none (any more). Return whether that changes anything."""
        source = source[:NAME_CHARS]
        known = self.known.get(source)
        if seconds is None:
            changed = self.known.pop(source, None) is not None
        else:
            seconds = bounded(seconds)
            changed = known is None or abs(now + seconds - known.at) >= SAME_S
            if changed:
                self._last += known is None
                self.known[source] = PostedNotice(
                    self._last if known is None else known.number, source, seconds, now + seconds
                )
        self.holds = self._soonest(now)
        return changed

    def _soonest(self, now: float) -> PostedNotice | None:
        ahead = [notice for notice in self.known.values() if notice.at > now]
        if ahead:
            return min(ahead, key=lambda notice: (notice.at, notice.number))
        return max(self.known.values(), key=lambda notice: (notice.at, notice.number), default=None)
