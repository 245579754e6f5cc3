"""The ledger of all tasks that have not ended, and of the node of each task: a decider; each event carries its time.

Each event is a method of `Ledger`; its decisions accumulate in ``decisions`` until the caller has carried them out.
`placement` decides where an attempt (one try to run a task) fits and which attempts to take back; an `Entry` of
`entries` decides whether a task runs again. This module tracks the state of each task: queued, leased to a node, queued
again, ended. `Queues` holds the waiting tasks, `Expiries` the times at which they have waited for too long, and
`backlog` computes how many more slots and nodes they can use.

LEDGER-1: a task ends exactly once.
LEDGER-2: a task that has not ended is either queued or leased to one node: no task is forgotten.
LEDGER-3: a node holds at most as many attempts as it has slots, plus attempts of functions that are known to be short,
    sent in advance (prefetched); a seat, which is kept for a rank of a broadcast, takes a slot.
LEDGER-4: an at-most-once task is never sent again, except when its node reports that the task had not begun.
LEDGER-5: a task that may have run is lost with its node at most ``1 + retries`` times, and at most ``quarantine_after``
    times in a row without a notice before the loss.
LEDGER-6: an attempt id is used once. A node's report changes nothing if the attempt is over or was given to another
    node. A task is taken back only after a recall.
LEDGER-7: no slot is free while a task that may use it is queued, unless a broadcast collects seats, or the slot is kept
    for a task that needs amounts of processors, memory or accelerators.
LEDGER-8: tasks start in the order of their submission; tasks that come back go to the front of the queue, in that
    order. Tasks that need amounts start in the order of LEDGER-17.
LEDGER-9: a closed node (one with a notice, or one that is drained) gets no new attempts.
LEDGER-10: the ledger assumes that a node holds exactly the attempts that were sent to it and not reported back.
LEDGER-11: no task waits in the queue beyond its ``queue_timeout_s``.
LEDGER-12: broadcasts get their seats in the order in which they were submitted; broadcasts that run again come first.
LEDGER-13: a task that fails by itself (not by its timeout and not killed by the pool) is sent again at most
    ``max_restarts`` times.
LEDGER-14: no task waits for a rank that the pool will never have.
LEDGER-15: tasks that an additional node could run count as waiting: tasks in the queue, and tasks prefetched to a node.
LEDGER-16: the amounts that attempts and seats hold of a node never exceed the node's own amounts.
LEDGER-17: among tasks that need amounts, the first in line is overtaken at most `OVERTAKES` times if some node could
    hold it; after that, none of the other tasks begins on the node that is saved for the first.
LEDGER-18: no task with amounts, among the first `LOOK` kinds, waits while a node has room that is neither saved nor
    claimed.
LEDGER-19: a task for any node that needs only a slot begins where most of its inputs are, if a slot is free there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from heapq import heapify, heappop, heappush
from itertools import count, islice
from sys import maxsize

from ..lazy_dataclass import dataclass
from .amounts import NOTHING, Amounts
from .entries import FAILURES, FEW, LEASED, OVER, QUEUED, Entry, Functions, Host, TaskQueue
from .interfaces import (
    AttemptId,
    Ending,
    Finished,
    GaveUp,
    JobId,
    NodeId,
    Order,
    Reason,
    Report,
    Returned,
    Settle,
    Settled,
    Started,
    Task,
    Verdict,
)
from .membership import Roster
from .placement import Claim, Lane, Placement, WaitingLine


@dataclass(slots=True)
class Decisions:
    """The decisions that are due now. The caller carries them out and empties these lists."""

    runs: list[tuple[NodeId, Order]] = field(default_factory=list)
    # the float: seconds that the task ran
    endings: deque[tuple[Task, Settle, Ending, float]] = field(default_factory=deque)
    kills: list[tuple[NodeId, AttemptId]] = field(default_factory=list)
    recalls: list[tuple[NodeId, tuple[AttemptId, ...]]] = field(default_factory=list)
    # (task, node of the attempt that ended, number of that attempt, cause)
    retries: list[tuple[Task, NodeId, int, str]] = field(default_factory=list)
    # each broadcast that was granted its seats (slots for its ranks), and the nodes on which they are
    seats: list[tuple[JobId, tuple[NodeId, ...]]] = field(default_factory=list)
    # nodes that get no new work and hold no attempts any more; a node may be listed repeatedly
    emptied: list[NodeId] = field(default_factory=list)


# number of waiting tasks whose needs are examined; the needs of all waiting tasks are extrapolated from them
SAMPLE = 1000


def backlog(
    queue: deque[Entry],
    pinned: Mapping[int, deque[Entry]],
    line: WaitingLine,
    placement: Placement,
    *,
    worth_s: float,
    now: float,
) -> tuple[int, float, int]:
    """Return the number of tasks for any node, the number of slots that they can use, and the number of awaited ranks.

    A task of a function that takes less than ``worth_s`` counts as a fraction of a slot. A task that needs amounts of
    processors or memory counts as all the slots that become useless on its node, because too little is left for further
    tasks.
    """
    while queue and queue[0].state != QUEUED:
        queue.popleft()
    ranks = [rank for rank, entries in pinned.items() if any(entry.state == QUEUED for entry in entries)]
    in_line = Counter(entry.task.needs or NOTHING for entry in line.entries if entry.task.on is None)
    tasks, slots = in_line.total(), sum((placement.worth(needs) * count for needs, count in in_line.items()), 0.0)
    stuck = [entry for entry in placement.stuck(now) if entry.state == LEASED and entry.task.on is None]
    for waiting in (queue, stuck):
        sample = [entry for entry in islice(waiting, SAMPLE) if entry.state != OVER]
        share = len(waiting) / max(1, min(len(waiting), SAMPLE))
        times = [entry.function.average_s for entry in sample]
        tasks += round(len(times) * share)
        slots += share * sum(1.0 if time is None else min(1.0, time / worth_s) for time in times)
    return tasks, slots, max((*ranks, *line.ranks), default=-1) + 1


class Queues:
    def __init__(self, line: WaitingLine) -> None:
        self.anywhere = TaskQueue()
        self.pinned: dict[int, TaskQueue] = {}  # tasks that are bound to a rank (``on=``), by rank
        # tasks that need amounts of processors, memory or accelerators, including those that are also bound to a rank
        self.line = line
        self.ranks = maxsize  # number of ranks (ready nodes) that the pool is to have

    def has_place_for(self, task: Task) -> bool:
        """Return whether the pool is to have the rank that the task is bound to; True for a task without a rank."""
        return task.on is None or task.on < self.ranks

    def add(self, entry: Entry) -> None:
        if entry.task.needs is not None:
            self.line.add(entry)
        elif entry.task.on is None:
            self.anywhere.append(entry)
        else:
            self.pinned.setdefault(entry.task.on, TaskQueue()).append(entry)

    def put_back(self, entry: Entry) -> None:
        """Queue a task whose attempt was lost or taken back, in front of the tasks that have not begun."""
        if entry.task.needs is not None:
            self.line.add(entry)
        elif entry.task.on is None:
            self.anywhere.appendleft(entry)
        else:
            self.pinned.setdefault(entry.task.on, TaskQueue()).appendleft(entry)

    def ended(self, entry: Entry) -> None:
        """Handle the end of a task that waits in one of the queues."""
        task = entry.task
        if task.needs is not None:
            self.line.ended(entry)
        elif queue := self.anywhere if task.on is None else self.pinned.get(task.on):
            queue.ended()

    def missed(self, ranks: int) -> list[int]:
        """Return the ranks >= ``ranks`` for which tasks wait. If ``ranks`` is 0, tasks for any node count as waiting
        for rank 0.
        """
        if ranks and not self.pinned and not self.line:
            return []
        missed = {rank for rank in (*self.pinned, *self.line.ranks) if rank >= ranks}
        return sorted(missed | {0} if (self.anywhere or self.line) and not ranks else missed)

    def take(self, rank: int) -> list[Entry]:
        """Remove and return the tasks that wait for ``rank``; for rank 0, also the tasks that wait for any node."""
        waiting = [*self.pinned.pop(rank, ()), *self.line.drop(self.line.lanes({rank} if rank else {0, None}))]
        if rank == 0:
            waiting += self.anywhere
            self.anywhere.clear()
        return [entry for entry in waiting if entry.state == QUEUED]

    def clear(self) -> None:
        self.anywhere.clear()
        self.pinned.clear()
        self.line.drop(self.line.lanes())


class Expiries:
    """A heap of the times at which queued tasks time out. An entry is valid only if its time is the task's
    ``expires_at``.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._ties = count()
        self._forgotten = 0  # upper limit of the number of obsolete heap entries

    def add(self, entry: Entry, at: float) -> None:
        entry.expires_at = at
        heappush(self._heap, (at, next(self._ties), entry))

    def ended(self, entry: Entry) -> None:
        """Forget the time of ``entry``, whose wait in the queue is over. Many obsolete heap entries are removed in one
        pass.
        """
        if entry.expires_at is None:
            return
        entry.expires_at = None
        self._forgotten += 1
        if self._forgotten > FEW and 2 * self._forgotten > len(self._heap):
            self._heap = [each for each in self._heap if each[2].expires_at == each[0]]
            heapify(self._heap)
            self._forgotten = 0

    def first_at(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2].expires_at != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float) -> list[Entry]:
        over = list[Entry]()
        while self._heap and self._heap[0][0] <= now:
            at, _, entry = heappop(self._heap)
            if entry.expires_at == at:
                over.append(entry)
        return over


