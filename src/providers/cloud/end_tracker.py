"""Decides when all machines of a pool have ended, and when to stop waiting for their end. No I/O, no clock.

TEARDOWN-1: the error after the wait names every known machine whose end the cloud has not shown.
TEARDOWN-2: transient errors are tolerated for a time (the patience), until the machines' lease has ended them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from ...lazy_dataclass import dataclass
from ..errors import NotGone, ProviderError
from .instance_inventory import GRACE_S, InstanceView

CONFIRM_S = 900.0  # seconds to wait for the end of machines: large ones need minutes from shutting-down to terminated
# seconds by which the end may come later than the lease: a machine checks the lease every few seconds, the first lease
# is 30 s longer, and the shutdown takes time
LEASE_MORE_S = 60.0

AGAIN_S = 1.0  # shortest pause after an error, in seconds


def patience_s(lease_s: float) -> float:
    """Return the seconds for which transient errors are tolerated while a pool ends."""
    return min(CONFIRM_S, lease_s + LEASE_MORE_S)


@dataclass(frozen=True, slots=True)
class Unsure:
    """A launch without a response: during ``seconds``, up to ``count`` machines of it may still appear in lists."""

    seconds: float
    count: float = inf


class EndTracker:
    """The progress of ending a pool's machines.

    ``known``: machines that have existed, each with the latest time at which it is known to have existed.
    ``all_known``: there are no other machines, except those of the launches in ``unsure`` (by token), which may appear
    after ``began``.
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
        self._at = dict(known)  # for each machine, the time of the last response that listed it
        self._shown: set[str] = set()
        self._ending: set[str] = set()  # machines that the cloud has confirmed to be ending
        self._terminated: set[str] = set()
        self._vanished: set[str] = set()
        self._launches: dict[str, set[str]] = {}

    @property
    def _unsure_s(self) -> float:
        """Return the seconds after which no further machine can appear; 0 if lists have shown all machines of every
        launch.
        """
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
        """Return the machines that have not ended and were not in the last list."""
        return sorted(self.left - self._shown)

    @property
    def to_end(self) -> list[str]:
        return sorted(self.left - self._ending)

    def full_answer(self, shown: Sequence[InstanceView], sent_at: float) -> None:
        """Process a list of all machines of the pool. ``sent_at``: time of the request."""
        self._answered = True
        self._shown = {view.id for view in shown}
        self._at |= dict.fromkeys(self._shown, sent_at)
        for view in shown:
            self._launches.setdefault(view.launch, set()).add(view.id)
        self.partial_answer(shown)
        self._vanished = {each for each, at in self._at.items() if sent_at - at >= GRACE_S}

    def partial_answer(self, some: Sequence[InstanceView]) -> None:
        """Process a response about some machines. A machine that has ended stays ended, even if a later response, being
        outdated, shows it.
        """
        self._ending |= {view.id for view in some if view.ends}
        self._terminated |= {view.id for view in some if view.state == "terminated"}

    # --- patience -----------------------------------------------------------------------------------------------------

    def done(self, now: float) -> bool:
        return not self.left and now - self._began >= self._unsure_s

    def overdue(self, now: float) -> bool:
        """Return whether the cloud has not shown the machines' end within `CONFIRM_S`."""
        return now - self._began > CONFIRM_S + self._unsure_s

    def again_s(self, error: ProviderError, now: float) -> float | None:
        """Return the seconds to wait after ``error`` before the next request; None: stop waiting for the end."""
        if error.retry_after_s is None or now - self._began >= self._patience_s:
            return None
        return max(AGAIN_S, error.retry_after_s)

    def not_gone_error(self, why: str, now: float, wall: float, *, code: str = "") -> NotGone:
        """Return the error that names the machines whose end is not confirmed. ``wall``: the unix time of ``now``."""
        by = None
        if self._lease_s is not None:
            by = wall - (now - self._began) + self._lease_s + LEASE_MORE_S
        unsure = not self._answered or now - self._began < self._unsure_s
        return NotGone(why, machines=sorted(self.left), by=by, unsure=unsure, code=code)
