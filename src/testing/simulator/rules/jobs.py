"""The rules about tasks and broadcasts: SIM-1, 2, 3, 7, 8, 22 and 31.

A job settles when it ends with a result or an error. A broadcast may have a watcher that gets the ending of each rank.

SIM-1: a job settles exactly once. A watched rank ends at most once, and before its job settles.
SIM-2: a job settles with the outcome of one of its own attempts, on the node that the ending names. A broadcast settles
    with one outcome per rank: after a restart, all from its last generation; for a watched rank, the outcome that was
    reported. A timed-out attempt had run for at least its timeout. No attempt runs without its function and arguments.
SIM-3: a task runs again only after the loss of its node, at most ``retries`` times. At-most-once work begins at most
    once. Any other task fails because of lost nodes only if more than ``retries`` nodes were lost.
SIM-7: an attempt begins at most once, and never together with more tasks than its node has slots.
SIM-8: a task that crashes its machines crashes at most `QUARANTINE` machines in a row, even with more ``retries``.
SIM-22: a node's reports about attempts of other nodes have no effect.
SIM-31: a job is reported as stalled only when all its running attempts have run for ``stall_s`` seconds. A stalled job
    runs again at most ``retries`` times, and only with ``restart``. If a task's node is lost before the task runs
    again, the new run counts for the loss and not for the stall. A pool without events about tasks does not report why
    a task runs again; the rule then assumes the loss if the node is lost or has a preemption notice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ....actors import events as ev
from ....actors.interfaces import AttemptId, Ending, GaveUp, NodeId, OnLoss, Order, Reason, Settled, Verdict
from ....engine.serialization.payload import Received
from ....engine.serialization.stored_objects import StoredObject
from ....engine.wire.messages import Run
from ..kept_values import attempt_of
from ..machines import FORGED

if TYPE_CHECKING:
    from ..machines import Daemon, Host, Sim
    from ..scenario import Job

QUARANTINE = 4
OWN_DOING = "it "  # a retry's cause begins with this text if the attempt itself failed, and not its node
ROUNDING_S = 1e-6


class JobRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self.broken = sim.broken
        self.settled: set[int] = set()
        self.running: dict[int, Host] = {}  # attempt that runs in the simulated world -> its host
        self.running_on: defaultdict[Host, dict[int, None]] = defaultdict(dict)  # host -> its running attempts
        # job -> its running attempts, each with its host
        self.running_of: defaultdict[int, dict[int, Host]] = defaultdict(dict)
        self._sent_to: dict[int, NodeId] = {}
        self._latest: dict[int, int] = {}  # task -> its attempt that was sent last
        # job -> rank -> all attempts that began, in order
        self._begun: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
        self._how: dict[int, str] = {}  # attempt -> how it ended: "returned", "raised" or "stopped"
        self._began_at: dict[int, float] = {}
        self._ran_s: dict[int, float] = {}  # attempt -> seconds from its beginning to its end
        self._stalls: Counter[int] = Counter()  # job -> number of reruns because of a stall
        # task -> number of reruns in `_stalls` that turned out to be caused by the loss of a node
        self._lost_instead: Counter[int] = Counter()
        # task -> number of reruns in `_stalls` that may be caused by the loss of a node; used if no event has the cause
        self._maybe_lost_instead: Counter[int] = Counter()
        self._to_be_ended: set[int] = set()  # stalled tasks that will run again but have not been sent again yet
        self._stalled: set[int] = set()  # attempts that are repeated because of a stall
        # job -> number of machines that it crashed in a row, without machines that had a preemption notice
        self._poisoned: Counter[int] = Counter()
        self._tasks_on: Counter[int] = Counter()
        # job -> watcher of its ranks, for broadcasts that run at most once (as broadcasts of generators do)
        self._watches: dict[int, RankWatcher] = {}
        # nodes that were lost or have a preemption notice: their tasks may run again
        self._excused: set[NodeId] = set()
        self._lost: set[NodeId] = set()

    # --- start and end of attempts --------------------------------------------------------------------------------

    def ordered(self, node: NodeId, order: Order) -> None:
        self._sent_to[order.attempt] = node
        job = self._sim.jobs[order.task.job]
        if not job.ranks:
            self._assume_loss(job)
            self._latest[job.id] = order.attempt
        before = self._begun[job.id].get(order.rank, ())
        for attempt in before:
            where = self._sent_to[attempt]
            if where not in self._excused and attempt not in self._stalled and not self._fenced(job, attempt, order):
                self.broken("SIM-3", f"job {job.id} runs again, but node {where}, where it began, was not lost")
        if job.once and before:
            self.broken("SIM-3", f"job {job.id} is at-most-once, has begun, and is sent again")

    def delivered(self, daemon: Daemon, run: Run, known: Mapping[bytes, str | None]) -> None:
        if run.function not in known:
            self.broken("SIM-2", f"attempt {run.attempt} has no function on node {daemon.host.number}")
        if run.args.blob is not None and run.args.blob not in daemon.blobs:
            self.broken("SIM-2", f"attempt {run.attempt} has no arguments on node {daemon.host.number}")

    def began(self, host: Host, order: Order) -> None:
        attempt, job = order.attempt, self._sim.jobs[order.task.job]
        if attempt in self.running or attempt in self._how:
            self.broken("SIM-7", f"attempt {attempt} of job {job.id} begins a second time")
        self.running[attempt] = self.running_of[job.id][attempt] = host
        self.running_on[host][attempt] = None
        self._began_at[attempt] = self._sim.loop.now
        begun = self._begun[job.id].setdefault(order.rank, [])
        begun.append(attempt)
        if job.once and len(begun) > 1:
            self.broken("SIM-3", f"job {job.id} is at-most-once, and begins a second time")
        if not job.ranks:
            if len(begun) > job.retries + 1 + self._stalls[job.id] - self._lost_instead[job.id]:
                self.broken("SIM-3", f"job {job.id} begins {len(begun)} times, with {job.retries} retries")
            self._tasks_on[host.number] += 1
            if self._tasks_on[host.number] > self._sim.scenario.slots:
                self.broken("SIM-7", f"node {host.number} runs {self._tasks_on[host.number]} tasks at a time")

    def ended(self, host: Host, order: Order, how: str) -> None:
        del self.running[order.attempt], self.running_on[host][order.attempt]
        del self.running_of[order.task.job][order.attempt]
        self._how[order.attempt] = how
        self._ran_s[order.attempt] = self._sim.loop.now - self._began_at[order.attempt]
        if not self._sim.jobs[order.task.job].ranks:
            self._tasks_on[host.number] -= 1

    def stalled(self, event: ev.Stalled) -> None:
        """Check the report that a job has stalled. If the job restarts, its present attempts may be repeated."""
        job, now = self._sim.jobs[event.job], self._sim.loop.now
        running, began_at = self.running_of[job.id], self._began_at
        early = [each for each in running if job.stall_s is None or now - began_at[each] < job.stall_s]
        if early:
            self.broken("SIM-31", f"job {job.id} is told to have stalled, and attempts {early} have just begun")
        if event.restart:
            self._stalls[job.id] += 1
            if not job.ranks:
                self._to_be_ended.add(job.id)
            times = self._stalls[job.id] - self._lost_instead[job.id] - self._maybe_lost_instead[job.id]
            if times > job.retries or not job.stall_restarts:
                self.broken("SIM-31", f"job {job.id} is run again for its stall {times} times")
            for begun in self._begun[job.id].values():
                self._stalled.update(begun)

    def retried(self, event: ev.TaskRetried) -> None:
        """Count a task's rerun for the loss of its node instead of its stall, if the node was lost after the stall."""
        if event.job in self._to_be_ended:
            self._to_be_ended.discard(event.job)
            lost = NodeId(event.node) in self._lost or not event.cause.startswith(OWN_DOING)
            self._lost_instead[event.job] += lost

    def poisoned(self, host: Host, attempt: int) -> None:
        """Count the machine that this attempt has just crashed for the attempt's job."""
        job = self._sim.jobs[self._sim.orders[AttemptId(attempt)].task.job]
        if job.ranks:
            return  # SIM-8 is about single tasks; other rules cover broadcasts
        announced = self._sim.referee.nodes.is_noticed(host)
        self._poisoned[job.id] = 0 if announced else self._poisoned[job.id] + 1
        if self._poisoned[job.id] > QUARANTINE:
            self.broken("SIM-8", f"job {job.id} takes down the machine number {self._poisoned[job.id]} in a row")

    def has_begun(self, job: int) -> bool:
        """Return whether any attempt of the task has begun."""
        return 0 in self._begun[job]

    def excuse(self, node: NodeId) -> None:
        self._excused.add(node)

    def lost(self, node: NodeId) -> None:
        self._lost.add(node)
        self._excused.add(node)

    def _assume_loss(self, job: Job) -> None:
        """Record that a task is sent to a node.

        If the task is sent again after a stall, and its previous node is lost or has a preemption notice, the new run
        may count for the loss of the node. A pool with events about tasks reports the cause; `retried` handles it.
        """
        if job.id in self._to_be_ended and not self._sim.scenario.announce:
            self._to_be_ended.discard(job.id)
            self._maybe_lost_instead[job.id] += self._sent_to[self._latest[job.id]] in self._excused

    def _fenced(self, job: Job, attempt: int, order: Order) -> bool:
        """Return whether ``order`` replaces the attempt, because ``order`` belongs to a newer generation.

        A generation is a broadcast's run on a fixed set of nodes. A new one begins after a loss with
        ``OnLoss.RESTART``, or because the pool shrank.
        """
        world, before = order.world, self._sim.orders[AttemptId(attempt)].world
        if world is None or before is None or job.on_loss is OnLoss.FAIL:
            return False
        if job.on_loss is OnLoss.RESEND and world.size == before.size:
            return False
        return before.generation < world.generation

    # --- endings of jobs --------------------------------------------------------------------------------------------

    def settle(self, job: Job, ending: Ending) -> None:
        self._once(job)
        if isinstance(ending, Settled):
            self._own(job, ending, 0)
        elif ending.reason is Reason.LOST and ending.failure is not None and job.inputs:
            pass  # an input of the job is lost, which `KeptRules` checks
        elif ending.reason is Reason.LOST and not job.once and len(ending.losses) <= job.retries:
            lost = len(ending.losses)
            self.broken("SIM-3", f"job {job.id} is given up after {lost} lost nodes, with {job.retries} retries")

    def settle_all(self, job: Job, endings: Sequence[Ending], generation: int) -> None:
        self._once(job)
        self._as_reported(job, endings)
        for rank, ending in enumerate(endings):
            if ending.rank != rank:
                self.broken("SIM-2", f"job {job.id}: an ending of rank {ending.rank} where that of {rank} belongs")
            if isinstance(ending, GaveUp):
                continue
            order = self._own(job, ending, rank)
            if order is None or order.world is None or job.on_loss is not OnLoss.RESTART or job.once:
                continue
            if not ending.generation == order.world.generation == generation:
                story = f"job {job.id}: rank {rank} ends with generation {order.world.generation} of {generation}"
                self.broken("SIM-2", story)

    def watch(self, job: Job) -> RankWatcher:
        """Return a watcher that gets the endings of a broadcast's single ranks, as readers of generators do."""
        self._watches[job.id] = watcher = RankWatcher(self, job)
        return watcher

    def _as_reported(self, job: Job, endings: Sequence[Ending]) -> None:
        watcher = self._watches.get(job.id)
        if watcher is None or watcher.ranks is None:
            return
        if len(endings) != watcher.ranks:
            self.broken("SIM-2", f"job {job.id} began with {watcher.ranks} ranks, and {len(endings)} have an ending")
        for rank, reported in watcher.reported.items():
            if endings[rank] != reported:
                self.broken("SIM-2", f"job {job.id}: rank {rank} was told {reported}, and settles as {endings[rank]}")

    def _once(self, job: Job) -> None:
        if job.id in self.settled:
            self.broken("SIM-1", f"job {job.id} settles a second time")
        self.settled.add(job.id)
        self._sim.unsettled.discard(job.id)

    def _own(self, job: Job, ending: Settled, rank: int) -> Order | None:
        if isinstance(ending.outcome, Received) and ending.outcome.data == FORGED:
            self.broken("SIM-22", f"job {job.id}, rank {rank}, settles with what another node said: {ending}")
            return None
        attempt = _attempt_of(ending.outcome)
        order = self._sim.orders.get(AttemptId(attempt))
        if order is None or order.task.job != job.id or order.rank != rank:
            self.broken("SIM-2", f"job {job.id}, rank {rank}, settles with attempt {attempt} of another: {ending}")
            return None
        if self._sent_to[attempt] != ending.node or order.number != ending.number:
            self.broken("SIM-2", f"job {job.id} says its result came from elsewhere: {ending}")
        if ending.verdict is Verdict.TIMED_OUT:
            self._time_was_over(job, attempt)
            return order
        how = {Verdict.RETURNED: "returned", Verdict.RAISED: "raised"}.get(ending.verdict, "stopped")
        if self._how.get(attempt, "stopped") != how:  # an attempt without an entry was killed before it began
            self.broken("SIM-2", f"job {job.id} settles as {ending.verdict}, but it {self._how.get(attempt)}")
        return order

    def _time_was_over(self, job: Job, attempt: int) -> None:
        """Check that a timed-out attempt ran for at least its timeout.

        It may have returned before it could be killed.
        """
        ran_s = self._ran_s.get(attempt, 0.0)
        if job.timeout_s is None or ran_s < job.timeout_s - ROUNDING_S:
            self.broken("SIM-2", f"job {job.id} settles as timed out after {ran_s:g} s of {job.timeout_s}")


class RankWatcher:
    """An `actors.interfaces.RankWatch` that records the endings of a broadcast's ranks, and checks their order."""

    def __init__(self, rules: JobRules, job: Job) -> None:
        self._rules, self._job = rules, job
        self.ranks: int | None = None
        self.reported: dict[int, Ending] = {}

    def began(self, ranks: int, /) -> None:
        if self.ranks is not None or self._job.id in self._rules.settled:
            self._rules.broken("SIM-1", f"job {self._job.id} begins when it has begun, or ended, before")
        self.ranks = ranks

    def ended(self, rank: int, ending: Ending, /) -> None:
        if rank in self.reported or self.ranks is None or self._job.id in self._rules.settled:
            self._rules.broken("SIM-1", f"job {self._job.id}: rank {rank} ends when it has ended, or not begun, before")
        self.reported[rank] = ending


def _attempt_of(outcome: object) -> int:
    if isinstance(outcome, Received) and (data := bytes(outcome.data)).startswith(b"result-"):
        return int(data.removeprefix(b"result-"))
    if isinstance(outcome, Received | StoredObject):
        return attempt_of(outcome)
    message = outcome[0] if type(outcome) is tuple else outcome
    return int(getattr(message, "attempt", 0))
