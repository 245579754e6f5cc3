"""Placement and work stealing: choose the node for the next attempt, and the attempts to take back. Pure.

The cost is O(1) per attempt, for any number of nodes. The nodes that hold the same number of attempts form a group,
called level; the next attempt goes to the lowest level, there to the node that was active last. A node holds as many
attempts as it has slots. If tasks are known to be short, a node also holds a stack: attempts beyond its slots, sent in
advance to hide the time of a round trip. If such attempts wait behind a long task while slots are free elsewhere, some
are taken back (work stealing).

A broadcast needs seats: one slot each on several nodes at the same time. While the broadcast's claim waits, each node
that may get a seat keeps one slot free, and also the amounts that the seat needs. Only the first claim in line collects
seats, so two claims never block each other. `waiting_line` holds the tasks that need amounts.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice
from math import ceil

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from .amounts import NOTHING, Amounts
from .interfaces import AttemptId, JobId, NodeId
from .retries import STACK_OF_SHORT, Entry, Host

# seconds; if no attempt on a node with waiting attempts started or ended for this time, the node runs a long task
STALL_S = 0.020
LONG_S = 1.0  # seconds; attempts that wait behind a long task for this time count as work for an additional node
STEALS = 8  # number of nodes examined per check for attempts to take back


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A broadcast's request for seats on at least ``least`` nodes other than ``besides``, or (``every``) on all such
    nodes.

    ``again``: the broadcast has begun before and may hold seats, so its claim goes before claims of new broadcasts.
    """

    job: JobId
    least: int
    most: int | None = None
    every: bool = False
    again: bool = False
    besides: frozenset[NodeId] = frozenset()
    needs: Amounts | None = None  # amounts that each seat reserves on its node

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
        """Return how many slots are in use, or unusable because their node's amounts are all in use, including slots of
        closed nodes.
        """
        return sum(max(min(host.load, self.slots), self._shares(host)) for host in self.hosts.values())

    def _shares(self, host: Host) -> int:
        """Return the amounts that are in use on a node, converted to a number of its slots."""
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
        """Return the first claim if it lacks seats and so many nodes have too small amounts that it can never get
        them.
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
