"""Placement and work stealing: choose the node for the next attempt, and the attempts to take back. Pure.

The cost is O(1) per attempt, for any number of nodes. Nodes are grouped into levels by the number of attempts that they
hold; the next attempt goes to a node of the lowest level, to the node that was active last. A node holds as many
attempts as it has slots. If tasks are known to be short, a node also holds a stack: attempts beyond its slots, a
prefetch that hides the round trip. Unstarted attempts that wait behind a long task while slots are free elsewhere are
taken back (work stealing). A broadcast needs seats, one slot each on several nodes at the same time: while its claim
waits, the possible nodes keep one slot free. Only the first claim in line collects seats, so two claims never starve
each other. If seats also need amounts, the possible nodes keep these amounts free too. `waiting_line` holds the tasks
that need amounts.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import field
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from .amounts import NOTHING, Amounts
from .interfaces import AttemptId, JobId, NodeId

if TYPE_CHECKING:
    from .retries import Entry

FUNCTIONS_KEPT = 4096
# seconds; a stack (attempts beyond a node's slots) holds as many attempts per slot as finish in this time
STACK_S = 0.020
STACK_OF_SHORT = 255  # largest number of attempts in a stack
STALL_S = 0.020  # seconds; a node whose stack has made no progress for this time is running a long task
LONG_S = 1.0  # seconds; a stack without progress for this time counts as work for an additional node
STEALS = 8  # number of stacks examined per check
WEIGHT = 0.25  # weight of the newest duration in the average


@dataclass(slots=True)
class Function:
    average_s: float | None = None
    stack: int = 0  # number of its attempts that a node may hold beyond its slots

    def ran(self, busy_s: float, slots: int) -> None:
        average = self.average_s
        self.average_s = average = busy_s if average is None else average + WEIGHT * (busy_s - average)
        per_slot = int(STACK_S / average) if average > 0 else STACK_OF_SHORT
        self.stack = min(slots * per_slot, STACK_OF_SHORT)


class Functions(dict[bytes, Function]):
    """The functions of the tasks, by digest; when there are too many, the oldest entries are removed."""

    def new(self, digest: bytes) -> Function:
        if len(self) >= FUNCTIONS_KEPT:
            del self[next(iter(self))]
        self[digest] = function = Function()
        return function


@dataclass(slots=True, eq=False)
class Host:
    """A ready node, and the attempts, seats and amounts that it holds."""

    id: NodeId
    progress_at: float
    has: Amounts = NOTHING
    left: Amounts = NOTHING  # the part of the amounts that is free
    attempts: dict[AttemptId, Entry] = field(default_factory=dict)  # in the order they were sent
    seats: int = 0  # slots that belong to broadcasts
    seated: dict[JobId, Amounts] = field(default_factory=dict)  # amounts that broadcasts hold with their seats
    keeps: int = 0  # slots that are kept for the first task in line: 0 or 1
    saved: bool = False  # if True, only the first task in line may begin here, of the tasks with amounts
    slow: int = 0  # number of attempts behind which no other attempt may be stacked
    open: bool = True  # whether the node takes new work
    noticed: bool = False
    level: int = -1  # level of the host (see the module); -1: no level, as it takes no attempt now
    stacked: bool = False  # whether it holds more attempts than slots
    recalling: bool = False
    candidate: bool = False  # whether it may get a seat of the first claim
    free: bool = False  # whether it has a free seat for the first claim

    @property
    def load(self) -> int:
        return len(self.attempts) + self.seats


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A broadcast's request for seats on at least ``least`` nodes other than ``besides``, or on all (``every``).

    ``again``: the broadcast has begun before and may hold seats, so its claim goes before claims of new broadcasts.
    """

    job: JobId
    least: int
    most: int | None = None
    every: bool = False
    again: bool = False
    besides: frozenset[NodeId] = frozenset()
    needs: Amounts | None = None  # amounts on each node that the seat needs

    def wants(self, host: Host) -> bool:
        return host.id not in self.besides and (self.needs is None or self.needs.fits_in(host.has))


class WithdrawClaim(NamedTuple):
    """The end of a broadcast's request for further seats."""


class ReleaseSeat(NamedTuple):
    node: NodeId


