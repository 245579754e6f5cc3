"""The state of a pool's machines according to the cloud's lists, and the events that follow. No I/O, no clock.

Clouds are eventually consistent: a list may lack a machine that was just created, and be older than the list before.

SEEN-1: a machine becomes reachable at most once and gone at most once; after it is gone, it has no events.
SEEN-2: an older answer changes nothing: a machine's state only goes forward.
SEEN-3: a machine that lists lack counts as gone only after `GRACE_S` in which it was neither created nor listed.
Its tags do not matter.
SEEN-4: a machine that the pool itself is ending has no events.
SEEN-5: a call without an answer is settled when all its machines have ended, and no further one can appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from math import inf
from typing import Literal

from ...lazy_dataclass import dataclass
from ..base import Address, Machine, MachineEvent, MachineGone, MachineId, MachineReachable
from .vendor import Vendor

SSH_PORT = 22
# seconds for which lists may lack a machine; EC2's documentation ("Eventual consistency in the EC2 API") mentions
# seconds, and retries for up to a few minutes
GRACE_S = 60.0

State = Literal["pending", "running", "stopping", "stopped", "shutting-down", "terminated"]
_STEPS: dict[State, int] = {
    "pending": 0,
    "running": 1,
    "stopping": 2,
    "stopped": 3,
    "shutting-down": 4,
    "terminated": 5,
}


@dataclass(frozen=True, slots=True)
class InstanceView:
    """A machine as one response of the cloud shows it."""

    id: MachineId
    state: State
    public: str = ""
    private: str = ""
    reason: str = ""  # the cloud's code for the machine's end; empty: none
    message: str = ""
    launch: str = ""  # the token of the create call that made the machine
    port: int = SSH_PORT  # port of the machine's SSH server

    @property
    def step(self) -> int:
        return _STEPS[self.state]

    @property
    def lives(self) -> bool:
        return self.state in {"pending", "running"}

    @property
    def ends(self) -> bool:
        """Return whether the cloud is removing the machine. A stopped machine still exists and costs money, so it does
        not count.
        """
        return self.step >= _STEPS["shutting-down"]


@dataclass(slots=True)
class InventoryChanges:
    """The changes that one response of the cloud causes."""

    events: list[MachineEvent] = field(default_factory=list)
    # machines that the cloud has taken; similar offers are avoided for a while
    interrupted: list[MachineId] = field(default_factory=list)
    unwanted: list[MachineId] = field(default_factory=list)  # machines that the pool does not use and must end
    # pairs: the token of a create call without a response, and the machines that the call made
    settled: list[tuple[str, list[MachineId]]] = field(default_factory=list)


@dataclass(slots=True)
class _Known:
    machine: Machine
    user: str
    seen_at: float  # time of the machine's creation, or of the last response that listed the machine
    step: int = 0
    reachable: bool = False
    gone: bool = False  # whether the event that the machine is gone was sent
    ending: bool = False  # whether the pool is ending the machine


@dataclass(slots=True)
class _Lost:
    at: float  # time after which the pool stopped waiting for the call's response
    count: float  # number of machines that the call requested
    spare_s: float  # for so many seconds its machines are not ended, because a repetition of the call may return them
    looked_since: float = inf  # time of the first list that could show the call's machines
    machines: set[MachineId] = field(default_factory=set)
    ended: set[MachineId] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """Return whether all machines that the call requested are known."""
        return len(self.machines) >= self.count

    def settled(self, now: float) -> bool:
        """Return whether all machines of the call have ended, and no further one can appear."""
        return self.machines == self.ended and (self.whole or now >= self.until(now))

    def until(self, now: float) -> float:
        """Return the time by which a list would have shown all machines of the call."""
        return min(self.looked_since, now) + GRACE_S


class InstanceInventory:
    """The machines of one pool, with their states. ``public``: machines are reached at their public addresses."""

    def __init__(self, vendor: Vendor, *, public: bool) -> None:
        self._vendor, self._public = vendor, public
        self._known: dict[MachineId, _Known] = {}
        self._lost_launches: dict[str, _Lost] = {}  # create calls without a response, by token

    # --- actions of the pool ----------------------------------------------------------------------------------------

    def created(self, machine: Machine, user: str, now: float) -> None:
        """Add a created machine. ``user``: its login name. There will be no event for a machine that already has an
        address.
        """
        self._known[machine.id] = _Known(machine, user, now, reachable=machine.address is not None)

    def launch_lost(self, token: str, now: float, *, count: float = inf, spare_s: float = 0.0) -> None:
        """Record a create call without a response. Up to ``count`` machines of the call may exist, with unknown ids.

        For ``spare_s`` seconds, these machines are not ended, because a repetition of the call may return them.
        """
        self._lost_launches[token] = _Lost(now, count, spare_s)

    def launch_repeated(self, token: str) -> None:
        """Forget that the call is lost, because it is being repeated: the next response names its machines."""
        self._lost_launches.pop(token, None)

    def ending(self, machines: Iterable[MachineId]) -> list[MachineId]:
        """Record that the pool ends these machines. Return the machines that belong to the pool and have not ended."""
        mine = [machine for machine in machines if machine in self._known]
        for machine in mine:
            self._known[machine].ending = True
        return mine

    # --- responses of the cloud ---------------------------------------------------------------------------------------

    def full_answer(self, views: Sequence[InstanceView], sent_at: float, now: float) -> InventoryChanges:
        """Process a complete list of the pool's machines. ``sent_at``: time of the request."""
        news = InventoryChanges()
        for lost in self._lost_launches.values():
            if sent_at >= lost.at:
                lost.looked_since = min(lost.looked_since, sent_at)
        for view in views:
            self._update(view, now, news)
        shown = {view.id for view in views}
        for machine in [each for each in self._known if each not in shown]:
            self._miss(machine, sent_at, news)
        return news

    def partial_answer(self, views: Sequence[InstanceView], now: float) -> InventoryChanges:
        """Process a response about some machines. It changes nothing about other machines."""
        news = InventoryChanges()
        for view in views:
            self._update(view, now, news)
        return news

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def machines(self) -> list[MachineId]:
        """Return the machines that are not confirmed to have ended."""
        return list(self._known)

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to request: no machine exists, and no create call is without a response."""
        return not self._known and not self._lost_launches

    @property
    def busy(self) -> bool:
        """Return whether a machine's state is expected to change soon."""
        return bool(self._lost_launches) or any(
            known.ending or known.gone or not known.reachable for known in self._known.values()
        )

    def has(self, machine: MachineId) -> bool:
        return machine in self._known

    def still_on(self, machines: Iterable[MachineId]) -> list[MachineId]:
        """Return those of the ``machines`` that the cloud has not begun to remove."""
        return [each for each in machines if each in self._known and self._known[each].step < _STEPS["shutting-down"]]

    def unsure_for(self, now: float) -> float:
        """Return the seconds until lists have shown all machines of the create calls without a response."""
        return max((lost.until(now) - now for lost in self._lost_launches.values() if not lost.whole), default=0.0)

    def lost_launches(self, now: float) -> dict[str, float]:
        """Return the tokens of create calls without a response, each with the seconds until lists have shown its
        machines.
        """
        return {token: 0.0 if lost.whole else lost.until(now) - now for token, lost in self._lost_launches.items()}

    def forget_lost(self, now: float) -> InventoryChanges:
        """Drop the create calls that are settled (SEEN-5): all machines that they made have ended, and no further one
        can appear.
        """
        settled = {token: lost for token, lost in self._lost_launches.items() if lost.settled(now)}
        for token in settled:
            del self._lost_launches[token]
        return InventoryChanges(settled=[(token, sorted(lost.machines)) for token, lost in settled.items()])

    # --- rules ------------------------------------------------------------------------------------------------------

    def _update(self, view: InstanceView, now: float, news: InventoryChanges) -> None:
        known = self._known.get(view.id)
        if known is None:
            lost = self._lost_launches.get(view.launch)
            if lost is not None:
                lost.machines.add(view.id)
                if view.ends:
                    lost.ended.add(view.id)
                elif now >= lost.at + lost.spare_s:
                    news.unwanted.append(view.id)
            return
        known.seen_at = now
        if view.step < known.step:  # by SEEN-2, an older response changes nothing
            return
        known.step = view.step
        if view.step >= _STEPS["stopping"]:
            self._goes(known, view, news)
        elif view.state == "running" and not (known.reachable or known.gone):
            self._address(known, view, news)
        if view.state == "terminated":
            del self._known[view.id]

    def _address(self, known: _Known, view: InstanceView, news: InventoryChanges) -> None:
        host = view.public if self._public else view.private
        if not host:
            return
        known.reachable = True
        address = Address(host, view.port, user=known.user)
        known.machine = replace(known.machine, address=address, private_address=view.private)
        if not known.ending:
            news.events.append(MachineReachable(known.machine))

    def _goes(self, known: _Known, view: InstanceView, news: InventoryChanges) -> None:
        if not known.gone:
            known.gone = True
            if view.reason in self._vendor.interruptions:
                news.interrupted.append(view.id)
            if not known.ending:  # by SEEN-4, the pool's own ends have no events
                news.events.append(MachineGone(view.id, cause(self._vendor, view)))
        if not view.ends and not known.ending:
            news.unwanted.append(view.id)  # a stopped machine still costs money for its disk

    def _miss(self, machine: MachineId, sent_at: float, news: InventoryChanges) -> None:
        known = self._known[machine]
        if sent_at - known.seen_at < GRACE_S:  # by SEEN-3, the list may be outdated
            return
        if not (known.gone or known.ending):
            news.events.append(MachineGone(machine, f"{self._vendor.service} does not know it any more"))
        del self._known[machine]


def cause(vendor: Vendor, view: InstanceView) -> str:
    """Return a text for the user that says why the machine ended."""
    known = vendor.causes.get(view.reason)
    if known is not None and view.state in {"stopping", "stopped"}:
        return known.replace("terminated", "stopped")
    return known or view.message or view.reason or f"{vendor.service} says that it is {view.state}, and not why"


def pause_s(*, busy: bool, requests: int) -> float:
    """Return the seconds until the next request. ``requests``: how many were sent since a change was expected.

    Requests are frequent at first, because users wait for new machines; later their rate is constant.
    """
    if not busy:
        return 5.0
    return min(1.0, 0.25 * 2.0 ** min(requests, 2))
