"""Placement: which node runs the next attempt of a task, and which attempts are taken back (work stealing). Pure.

The cost is O(1) per attempt (one try to run a task), for any number of nodes. The nodes that hold the same number of
attempts form a group, called level; the next attempt goes to the lowest level, there to the node that was active last.
A node holds as many attempts as it has slots. If tasks are known to be short, a node also holds a stack: attempts
beyond its slots, sent in advance to hide the time of a round trip. If such attempts wait behind a long task while slots
are free elsewhere, some are taken back.

A broadcast needs seats: one slot each on several nodes at the same time. While the broadcast's claim waits, each node
that may get a seat keeps one slot free, and also the amounts that the seat needs. Only the first claim in line collects
seats, so two claims never block each other.

A task that needs amounts of processors, memory or accelerators waits in the `WaitingLine` until one node has a slot and
the amounts free at the same time. The line is in the order of submission, but a task that fits goes before older tasks
that do not fit: to wait for them would leave amounts idle. So that a large task is not overtaken for ever, the first
task in line is overtaken at most `OVERTAKES` times; then one node is saved for it, on which no other task with amounts
begins. If a node has the task's amounts free but no slot, one slot is kept for the task.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import nsmallest
from itertools import chain, islice
from math import ceil

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from .amounts import NOTHING, Amounts, describe
from .entries import QUEUED, STACK_OF_SHORT, Entry, Host, TaskQueue
from .interfaces import AttemptId, JobId, NodeId
from .membership import Roster

# seconds; if no attempt on a node with waiting attempts started or ended for this time, the node runs a long task
STALL_S = 0.020
LONG_S = 1.0  # seconds; attempts that wait behind a long task for this time count as work for an additional node
STEALS = 8  # number of nodes examined per check for attempts to take back


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A broadcast's request for seats, which are slots for its ranks, on at least ``least`` nodes.

    The nodes in ``besides`` do not count. ``every``: on all other nodes.
    ``again``: the broadcast has begun before and may hold seats, so its claim goes before claims of new broadcasts.
    """

    job: JobId
    least: int
    most: int | None = None
    every: bool = False
    again: bool = False
    besides: frozenset[NodeId] = frozenset()
    # the processors, memory and accelerators that each seat (slot for the broadcast's ranks) reserves on its node
    needs: Amounts | None = None

    def wants(self, host: Host) -> bool:
        return host.id not in self.besides and (self.needs is None or self.needs.fits_in(host.has))


class WithdrawClaim(NamedTuple):
    """A decision of a broadcast: it needs no further seats, so its claim is withdrawn."""


class ReleaseSeat(NamedTuple):
    node: NodeId


