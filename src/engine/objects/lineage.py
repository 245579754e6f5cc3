"""The lineage of kept results: decides which calls are remembered, and which run again to recompute a lost result.

No I/O, no clock.

LINEAGE-1: a call is remembered for as long as its result is referred to, or is an argument of a remembered call.
LINEAGE-2: at most ``most`` calls are remembered, with arguments of at most ``most_bytes`` in total; calls that are
being run again are exempt. The calls that ended first are forgotten first.
LINEAGE-3: at most one call at a time computes a result, no matter how many callers need the result.
LINEAGE-4: a call runs again at most as often as its options allow; a run that was called off is not counted.
LINEAGE-5: a forgotten call does not run again, and a call that is being run again is not forgotten.
LINEAGE-6: each call is forgotten once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto

from ...lazy_dataclass import dataclass

MOST = 10_000  # most remembered calls; each takes 1 KiB, in addition to its arguments
MOST_BYTES = 1 << 30  # most bytes of the arguments of all remembered calls


class State(Enum):
    THERE = auto()  # the result was available when last checked
    RUNNING = auto()  # the call is being run again
    GONE = auto()  # the result is lost with its node, or freed


class Need(Enum):
    """The next step for a caller that needs a result."""

    NOTHING = auto()  # the result is available
    WAIT = auto()  # the result is being computed
    RUN = auto()  # the caller must run the result's call, and report the end of that run
    GIVE_UP = auto()  # the result cannot be recomputed


@dataclass(slots=True, eq=False)
class Origin:
    """The call that computed a result.

    It may run again ``left`` times. ``call``: any object that describes the call; this module does not use it.
    """

    call: object
    size_bytes: int  # size of the call's arguments
    left: int
    sources: Sequence[Origin] = ()  # the calls whose results are arguments of this call
    state: State = State.THERE
    references: int = 1  # number of references to the call's result
    users: int = 0  # number of remembered calls that have the result as an argument
    again: int = 0  # number of repeated runs, including a run that has not ended
    remembered: bool = False


class Lineage:
    """The remembered calls of one pool.

    Calls to be forgotten are collected in ``forgotten`` until the caller takes them.
    """

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self.forgotten: list[Origin] = []
        self.size_bytes = 0
        self._most, self._most_bytes = most, most_bytes
        self._calls: OrderedDict[Origin, None] = OrderedDict()  # remembered calls, in the order of their ends

    def __len__(self) -> int:
        return len(self._calls)

    def remember(self, origin: Origin) -> None:
        """Remember the call of an available result."""
        origin.remembered = True
        self._calls[origin] = None
        self.size_bytes += origin.size_bytes
        for each in origin.sources:
            each.users += 1
        self._make_room()

    def refer(self, origin: Origin) -> None:
        """Count another reference to the call's result."""
        origin.references += 1

    def let_go(self, origin: Origin) -> None:
        """Count one reference less. A result without references is freed."""
        origin.references -= 1
        if not origin.references and origin.state is State.THERE:
            origin.state = State.GONE
        self._forget_unneeded([origin])

    def lost(self, origin: Origin) -> None:
        """Record that a result is no longer available."""
        if origin.state is State.THERE:
            origin.state = State.GONE

    def need(self, origin: Origin) -> Need:
        if origin.state is not State.GONE:
            return Need.NOTHING if origin.state is State.THERE else Need.WAIT
        if not origin.remembered or not origin.left:
            return Need.GIVE_UP
        origin.left -= 1
        origin.again += 1
        origin.state = State.RUNNING
        return Need.RUN

    def restored(self, origin: Origin) -> None:
        """Record that a call has run again, and that its result is available."""
        self._over(origin, State.THERE)

    def failed(self, origin: Origin) -> None:
        self._over(origin, State.GONE)

    def called_off(self, origin: Origin) -> None:
        """Record that a run was ended because no caller waits for it any more."""
        origin.left += 1
        origin.again -= 1
        self._over(origin, State.GONE)

    def _over(self, origin: Origin, state: State) -> None:
        origin.state = state if origin.references else State.GONE
        self._forget_unneeded([origin])
        self._make_room()

    def _make_room(self) -> None:
        while len(self._calls) > self._most or self.size_bytes > self._most_bytes:
            oldest = next((each for each in self._calls if each.state is not State.RUNNING), None)
            if oldest is None:
                return
            self._forget_unneeded(self._forget(oldest))

    def _forget_unneeded(self, origins: Sequence[Origin]) -> None:
        """Forget those of the calls that are no longer needed, then their sources if these are not needed, and so on.

        Chains of sources may be long, so this is a loop and not a recursion.
        """
        looked_at = [*origins]
        while looked_at:
            each = looked_at.pop()
            if each.remembered and not each.references and not each.users and each.state is not State.RUNNING:
                looked_at += self._forget(each)

    def _forget(self, origin: Origin) -> Sequence[Origin]:
        """Forget a call. Return its sources, which may no longer be needed either."""
        origin.remembered = False
        del self._calls[origin]
        self.size_bytes -= origin.size_bytes
        self.forgotten.append(origin)
        for each in origin.sources:
            each.users -= 1
        return origin.sources