class Placement:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.hosts: dict[NodeId, Host] = {}
        self.claims: list[Claim] = []
        self._levels: list[OrderedDict[NodeId, Host]] = [OrderedDict() for _ in range(slots + STACK_OF_SHORT)]
        self._lowest = 0
        self.stacked: OrderedDict[NodeId, Host] = OrderedDict()  # ordered by the last check, the oldest first
        self._next_steal = 0.0
        self._candidates = 0
        self._free: OrderedDict[NodeId, Host] = OrderedDict()
        self._gpus: Counter[int] = Counter()  # number of nodes for each number of accelerators

    @property
    def busy(self) -> int:
        """Return how many slots are in use or have no amounts left, including slots of closed nodes."""
        return sum(max(min(host.load, self.slots), self._shares(host)) for host in self.hosts.values())

    def _shares(self, host: Host) -> int:
        """Return the amounts that are held of a node, converted to a number of its slots."""
        held = host.has.minus(host.left)
        return ceil(self.slots * held.share_of(host.has)) if any(held) else 0

    def worth(self, needs: Amounts) -> float:
        """Return how many slots of a typical node a task with these amounts takes up."""
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
        """Put ``host`` into the group of hosts with its load (its level). Call this after every change to the host."""
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
        """Return the host for an attempt that may wait behind running ones, in a stack of up to ``stack`` attempts.

        Among the least loaded hosts, prefer the most recently active: its caches are warm (measured: saves 40 of
        290 us per call).
        """
        levels, level = self._levels, self._lowest
        top = self.slots + stack
        while level < top and not levels[level]:
            level += 1
        self._lowest = level
        return levels[level][next(reversed(levels[level]))] if level < top else None

    def takes(self, host: Host, stack: int) -> bool:
        return 0 <= host.level < self.slots + stack

    # --- amounts --------------------------------------------------------------------------------------------------

    @property
    def alike(self) -> bool:
        """Return whether all nodes have the same number of accelerators."""
        return sum(map(bool, self._gpus.values())) <= 1

    def with_slots(self) -> Iterator[Host]:
        """Yield the nodes with a free, unclaimed slot, the least loaded first, in the order of `pick`."""
        for level in self._levels[: self.slots]:
            yield from reversed(level.values())

    def has_room(self, host: Host, needs: Amounts, *, first: bool) -> bool:
        """Return whether a task with these amounts can begin on ``host`` now. ``first``: the task is first in line."""
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
        """Return the first claim if it lacks seats and too few of the remaining nodes could ever provide them."""
        claim = self.claims[0] if self.claims else None
        if claim is None or claim.needs is None or not claim.least:
            return None
        hosts = (host for host in self.hosts.values() if host.id not in claim.besides and host.open)
        others = [claim.needs.fits_in(host.has) for host in hosts]
        least = len(others) if claim.every else min(claim.least, len(others))  # more nodes may still become ready
        return claim if sum(others) < least else None

    # --- stacks ---------------------------------------------------------------------------------------------------

    def steal_at(self) -> float | None:
        """Return when to look for stalled stacks, if no task is queued; None: no stack exists, or no slot is free."""
        if not self.stacked or self.pick(0) is None:
            return None
        first = next(iter(self.stacked.values()))
        return max(first.progress_at + STALL_S, self._next_steal)

    def steal(self, now: float) -> list[tuple[NodeId, tuple[AttemptId, ...]]]:
        """Return the attempts to steal, by node: the newest half of each stalled stack."""
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
        """Return the attempts that have probably not started: a node works in order; attempts beyond its slots wait."""
        return tuple(host.attempts)[self.slots :]

    def stuck(self, now: float) -> Iterator[Entry]:
        """Yield the attempts that wait in stacks of which no attempt has started or ended for `LONG_S`."""
        for host in self.stacked.values():
            if now - host.progress_at >= LONG_S:
                yield from islice(host.attempts.values(), self.slots, None)

    # --- seats ----------------------------------------------------------------------------------------------------

    def at_once(self, claim: Claim) -> tuple[JobId, tuple[NodeId, ...]] | None:
        """Grant ``claim`` at once if no other claim waits and every node has a free slot; no node is placed again."""
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
        """Add ``claim`` to the line: first broadcasts that have begun before; then by the order of their jobs."""
        insort(self.claims, claim, key=_place_in_line)
        if self.claims[0] is claim:
            self._new_first()

    def withdraw(self, job: JobId) -> bool:
        """Remove the claim of ``job`` from the line; return False if it had none."""
        for claim in self.claims:
            if claim.job == job:
                was_first = self.claims[0] is claim
                self.claims.remove(claim)
                if was_first:
                    self._new_first()
                return True
        return False

    def grant(self) -> tuple[JobId, tuple[NodeId, ...]] | None:
        """Grant the first claim its seats once they are all free at the same time; call until it returns None."""
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
        """Return whether an open node has smaller amounts than ``claim`` needs: then the broadcast is refused."""
        if claim.needs is None:
            return False
        return any(host.open and host.id not in claim.besides and not claim.wants(host) for host in self.hosts.values())

    def unseat(self, node: NodeId, job: JobId) -> Host | None:
        """Free the seat of ``job`` on ``node`` and return its host, which the caller must place."""
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
        """Place every node again, because the first claim has changed. This happens per broadcast, not per task."""
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