class Placement:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.hosts: dict[NodeId, Host] = {}
        self.claims: list[Claim] = []
        self._levels: list[OrderedDict[NodeId, Host]] = [OrderedDict() for _ in range(slots + STACK_OF_SHORT)]
        self._lowest = 0
        # hosts with more attempts than slots; the host that was examined longest ago comes first
        self.stacked: OrderedDict[NodeId, Host] = OrderedDict()
        self._next_steal = 0.0
        self._candidates = 0
        self._free: OrderedDict[NodeId, Host] = OrderedDict()
        self._gpus: Counter[int] = Counter()  # by number of accelerators: how many nodes have that number

    @property
    def busy(self) -> int:
        """Return how many slots are in use, including slots of nodes that take no new work.

        A free slot counts as in use if no task can run there, because its node's processors, memory or accelerators are
        in use.
        """
        return sum(max(min(host.load, self.slots), self._shares(host)) for host in self.hosts.values())

    def _shares(self, host: Host) -> int:
        """Return the largest used share of a node's processors, memory or accelerators, as a number of its slots."""
        held = host.has.minus(host.left)
        return ceil(self.slots * held.share_of(host.has)) if any(held) else 0

    def worth(self, needs: Amounts) -> float:
        """Return how many slots a task that needs these amounts takes up on the node where it takes up fewest."""
        shares = [needs.share_of(host.has) for host in self.hosts.values() if needs.fits_in(host.has)]
        return max(1.0, self.slots * min(shares, default=0.0))

    def add(self, node: NodeId, now: float, has: Amounts = NOTHING) -> Host:
        self.hosts[node] = host = Host(node, now, has, has)
        self._gpus[has.gpus] += 1
        self.place(host)
        return host

    def remove(self, node: NodeId) -> Host | None:
        host = self.hosts.pop(node, None)
        if host is not None:
            host.open = False
            self.place(host)
            self.stacked.pop(node, None)
            self._gpus[host.has.gpus] -= 1
        return host

    def place(self, host: Host) -> None:
        """Move ``host`` to the group of hosts with the same load (its level). Call this after every change to the
        host.
        """
        slots = self.slots
        held = len(host.attempts)
        load = held + host.seats
        claimed = bool(self.claims) and self.claims[0].wants(host)
        kept = host.keeps + 1 if claimed else host.keeps
        if not host.open:
            level = -1
        elif load < slots:
            level = load if load < slots - kept else -1
        elif host.seats or kept or host.slow >= slots or load >= slots + STACK_OF_SHORT:
            level = -1
        else:
            level = load
        before = host.level
        if level != before:
            if before >= 0:
                del self._levels[before][host.id]
            host.level = level
            if level >= 0:
                self._levels[level][host.id] = host
                self._lowest = min(self._lowest, level)
        if (held > slots) is not host.stacked:
            host.stacked = not host.stacked
            if host.stacked:
                self.stacked[host.id] = host
            else:
                self.stacked.pop(host.id, None)
        if self.claims:
            needs = self.claims[0].needs
            free = load < slots and (needs is None or needs.fits_in(host.left))
            self._count(host, candidate=claimed and host.open, free=free)

    def pick(self, stack: int) -> Host | None:
        """Return a host for an attempt that may wait behind up to ``stack`` attempts beyond the host's slots; None: no
        host takes it.

        Among the least loaded hosts, prefer the most recently active: its caches are warm (measured: saves 40 of 290 us
        per call).
        """
        levels, level = self._levels, self._lowest
        top = self.slots + stack
        while level < top and not levels[level]:
            level += 1
        self._lowest = level
        return levels[level][next(reversed(levels[level]))] if level < top else None

    def takes(self, host: Host, stack: int) -> bool:
        return 0 <= host.level < self.slots + stack

    # --- amounts of processors, memory and accelerators -----------------------------------------------------------

    @property
    def alike(self) -> bool:
        """Return whether all nodes have the same number of accelerators."""
        return sum(map(bool, self._gpus.values())) <= 1

    def with_slots(self) -> Iterator[Host]:
        """Yield the nodes with a free, unclaimed slot, the least loaded first, in the order of `pick`."""
        for level in self._levels[: self.slots]:
            yield from reversed(level.values())

    def has_room(self, host: Host, needs: Amounts, *, first: bool) -> bool:
        """Return whether a task with the amounts ``needs`` can begin on ``host`` now. ``first``: whether the task is
        first in line.
        """
        kept = (bool(self.claims) and self.claims[0].wants(host)) + (0 if first else host.keeps)
        return host.open and host.load + kept < self.slots and self.has_amounts(host, needs, first=first)

    def has_amounts(self, host: Host, needs: Amounts, *, first: bool) -> bool:
        if host.saved and not first:
            return False
        left = host.left
        if self.claims and (claimed := self.claims[0].needs) is not None and self.claims[0].wants(host):
            left = left.minus(claimed)
        return needs.fits_in(left)

    def too_large(self) -> Claim | None:
        """Return the first claim of seats if it can never be granted, because too few nodes have the amounts of
        processors, memory or accelerators that each seat needs; otherwise None.
        """
        claim = self.claims[0] if self.claims else None
        if claim is None or claim.needs is None or not claim.least:
            return None
        hosts = (host for host in self.hosts.values() if host.id not in claim.besides and host.open)
        others = [claim.needs.fits_in(host.has) for host in hosts]
        # count only the nodes that exist, as more may still become ready
        least = len(others) if claim.every else min(claim.least, len(others))
        return claim if sum(others) < least else None

    # --- stacks: attempts that a node holds beyond its slots ------------------------------------------------------

    def steal_at(self) -> float | None:
        """Return when to look for attempts that wait behind long tasks; None: no node has waiting attempts, or no slot
        is free elsewhere.
        """
        if not self.stacked or self.pick(0) is None:
            return None
        first = next(iter(self.stacked.values()))
        return max(first.progress_at + STALL_S, self._next_steal)

    def steal(self, now: float) -> list[tuple[NodeId, tuple[AttemptId, ...]]]:
        """Return the attempts to take back, by node: the newest half of those that wait behind long tasks."""
        recalls: list[tuple[NodeId, tuple[AttemptId, ...]]] = []
        at = self.steal_at()
        if at is None or now < at:
            return recalls
        self._next_steal = now + STALL_S
        for _ in range(min(STEALS, len(self.stacked))):
            host = next(iter(self.stacked.values()))
            self.stacked.move_to_end(host.id)
            if not host.recalling and now - host.progress_at >= STALL_S:
                waiting = self.unstarted(host)
                recalls.append((host.id, waiting[len(waiting) // 2 :]))
                host.recalling = True
        return recalls

    def unstarted(self, host: Host) -> tuple[AttemptId, ...]:
        """Return the attempts that have probably not started: a node starts attempts in order, and those beyond its
        slots wait.
        """
        return tuple(host.attempts)[self.slots :]

    def stuck(self, now: float) -> Iterator[Entry]:
        """Yield the waiting attempts of each node on which no attempt has started or ended for `LONG_S`."""
        for host in self.stacked.values():
            if now - host.progress_at >= LONG_S:
                yield from islice(host.attempts.values(), self.slots, None)

    # --- seats: slots for the ranks of broadcasts -----------------------------------------------------------------

    def at_once(self, claim: Claim) -> tuple[JobId, tuple[NodeId, ...]] | None:
        """Grant ``claim`` at once if no other claim waits and every node has a free slot; otherwise return None.

        This is cheaper than `claim` and `grant`, which update the group of every node.
        """
        if self.claims or not claim.every or claim.most is not None:
            return None
        hosts = [host for host in self.hosts.values() if host.open and claim.wants(host)]
        if len(hosts) < claim.least or any(host.load >= self.slots for host in hosts) or self._lacks(claim):
            return None
        if claim.needs is not None and not all(claim.needs.fits_in(host.left) for host in hosts):
            return None
        for host in hosts:
            _seat(host, claim)
            self.place(host)
        return claim.job, tuple([host.id for host in hosts])

    def claim(self, claim: Claim) -> None:
        """Add ``claim`` to the line. Claims of broadcasts that have begun before come first; otherwise the order of the
        jobs counts.
        """
        insort(self.claims, claim, key=_place_in_line)
        if self.claims[0] is claim:
            self._new_first()

    def withdraw(self, job: JobId) -> bool:
        """Remove the claim of ``job`` from the line; return False if the job had no claim."""
        for claim in self.claims:
            if claim.job == job:
                was_first = self.claims[0] is claim
                self.claims.remove(claim)
                if was_first:
                    self._new_first()
                return True
        return False

    def grant(self) -> tuple[JobId, tuple[NodeId, ...]] | None:
        """Grant the first claim its seats, once all are free at the same time. Call this until it returns None."""
        if not self.claims:
            return None
        claim = self.claims[0]
        free = self._free
        if len(free) < claim.least or (claim.every and (len(free) < self._candidates or self._lacks(claim))):
            return None
        chosen = list(free.values())[: claim.most]
        for host in chosen:
            _seat(host, claim)
        self.claims.pop(0)
        self._new_first()
        return claim.job, tuple(host.id for host in chosen)

    def _lacks(self, claim: Claim) -> bool:
        """Return whether a node that takes new work has smaller amounts than ``claim`` needs. If so, the broadcast will
        be refused.
        """
        if claim.needs is None:
            return False
        return any(host.open and host.id not in claim.besides and not claim.wants(host) for host in self.hosts.values())

    def unseat(self, node: NodeId, job: JobId) -> Host | None:
        """Free the seat of ``job`` on ``node``; return the node's host, for which the caller must call `place`."""
        host = self.hosts.get(node)
        if host is None or not host.seats:
            return None
        host.seats -= 1
        if (held := host.seated.pop(job, None)) is not None:
            host.left = host.left.plus(held)
        return host

    def _count(self, host: Host, *, candidate: bool, free: bool) -> None:
        free = free and candidate
        if candidate is not host.candidate:
            host.candidate = candidate
            self._candidates += 1 if candidate else -1
        if free is not host.free:
            host.free = free
            if free:
                self._free[host.id] = host
            else:
                del self._free[host.id]

    def _new_first(self) -> None:
        """Update the load group (level) of each node, as the first claim has changed. This happens once per broadcast,
        not per task.
        """
        self._candidates = 0
        self._free.clear()
        for host in self.hosts.values():
            host.candidate = host.free = False
            self.place(host)


def _seat(host: Host, claim: Claim) -> None:
    host.seats += 1
    if claim.needs is not None:
        host.seated[claim.job] = claim.needs
        host.left = host.left.minus(claim.needs)


def _place_in_line(claim: Claim) -> tuple[bool, int]:
    return (not claim.again, claim.job)


# how often other tasks may overtake a task. The limit is not a time: 16 short tasks end soon, and 16 long tasks use
# resources that were idle
OVERTAKES = 16
# largest number of lanes that are examined; a lane has the tasks with equal needs. Only lanes for any node count: each
# is compared with every node, which takes time.
LOOK = 64

Lane = tuple[Amounts, int | None]  # the needs of the tasks in one lane: (amounts, rank of the node; None: any node)

# a function that gets tasks, and a function that picks the host of each task
Send = Callable[[TaskQueue, Callable[[int], Host | None]], None]


class WaitingLine:
    def __init__(self, placement: Placement, roster: Roster) -> None:
        self.stirred = False  # whether a task in the line may fit a node now
        self._placement, self._roster = placement, roster
        self._lanes: dict[Lane, TaskQueue] = {}
        self._first: Entry | None = None
        self._saved: Host | None = None
        self._kept: Host | None = None
        # lanes (tasks with equal needs) whose tasks fit no node, except perhaps the nodes in `_freed`
        self._barren: set[Lane] = set()
        # amounts that no node has free, except perhaps the nodes in `_freed`; None: not known
        self._none_to_keep_for: Amounts | None = None
        self._freed: dict[NodeId, Host] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    @property
    def entries(self) -> list[Entry]:
        """Return the tasks in the line, in no particular order."""
        return [entry for lane in self._lanes.values() for entry in lane if entry.state == QUEUED]

    def add(self, entry: Entry) -> None:
        entry.stacks = False
        key = _lane_of(entry)
        self._clear(key)
        lane = self._lanes.setdefault(key, TaskQueue())
        if not lane:
            # no older task waits for the same amounts, so this task may perhaps begin at once
            self.stirred = True
        if lane and entry.task.job < lane[-1].task.job:
            insort(lane, entry, key=_submitted)
        else:
            lane.append(entry)

    def ended(self, entry: Entry) -> None:
        """Handle the end of a task in the line: other tasks may use the node or the slot that was saved for this
        task.
        """
        self.stirred = bool(self._lanes)
        if (lane := self._lanes.get(_lane_of(entry))) is not None:
            lane.ended()

    def stir(self, host: Host | None = None) -> None:
        """Handle a change by which a task in the line may begin. ``host``: the node that has changed; None: any node
        may have.
        """
        if self._lanes:
            self.stirred = True
            if host is None:
                self._barren.clear()
                self._none_to_keep_for = None
            else:
                self._freed[host.id] = host

    def assign(self, queue: TaskQueue, send: Send) -> None:
        """Send the tasks of the line that fit now, and the tasks of ``queue``, which only need a slot, the oldest
        first.
        """
        pick = self._placement.pick
        while True:
            while (fit := self.next()) is not None:
                entry, host = fit
                send(queue, lambda stack, entry=entry: pick(stack) if _before(queue[0], entry.task.job) else None)  # type: ignore[misc]
                if self._fits(entry, host):
                    self._take(entry)
                    host.left = host.left.minus(_needs(entry))
                    send(TaskQueue([entry]), lambda _, host=host: host)  # type: ignore[misc]
            send(queue, pick)
            if not self._save(queued=queue[0].task.job if queue else None):
                break
        self._freed.clear()
        self.stirred = False

    def next(self) -> tuple[Entry, Host] | None:
        """Return the oldest task that fits a node now, with that node; None: no task fits. This does not send the
        task.
        """
        heads = self._heads()
        first = heads[0] if heads else None
        if first is not self._first:
            self._first = first
            self._hold(None, None)
        for entry in heads:
            if (host := self._best(entry)) is not None:
                return entry, host
            self._barren.add(_lane_of(entry))
        # remember only the lanes (tasks with equal needs) that were just examined; for other lanes, or while a
        # broadcast claims seats, changes of nodes are not noted
        self._barren = set(map(_lane_of, () if self._placement.claims else heads))
        return None

    def _take(self, entry: Entry) -> None:
        """Remove from the line a task that `next` has returned, because it is now sent to its node."""
        key = _lane_of(entry)
        self._lanes[key].popleft()
        self._clear(key)
        if self._first is not None and entry is not self._first:
            self._first.overtaken += 1

    def _fits(self, entry: Entry, host: Host) -> bool:
        return self._placement.has_room(host, _needs(entry), first=entry is self._first)

    def _save(self, *, queued: JobId | None) -> bool:
        """Save a node for the first task in line, and keep a slot free for it, if the task needs that.

        Args:
            queued: the oldest of the tasks that need only a slot; None: there is no such task.

        Returns:
            Whether a node or a slot is no longer saved, so that other tasks may fit there.
        """
        saved = self._to_save()
        none_for, self._none_to_keep_for = self._none_to_keep_for, None
        kept = self._to_keep(saved, none_for) if self._first is not None and _before(self._first, queued) else None
        freed = (self._saved is not None and saved is not self._saved) or (
            self._kept is not None and kept is not self._kept
        )
        self._hold(saved, kept)
        return freed

    def too_large(self) -> list[Lane]:
        """Return the lanes (tasks with equal needs) that no present node can hold; lanes whose nodes are not ready yet
        are left out.
        """
        lanes: list[Lane] = []
        for needs, on in self._lanes:
            hosts = self._staying(on)
            if hosts and not any(needs.fits_in(host.has) for host in hosts) and self._living((needs, on)):
                lanes.append((needs, on))
        return lanes

    def why(self, lane: Lane) -> str:
        """Describe for people what each task of a lane (tasks with equal needs) needs, and what the nodes have."""
        return f"{lane[0]}, and the nodes have {describe(host.has for host in self._staying(lane[1]))}"

    def drop(self, lanes: Iterable[Lane]) -> list[Entry]:
        """Remove whole lanes (tasks with equal needs) from the line; return the tasks that waited in them."""
        dropped = [entry for key in lanes for entry in self._lanes.pop(key, ())]
        self._barren.intersection_update(self._lanes)
        if not self._lanes:  # with no task in the line, no node or slot needs to be saved
            self._first = self._none_to_keep_for = None
            self._hold(None, None)
        self.stirred = bool(self._lanes)
        return [entry for entry in dropped if entry.state == QUEUED]

    def lanes(self, ranks: Collection[int | None] | None = None) -> list[Lane]:
        """Return all lanes (tasks with equal needs); with ``ranks``, only those for one of these ranks (None: for any
        node).
        """
        return [key for key in self._lanes if ranks is None or key[1] in ranks]

    @property
    def ranks(self) -> set[int]:
        """Return the ranks that tasks in the line are bound to."""
        return {key[1] for key in self._lanes if key[1] is not None and self._living(key)}

    # --- nodes for a task -----------------------------------------------------------------------------------------

    def _hosts(self, on: int | None) -> Collection[Host]:
        hosts = self._placement.hosts
        if on is None:
            return hosts.values()
        node = self._roster.at(on)
        return () if node is None or node not in hosts else (hosts[node],)

    def _staying(self, on: int | None) -> list[Host]:
        """Return the possible hosts of a task that take new work; a node that is leaving begins no waiting task."""
        return [host for host in self._hosts(on) if host.open]

    def _places(self, entry: Entry | None) -> Collection[Host]:
        return () if entry is None else self._hosts(entry.task.on)

    def _best(self, entry: Entry) -> Host | None:
        """Return the least loaded node on which the task fits. A task that needs no accelerators prefers nodes with few
        of them.
        """
        needs, first, placement = _needs(entry), entry is self._first, self._placement
        places = self._places(entry)
        if entry.task.on is None and not placement.claims:
            if _lane_of(entry) in self._barren:
                places = self._freed.values()
            elif placement.alike:
                kept = () if self._kept is None else (self._kept,)
                lowest_first = chain(placement.with_slots(), kept)
                return next((host for host in lowest_first if placement.has_room(host, needs, first=first)), None)
        fitting = (host for host in places if placement.has_room(host, needs, first=first))
        return min(fitting, key=lambda host: (0 if needs.gpus else host.has.gpus, host.load), default=None)

    def _to_save(self) -> Host | None:
        if self._first is None or self._first.overtaken < OVERTAKES:
            return None
        needs, anywhere = _needs(self._first), self._first.task.on is None
        if anywhere and self._saved is not None and self._saved.open and needs.fits_in(self._saved.has):
            return self._saved
        could = [host for host in self._places(self._first) if host.open and needs.fits_in(host.has)]
        if self._saved in could:
            return self._saved
        return min(could, key=lambda host: needs.minus(host.left).share_of(host.has), default=None)

    def _to_keep(self, saved: Host | None, none_for: Amounts | None) -> Host | None:
        """Return a node on which the first task in line lacks only a free slot; prefer the node that already keeps a
        slot for it.

        ``none_for``: amounts that no node has free, unless a node in `_freed` has them.
        """
        assert self._first is not None
        needs, placement = _needs(self._first), self._placement

        def may_be(host: Host) -> bool:
            return host.open and placement.has_amounts(host, needs, first=True)

        places: Iterable[Host]
        if saved is not None or self._first.task.on is not None:
            places = self._places(self._first) if saved is None else (saved,)
        elif self._kept is not None and may_be(self._kept):
            return self._kept
        else:
            places = self._freed.values() if none_for == needs else placement.hosts.values()
        could = [host for host in places if may_be(host)]
        if not could and saved is None and self._first.task.on is None and not placement.claims:
            self._none_to_keep_for = needs
        return self._kept if self._kept in could else min(could, key=lambda host: host.load, default=None)

    def _hold(self, saved: Host | None, kept: Host | None) -> None:
        if saved is not self._saved:
            if self._saved is not None:
                self._saved.saved = False
                self._freed[self._saved.id] = self._saved
            if saved is not None:
                saved.saved = True
            self._saved = saved
        if kept is not self._kept:
            before, self._kept = self._kept, kept
            for host, keeps in ((before, 0), (kept, 1)):
                if host is not None:
                    host.keeps = keeps
                    self._freed[host.id] = host
                    self._placement.place(host)

    # --- lanes: tasks with equal needs ----------------------------------------------------------------------------

    def _heads(self) -> list[Entry]:
        """Return the oldest task of each lane (tasks with equal needs), the oldest first: of all lanes whose tasks are
        bound to a rank, but of only `LOOK` lanes whose tasks may run on any node.
        """
        for key in tuple(self._lanes):
            self._clear(key)
        anywhere = (lane[0] for (_, on), lane in self._lanes.items() if on is None)
        on_ranks = (lane[0] for (_, on), lane in self._lanes.items() if on is not None)
        return sorted((*nsmallest(LOOK, anywhere, key=_submitted), *on_ranks), key=_submitted)

    def _clear(self, key: Lane) -> None:
        """Remove ended tasks from the front of a lane (tasks with equal needs); remove the lane if it is then empty."""
        lane = self._lanes.get(key)
        while lane and lane[0].state != QUEUED:
            lane.popleft()
        if lane is not None and not lane:
            del self._lanes[key]
            self._barren.discard(key)

    def _living(self, key: Lane) -> bool:
        return any(entry.state == QUEUED for entry in self._lanes.get(key, ()))


def _needs(entry: Entry) -> Amounts:
    assert entry.task.needs is not None, "it is in line for them"
    return entry.task.needs


def _lane_of(entry: Entry) -> Lane:
    return _needs(entry), entry.task.on


def _submitted(entry: Entry) -> JobId:
    return entry.task.job


def _before(entry: Entry, job: JobId | None) -> bool:
    return job is None or entry.task.job < job
