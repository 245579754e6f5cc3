"""The machines of a pool as the cloud's lists show them: their states, the events that follow, and the pool's end.

A `ListedMachine` is one machine in a list. `InstanceInventory` tracks the states of a living pool's machines, and
`EndTracker` decides when all machines of an ending pool have ended, and when to stop waiting. No I/O, no clock.

Clouds are eventually consistent: a list may lack a machine that was just created, and be older than the list before.

SEEN-1: a machine becomes reachable at most once and gone at most once; after it is gone, it has no events.
SEEN-2: an older answer changes nothing: a machine's state only goes forward.
SEEN-3: a machine that lists lack counts as gone only after `GRACE_S` in which it was neither created nor listed.
Its tags do not matter.
SEEN-4: a machine that the pool itself is ending has no events.
SEEN-5: a create call without an answer is settled (needs no more attention) when all machines that it made have ended,
and no further one can appear.

TEARDOWN-1: if the wait for the end fails, the error names every known machine whose end the cloud has not shown.
TEARDOWN-2: transient errors are tolerated for a time (the patience), until the machines' lease has ended them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Literal

from ...lazy_dataclass import dataclass
from ..base import Address, Machine, MachineEvent, MachineGone, MachineId, MachineReachable
from ..errors import NotGone, ProviderError
from ..shared.resource_ownership import Thing
from ..survey import FoundMachine
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
    at: float  # the time at which the pool stopped waiting for the call's response
    count: float  # number of machines that the call requested
    spare_s: float  # seconds for which the call's machines are not ended: a repetition of the call may return them
    looked_since: float = inf  # time of the first list that could show the call's machines
    machines: set[MachineId] = field(default_factory=set)
    ended: set[MachineId] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """Return whether all machines that the call requested are known."""
        return len(self.machines) >= self.count

    def settled(self, now: float) -> bool:
        """Return whether all machines that this create call made have ended, and no further one can appear."""
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


# --- machines in lists ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """One machine in a cloud's list. ``whose``: the machine's id and labels.

    ``status``: the state in the cloud's own words. The fields from ``kind`` to ``until`` mean the same as in
    `survey.FoundMachine`, and the fields after them the same as in `InstanceView`. ``port``: 0 if the SSH server has no
    port yet.
    """

    whose: Thing
    state: State
    _: KW_ONLY
    status: str
    kind: str
    zone: str
    market: str = "on-demand"
    launched_at: float | None = None
    hourly_usd: float | None = None
    until: float | None = None
    public: str = ""
    private: str = ""
    port: int = SSH_PORT
    reason: str = ""
    message: str = ""

    @property
    def id(self) -> MachineId:
        return MachineId(self.whose.id)

    @property
    def view(self) -> InstanceView:
        """The machine as an `InstanceView`, for a pool."""
        return InstanceView(
            self.id,
            self.state,
            public=self.public,
            private=self.private,
            reason=self.reason,
            message=self.message,
            launch=self.whose.launch,
            port=self.port,
        )

    @property
    def summary(self) -> FoundMachine:
        """The machine as a `FoundMachine`, for `outrider ps`."""
        address = self.public or self.private
        return FoundMachine(
            self.id,
            self.kind,
            self.market,
            self.zone,
            self.status,
            self.launched_at or 0.0,
            address if not address or self.port in (0, SSH_PORT) else f"{address}:{self.port}",
            self.hourly_usd,
            self.until,
            pool=self.whose.pool,
            owner=self.whose.owner,
            launch=self.whose.launch,
        )


def time_of(text: object) -> float | None:
    """Return the unix time of an ISO date and time (in UTC if it has no time zone); None: the text is not a date."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# --- the end of a pool's machines -------------------------------------------------------------------------------------


CONFIRM_S = 900.0  # seconds to wait for the end of machines: large ones need minutes from shutting-down to terminated
# A machine that has lost its client ends at most so many seconds after its lease is over: it checks the lease every few
# seconds, the first lease is 30 s longer, and the shutdown takes time.
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
