"""The lineage of kept results: the calls that computed them, and which of these calls run again. No I/O, no clock.

LINEAGE-1: a call is remembered for as long as its result is referred to, or was given to a call that is remembered.
LINEAGE-2: at most ``most`` calls are remembered, with arguments of at most ``most_bytes``, but for those that run again
    just now; the ones that have ended first are forgotten first.
LINEAGE-3: one call at a time computes a result, however many need it.
LINEAGE-4: a call runs again at most as often as it may; a run that was called off is not counted.
LINEAGE-5: what was forgotten does not run again, and what runs again is not forgotten meanwhile.
LINEAGE-6: each call is forgotten once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto

from ...lazy_dataclass import dataclass

MOST = 10_000  # calls: each takes 1 KiB, beside its arguments
MOST_BYTES = 1 << 30  # of their arguments


class State(Enum):
    THERE = auto()  # as of the last check
    RUNNING = auto()  # just now, once more
    GONE = auto()  # lost with its node, or freed


class Need(Enum):
    """The next step of a caller that needs a result."""

    NOTHING = auto()  # it is there
    WAIT = auto()  # it is being made
    RUN = auto()  # the caller runs the call of the result, and reports its end
    GIVE_UP = auto()  # it cannot be made again


@dataclass(slots=True, eq=False)
class Origin:
    """The call that has made a result, and may run again ``left`` times. ``call``: its owner's, opaque here."""

    call: object
    size_bytes: int  # of its arguments
    left: int
    sources: Sequence[Origin] = ()  # of the results that it was given
    state: State = State.THERE
    references: int = 1  # to its result
    users: int = 0  # remembered calls that were given its result
    again: int = 0  # times that it was run again, or is just now
    remembered: bool = False


class Lineage:
    """The calls of one pool. Calls to be forgotten gather in ``forgotten`` until the caller takes them."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self.forgotten: list[Origin] = []
        self.size_bytes = 0
        self._most, self._most_bytes = most, most_bytes
        self._calls: OrderedDict[Origin, None] = OrderedDict()  # ended first, first

    def __len__(self) -> int:
        return len(self._calls)

    def remember(self, origin: Origin) -> None:
        """Remember the call of a result that is there."""
        origin.remembered = True
        self._calls[origin] = None
        self.size_bytes += origin.size_bytes
        for each in origin.sources:
            each.users += 1
        self._make_room()

    def refer(self, origin: Origin) -> None:
        """Note another reference to its result."""
        origin.references += 1

    def let_go(self, origin: Origin) -> None:
        """Note that there is a reference less. Without any, the result itself is freed."""
        origin.references -= 1
        if not origin.references and origin.state is State.THERE:
            origin.state = State.GONE
        self._forget_unneeded([origin])

    def lost(self, origin: Origin) -> None:
        """Note that a result is not there any more."""
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
        """Note that a call has run again, and its result is there."""
        self._over(origin, State.THERE)

    def failed(self, origin: Origin) -> None:
        self._over(origin, State.GONE)

    def called_off(self, origin: Origin) -> None:
        """Note that a call was ended because it has no waiters any more."""
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
        """Forget the calls that nothing needs any more, and the sources that only they used: a chain may be long."""
        looked_at = [*origins]
        while looked_at:
            each = looked_at.pop()
            if each.remembered and not each.references and not each.users and each.state is not State.RUNNING:
                looked_at += self._forget(each)

    def _forget(self, origin: Origin) -> Sequence[Origin]:
        """Forget a call; return its sources, which may be unneeded without it."""
        origin.remembered = False
        del self._calls[origin]
        self.size_bytes -= origin.size_bytes
        self.forgotten.append(origin)
        for each in origin.sources:
            each.users -= 1
        return origin.sources