CANCELLED = GaveUp(Reason.CANCELLED)


class Ledger:
    def __init__(
        self,
        roster: Roster,
        *,
        slots: int,
        attempts: Iterator[int],
        quarantine_after: int = 4,
    ) -> None:
        self.decisions = Decisions()
        self.placement = Placement(slots)
        self._roster = roster
        self._attempts = attempts
        self.announce = False  # whether nodes are to report when each attempt begins
        self._quarantine_after = quarantine_after
        self._entries: dict[JobId, Entry] = {}
        self.line = WaitingLine(self.placement, roster)
        self._queues = Queues(self.line)
        self._queue, self._pinned = self._queues.anywhere, self._queues.pinned
        # tasks whose attempts failed, to be queued again when the whole batch of reports is handled
        self._again: list[Entry] = []
        self._functions = Functions()
        self._expiries = Expiries()

    # --- events of tasks ------------------------------------------------------------------------------------------

    def submit(self, task: Task, settle: Settle, now: float) -> None:
        function = self._functions.get(task.function) or self._functions.new(task.function)
        entry = Entry(task, settle, function, task.retries > 0)
        self._entries[task.job] = entry
        if task.queue_timeout_s is not None:
            self._expire_later(entry, now)
        if task.needs is None and task.on is None:
            self._queue.append(entry)
            self._assign(now)
        elif not self._queues.has_place_for(task):
            self._end(entry, GaveUp(Reason.NO_SUCH_RANK))
        else:
            self._queues.add(entry)
            if task.needs is not None:
                self._assign(now)
            elif task.on is not None:
                self._assign_pinned(task.on, now)

    def received(self, node: NodeId, reports: Sequence[Report], now: float) -> list[Report]:
        """Handle one batch of a node's reports; return the reports that are not about a task of this ledger."""
        host = self.placement.hosts.get(node)
        if host is None:
            return list(reports)
        others: list[Report] = []
        for report in reports:
            kind = type(report)
            if kind is Finished:
                if not self._finished(host, report, now):  # type: ignore[arg-type]
                    others.append(report)
            elif kind is Started:
                if not self._started(host, report.attempt):  # type: ignore[union-attr]
                    others.append(report)
            elif kind is Returned:
                self._returned(host, report.attempts, now)  # type: ignore[union-attr]
            else:
                others.append(report)
        if self._again:
            again, self._again = self._again, []
            self._requeue(again, now)
        if len(others) < len(reports):
            self._changed(host, now)
        return others

    def cancel(self, job: JobId, now: float = 0.0, ending: GaveUp = CANCELLED) -> bool:
        if (entry := self._entries.get(job)) is None:
            return False
        self._give_up(entry, ending)
        if self.line.stirred:  # the cancelled task may have had a node or a slot saved for it
            self._assign(now)
        return True

    def close(self) -> None:
        """End every task. Kill no attempt: the pool abandons its nodes anyway."""
        for entry in list(self._entries.values()):
            self._end(entry, GaveUp(Reason.CLOSED, entry.losses))
        self._queues.clear()

    def missed(self, ranks: int) -> list[int]:
        """Return the ranks >= ``ranks`` for which tasks wait. If ``ranks`` is 0, tasks for any node count as waiting
        for rank 0.
        """
        return self._queues.missed(ranks)

    def strand(self, rank: int, reason: Reason = Reason.NO_REPLACEMENT, *, failure: Exception | None = None) -> None:
        """End the tasks that wait for ``rank``, as no node will get this rank; for rank 0, also the tasks that wait for
        any node.
        """
        for entry in self._queues.take(rank):
            self._end(entry, GaveUp(reason, entry.losses, failure=failure))

    def refuse(self, lane: Lane, now: float) -> None:
        """End the tasks of a lane (tasks in line with the same needs), as no node of the pool can ever hold them."""
        why = self.line.why(lane)
        for entry in self.line.drop([lane]):
            self._end(entry, GaveUp(Reason.TOO_LARGE, entry.losses, why=why))
        self._assign(now)

    def limit(self, ranks: int) -> None:
        """Set how many ranks the pool is to have; end the tasks that wait for a higher rank."""
        self._queues.ranks = ranks
        for rank in self.missed(ranks):
            self.strand(rank, Reason.NO_SUCH_RANK)

    # --- events of nodes ------------------------------------------------------------------------------------------

    def node_ready(self, node: NodeId, now: float, has: Amounts = NOTHING) -> None:
        """Let ``node`` take work, for the first time or again. ``has``: the node's processors, memory and accelerators,
        which are read only the first time.
        """
        host = self.placement.hosts.get(node)
        if host is None:
            host = self.placement.add(node, now, has)
        else:
            host.open = True
            host.noticed = False
        self._changed(host, now)
        self._membership_changed(now)

    def node_closed(self, node: NodeId, now: float, *, noticed: bool = False, recall: bool = True) -> None:
        """Send the node no new work; recall attempts that have not started. ``noticed``: the node has a preemption
        notice, so the end of its machine may kill its tasks.
        """
        host = self.placement.hosts.get(node)
        if host is None:
            return
        host.open = False
        host.noticed = noticed
        self._requeue(self._take_back_unsent(host), now)
        unstarted = self.placement.unstarted(host) if recall and not host.recalling else ()
        if unstarted:
            self._recall(node, unstarted)
            host.recalling = True
        self._changed(host, now)
        self._membership_changed(now)

    def node_lost(self, node: NodeId, cause: str, now: float, *, announced: bool = False) -> None:
        """Handle the loss of ``node``. ``announced``: a preemption notice came before the loss, so no task is blamed
        for it.
        """
        host = self.placement.remove(node)
        if host is None:
            return
        unsent, again = self._take_back_unsent(host), list[Entry]()
        for position, entry in enumerate(host.attempts.values()):
            if entry.state == OVER:
                continue
            ran = position < self.placement.slots or entry.began or entry.task.at_most_once
            if self._survives(entry, node, cause, ran=ran, announced=announced):
                again.append(entry)
        host.attempts.clear()
        self._requeue([*again, *unsent], now)
        self.line.stir()
        self._membership_changed(now)
        self._assign(now)

    def _take_back_unsent(self, host: Host) -> list[Entry]:
        """Take back the orders to ``host`` that are decided but not sent yet; none has begun, and other nodes will get
        all of them.

        Later orders to other nodes are taken back too: their tasks must not overtake the tasks of ``host``.
        """
        runs, again = self.decisions.runs, list[Entry]()
        first = next((position for position, (to, _) in enumerate(runs) if to == host.id), len(runs))
        self.decisions.runs = runs[:first]
        for to, order in runs[first:]:
            holder = host if to == host.id else self.placement.hosts[to]
            if holder is not host and holder.attempts[order.attempt].state == OVER:
                # the task is over, and the order will be followed by the kill of its attempt: keep the order
                self.decisions.runs.append((to, order))
                continue
            again += self._take_back(holder, order.attempt)
            if holder is not host:
                self.placement.place(holder)
        return again

    def _take_back(self, host: Host, attempt: AttemptId) -> list[Entry]:
        """Remove an attempt that has not begun from ``host``; return a list with its task, or [] if the task has
        ended.
        """
        entry = host.attempts.pop(attempt)
        host.slow -= entry.slow
        self._give_back(host, entry)
        self.line.stir(host)
        if entry.state != LEASED:
            return []
        entry.number -= 1
        return [entry]

    def _survives(self, entry: Entry, node: NodeId, cause: str, *, ran: bool, announced: bool) -> bool:
        ending = entry.node_lost(node, cause, ran=ran, announced=announced, quarantine_after=self._quarantine_after)
        if ending is not None:
            self._end(entry, ending)
            return False
        self.decisions.retries.append((entry.task, node, entry.number, cause))
        return True

    # --- seats of broadcasts --------------------------------------------------------------------------------------

    def claim(self, claim: Claim, now: float) -> None:
        granted = self.placement.at_once(claim)
        if granted is not None:
            self.decisions.seats.append(granted)
            return
        self.placement.claim(claim)
        self._assign(now)

    def withdraw(self, job: JobId, now: float) -> None:
        """Remove the claim of ``job``; free the seats that it was granted, if the broadcast was not told of them
        yet.
        """
        if not self.placement.withdraw(job) and not self.decisions.seats:
            return
        grants, self.decisions.seats = self.decisions.seats, []
        for of, nodes in grants:
            if of != job:
                self.decisions.seats.append((of, nodes))
                continue
            for node in nodes:
                if (host := self.placement.unseat(node, job)) is not None:
                    self._place(host)
        self.line.stir()
        self._membership_changed(now)
        self._assign(now)

    def unseat(self, node: NodeId, job: JobId, now: float) -> None:
        if (host := self.placement.unseat(node, job)) is not None:
            # the host has worked for the broadcast until now; the ledger gets no reports of this work
            host.progress_at = now
            self._changed(host, now)

    # --- timers ---------------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """Return the time at which ``tick`` must be called if no other event comes before."""
        expires_at = self._expiries.first_at()
        if self._queue or not self.placement.stacked or (steal_at := self.placement.steal_at()) is None:
            return expires_at
        return steal_at if expires_at is None else min(expires_at, steal_at)

    def tick(self, now: float) -> None:
        for entry in self._expiries.take(now):
            self._give_up(entry, GaveUp(Reason.QUEUE_TIMEOUT))
        if self.line.stirred:
            self._assign(now)
        if not self._queue:
            for node, attempts in self.placement.steal(now):
                self._recall(node, attempts)

    # --- queries of the state -------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return sum(entry.state == QUEUED for entry in self._entries.values())

    @property
    def leased(self) -> int:
        """Return the number of attempts that nodes hold, including attempts that are being killed."""
        return sum(len(host.attempts) for host in self.placement.hosts.values())

    def backlog(self, worth_s: float, now: float) -> tuple[int, float, int]:
        """Return the amount of waiting work, as the function `backlog` of this module describes."""
        return backlog(self._queue, self._pinned, self.line, self.placement, worth_s=worth_s, now=now)

    def load(self, node: NodeId) -> int:
        host = self.placement.hosts.get(node)
        return 0 if host is None else host.load

    def of_job(self, job: JobId) -> Entry | None:
        return self._entries.get(job)

    def entry(self, node: NodeId, attempt: AttemptId) -> Entry | None:
        host = self.placement.hosts.get(node)
        return None if host is None else host.attempts.get(attempt)

    # --- attempts that end, or that a node gives back -------------------------------------------------------------

    def _finished(self, host: Host, report: Finished, now: float) -> bool:
        attempt, verdict, outcome, busy_s = report
        entry = host.attempts.pop(attempt, None)
        if entry is None:
            return False
        host.slow -= entry.slow
        if entry.task.needs is not None:
            self._give_back(host, entry)
        host.progress_at = now
        if entry.state != LEASED:
            return True
        if verdict is Verdict.RETURNED or not self._failed(entry, host, verdict):
            if verdict is Verdict.RETURNED:
                entry.function.ran(busy_s, self.placement.slots)
            entry.state = OVER
            entry.expires_at = None
            task = entry.task
            del self._entries[task.job]
            self.decisions.endings.append(
                (task, entry.settle, Settled(verdict, outcome, host.id, 0, entry.number, 0), busy_s)
            )
        return True

    def _failed(self, entry: Entry, host: Host, verdict: Verdict) -> bool:
        """Handle a failed attempt; return False if the task does not run again and the caller must end it with this
        failure.
        """
        if verdict is Verdict.TERMINATED and host.noticed:
            cause = "its processes ended after the machine's notice"
            if self._survives(entry, host.id, cause, ran=True, announced=True):
                self._again.append(entry)
            return True
        if not entry.failed(verdict):
            return False
        self.decisions.retries.append((entry.task, host.id, entry.number, f"it {FAILURES.get(verdict, 'stalled')}"))
        self._again.append(entry)
        return True

    def _give_back(self, host: Host, entry: Entry) -> None:
        if entry.task.needs is not None:
            host.left = host.left.plus(entry.task.needs)
            self.line.stir(host)

    def _started(self, host: Host, attempt: AttemptId) -> bool:
        if (entry := host.attempts.get(attempt)) is None:
            return False
        entry.began = True
        self._expiries.ended(entry)
        return True

    def _returned(self, host: Host, attempts: Sequence[AttemptId], now: float) -> None:
        host.recalling = False
        again: list[Entry] = []
        for attempt in attempts:
            entry = host.attempts.get(attempt)
            if entry is not None and entry.recalled:
                again += self._take_back(host, attempt)
        self.placement.place(host)
        self._requeue(again, now)

    def _recall(self, node: NodeId, attempts: tuple[AttemptId, ...]) -> None:
        held = self.placement.hosts[node].attempts
        for attempt in attempts:
            held[attempt].recalled = True
        self.decisions.recalls.append((node, attempts))

    # --- queues of waiting tasks ----------------------------------------------------------------------------------

    def _assign(self, now: float) -> None:
        placement = self.placement
        while placement.claims and (granted := placement.grant()) is not None:
            self.decisions.seats.append(granted)
            self.line.stir()
        if self.line.stirred:
            self.line.assign(self._queue, lambda queue, pick: self._send_from(queue, pick, now))
        elif self._queue:
            self._send_from(self._queue, placement.pick, now)

    def _assign_pinned(self, rank: int, now: float) -> None:
        if (queue := self._pinned.get(rank)) is None:
            return
        node = self._roster.at(rank)
        host = None if node is None else self.placement.hosts.get(node)
        self._send_from(queue, lambda stack: host if host and self.placement.takes(host, stack) else None, now)
        if not queue:
            del self._pinned[rank]

    def _send_from(self, queue: TaskQueue, pick: Callable[[int], Host | None], now: float) -> None:
        while queue:
            entry = queue[0]
            if entry.state != QUEUED:
                queue.popleft()
                continue
            stack = entry.function.stack if entry.stacks else 0
            host = pick(stack)
            if host is None:
                return
            if entry.task.near is not None:
                host = self._near(entry.task) or host
            queue.popleft()
            attempt = AttemptId(next(self._attempts))
            entry.number += 1
            entry.state = LEASED
            entry.host = host
            entry.attempt = attempt
            entry.began = entry.recalled = False
            entry.slow = stack <= 0
            host.slow += entry.slow
            if not host.attempts:
                host.progress_at = max(host.progress_at, now)
            host.attempts[attempt] = entry
            self.placement.place(host)
            task = entry.task
            announce = self.announce or task.queue_timeout_s is not None or task.has_deadline
            self.decisions.runs.append((host.id, Order(attempt, task, entry.number, None, 0, announce)))

    def _near(self, task: Task) -> Host | None:
        """Return the host that has most of the task's inputs, if the host has a free slot; None: take any host."""
        if task.on is not None or task.needs is not None or task.near is None or (node := task.near()) is None:
            return None
        host = self.placement.hosts.get(node)
        return host if host is not None and self.placement.takes(host, 0) else None

    def _changed(self, host: Host, now: float) -> None:
        self._place(host)
        self.line.stir(host)
        if self._pinned and (rank := self._roster.rank(host.id)) is not None:
            self._assign_pinned(rank, now)
        self._assign(now)

    def _place(self, host: Host) -> None:
        self.placement.place(host)
        if not host.open and not host.load:
            self.decisions.emptied.append(host.id)

    def _membership_changed(self, now: float) -> None:
        for rank in tuple(self._pinned):
            self._assign_pinned(rank, now)

    def _requeue(self, entries: list[Entry], now: float) -> None:
        for entry in reversed(entries):
            entry.state = QUEUED
            entry.host = entry.attempt = None
            if entry.task.queue_timeout_s is not None and entry.expires_at is None:
                self._expire_later(entry, now)
            if self._queues.has_place_for(entry.task):
                self._queues.put_back(entry)
            else:
                self._end(entry, GaveUp(Reason.NO_SUCH_RANK, entry.losses))
        for entry in entries:
            if entry.task.on is not None:  # another node may have the rank that this task is bound to
                self._assign_pinned(entry.task.on, now)

    def _expire_later(self, entry: Entry, now: float) -> None:
        """Limit a task's time in the queue to ``queue_timeout_s`` from now. (A task that comes back after a recall
        keeps its old limit.)
        """
        self._expiries.add(entry, now + (entry.task.queue_timeout_s or 0.0))

    # --- endings of tasks -----------------------------------------------------------------------------------------

    def _give_up(self, entry: Entry, ending: GaveUp) -> None:
        if entry.state == LEASED and entry.host is not None and entry.attempt is not None:
            self.decisions.kills.append((entry.host.id, entry.attempt))
        self._end(entry, replace(ending, losses=entry.losses))

    def _end(self, entry: Entry, ending: GaveUp) -> None:
        queued, entry.state, task = entry.state == QUEUED, OVER, entry.task
        if queued:
            self._queues.ended(entry)
        self._expiries.ended(entry)
        del self._entries[task.job]
        self.decisions.endings.append((task, entry.settle, ending, 0.0))
