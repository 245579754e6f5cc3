"""The book of a pool that ends: which machines are left, and for how long their end is awaited. Pure.

TEARDOWN-1: who gives up names every machine that it knows of, and whose end EC2 has not shown.
TEARDOWN-2: an error that may pass is waited out for as long as patience lasts: until their lease has ended them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ..errors import NotGone, ProviderError
from .seen import GRACE_S, Sight

CONFIRM_S = 900.0  # large machines with many devices take minutes from shutting-down to terminated
LEASE_MORE_S = 60.0  # it is looked at every few seconds, has 30 more at the first boot; then a machine shuts down

AGAIN_S = 1.0  # the least, after an error


def patience_s(lease_s: float) -> float:
    """Return for how many seconds trouble that may pass is waited out at a pool's end."""
    return min(CONFIRM_S, lease_s + LEASE_MORE_S)


@dataclass(frozen=True, slots=True)
class Unsure:
    """A launch without an answer: machines of it may appear for so long, and so many in all."""

    seconds: float
    count: float = inf


class Ending:
    """``known``: machines that must have existed, and when they were last known to. ``all_known``: there are no others,
    but for those that may appear after ``began``, by the token of the launch ``unsure`` of which they are.
    """

    def __init__(
        self,
        known: Mapping[str, float],
        *,
        began: float = 0.0,
        unsure: Mapping[str, Unsure] | None = None,
        patience_s: float = 0.0,
        lease_s: float | None = None,
        all_known: bool = False,
    ) -> None:
        self._began, self._unsure, self._patience_s, self._lease_s = began, unsure or {}, patience_s, lease_s
        self._answered = all_known
        self._at = dict(known)  # when each was last shown
        self._shown: set[str] = set()
        self._asked: set[str] = set()  # to end, as EC2 has said itself
        self._terminated: set[str] = set()
        self._vanished: set[str] = set()
        self._launches: dict[str, set[str]] = {}

    @property
    def _unsure_s(self) -> float:
        """Until no further machine can appear: once as many of a launch have shown as it asked for, none can."""
        open_s = [
            each.seconds for token, each in self._unsure.items() if len(self._launches.get(token, ())) < each.count
        ]
        return max(open_s, default=0.0)

    @property
    def ended(self) -> set[str]:
        return self._terminated | self._vanished

    @property
    def left(self) -> set[str]:
        return self._at.keys() - self.ended

    @property
    def hidden(self) -> list[str]:
        """Return the machines that are left and that the last answer did not show."""
        return sorted(self.left - self._shown)

    @property
    def to_end(self) -> list[str]:
        return sorted(self.left - self._asked)

    def see(self, shown: Sequence[Sight], asked_at: float) -> None:
        """An answer to the question for all of them."""
        self._answered = True
        self._shown = {sight.id for sight in shown}
        self._at |= dict.fromkeys(self._shown, asked_at)
        for sight in shown:
            self._launches.setdefault(sight.launch, set()).add(sight.id)
        self.told(shown)
        self._vanished = {each for each, at in self._at.items() if asked_at - at >= GRACE_S}

    def told(self, some: Sequence[Sight]) -> None:
        """Take in what EC2 says of some machines. An end is never taken back: an answer that denies it is older."""
        self._asked |= {sight.id for sight in some if sight.ends}
        self._terminated |= {sight.id for sight in some if sight.state == "terminated"}

    # --- until when -------------------------------------------------------------------------------------------------

    def done(self, now: float) -> bool:
        return not self.left and now - self._began >= self._unsure_s

    def overdue(self, now: float) -> bool:
        """EC2 answers, and shows no end."""
        return now - self._began > CONFIRM_S + self._unsure_s

    def again_s(self, error: ProviderError, now: float) -> float | None:
        """Return the seconds to wait after ``error`` before asking again; None: it is time to give up."""
        if error.retry_after_s is None or now - self._began >= self._patience_s:
            return None
        return max(AGAIN_S, error.retry_after_s)

    def given_up(self, why: str, now: float, wall: float, *, code: str = "") -> NotGone:
        """``wall``: the unix time that is ``now``."""
        by = None
        if self._lease_s is not None:
            by = wall - (now - self._began) + self._lease_s + LEASE_MORE_S
        unsure = not self._answered or now - self._began < self._unsure_s
        return NotGone(why, machines=sorted(self.left), by=by, unsure=unsure, code=code)
