"""A model of one executor's workers, which holds the scheduler to its invariants in `test_worker_scheduler_machine`."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from outrider.engine.node.slots import PAUSE_S, STALL_S, TRIES
from outrider.engine.node.worker_scheduler import (
    Answer,
    Deliver,
    EndWorker,
    Fork,
    GiveUp,
    Interrupt,
    Relay,
    Steal,
    WorkerScheduler,
)
from outrider.engine.wire.messages import Cause, Ended, Returned, Run, RunFlag, Started, Value

BESIDE = RunFlag.FRESH | RunFlag.BESIDE
UNSHARED = RunFlag.STREAM | RunFlag.ALONE | RunFlag.FRESH


class ModelWorker:
    def __init__(self, fork: Fork, threads: int) -> None:
        self.fork = fork
        self.threads = 1 if fork.fresh else threads
        self.unread: deque[Run] = deque()
        self.running: list[Run] = []
        self.unheard: list[Run] = []  # results on their way
        self.delivered = 0
        self.delivered_at = 0.0
        self.ready = self.took = self.beside = False
        self.dead = False  # its death is on its way too
        self.told_to_end = False

    def outstanding(self) -> list[Run]:
        return [*self.unread, *self.running, *self.unheard]


class ExecutorMachine(RuleBasedStateMachine):
    """Workers read, answer and die whenever they like; the client submits, kills and recalls."""

    checked: str | None = None  # only this invariant, to prove that it can fail

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = WorkerScheduler()
        self.now = 1000.0
        self.workers: dict[int, ModelWorker] = {}
        self.runs: dict[int, Run] = {}
        self.answers: Counter[int] = Counter()
        self.starts: Counter[int] = Counter()
        self.slots = 0
        self.threads = False
        self.broken = False
        self.barren = False  # whoever is forked dies before it is ready
        self.gave_up = False
        self.late: set[int] = set()  # attempts that were answered after their timeout
        self.has_run = False  # as can be known
        self.row = 0  # times that starts failed, since one succeeded; what was started together fails together
        self.counted = 0  # the last worker that was forked then
        self.failed_at = 0.0
        self.forks: list[Fork] = []
        self.unstarted: Counter[int] = Counter()  # attempt -> workers of that row that it was handed to

    def check(self, invariant_name: str, holds: object) -> None:
        if not holds and self.checked in (None, invariant_name):
            self.broken = True
            raise AssertionError(invariant_name)

    @initialize(slots=st.integers(1, 3), threads=st.booleans())
    def open(self, slots: int, threads: bool) -> None:
        self.slots, self.threads = slots, threads and slots > 1
        self.scheduler.open(slots, threads=threads, now=self.now)
        self.act()

    # --- the client --------------------------------------------------------------------------------------------------

    @rule(flags=st.sampled_from([0, 0, 0, 0, 0, RunFlag.STREAM, RunFlag.ALONE, RunFlag.FRESH, BESIDE]),
          function=st.sampled_from([b"quick", b"quick", b"slow"]), timeout_s=st.sampled_from([None, None, 0.5]),
          count=st.integers(1, 4), world=st.sampled_from([None, None, None, b""]))  # fmt: skip
    def submit(self, flags: int, function: bytes, timeout_s: float | None, count: int, world: bytes | None) -> None:
        for _ in range(count):
            attempt = len(self.runs) + 1
            self.runs[attempt] = run = Run(attempt, function, Value(b""), 1, 1, timeout_s, flags, world)
            self.scheduler.submitted(run, b"run")
        self.act()

    @precondition(lambda self: self.runs)
    @rule(pick=st.integers(0, 1000))
    def kill(self, pick: int) -> None:
        self.scheduler.killed(pick % len(self.runs) + 1, self.now)
        self.act()

    @precondition(lambda self: self.runs)
    @rule(picks=st.lists(st.integers(0, 1000), max_size=4))
    def recall(self, picks: list[int]) -> None:
        self.scheduler.recalled(tuple({pick % len(self.runs) + 1 for pick in picks}))
        self.act()

    # --- the workers -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0, 1000))
    def become_ready(self, pick: int) -> None:
        self.make_ready(self.pick(pick))
        self.act()

    @rule(barren=st.booleans())
    def start_none(self, barren: bool) -> None:
        self.barren = barren

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0, 1000))
    def read(self, pick: int) -> None:
        self.start_one(self.pick(pick))

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0, 1000), and_read=st.booleans())
    def answer(self, pick: int, and_read: bool) -> None:
        worker = self.pick(pick)
        if worker.running and not worker.dead:
            worker.unheard.append(worker.running.pop(0))
            if worker.fork.fresh:
                worker.dead = True
            elif and_read:
                self.start_one(worker)

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0, 1000), count=st.integers(1, 3))
    def serve(self, pick: int, count: int) -> None:
        """The usual case: in no time, one after another."""
        for _ in range(count):
            self.answer(pick, and_read=False)
            self.hear(pick)
            self.read(pick)

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0, 1000))
    def hear(self, pick: int) -> None:
        self.hear_of(self.pick(pick))
        self.act()

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0, 1000))
    def die(self, pick: int) -> None:
        self.pick(pick).dead = True

    @precondition(lambda self: self.workers and self.runs)
    @rule(pick=st.integers(0, 1000))
    def repeat_an_old_result(self, pick: int) -> None:
        worker, attempt = self.pick(pick), pick % len(self.runs) + 1
        if all(run.attempt != attempt for run in worker.outstanding()):
            self.scheduler.finished(worker.fork.worker, attempt, str(attempt).encode(), self.now)
            self.act()

    @precondition(lambda self: any(worker.dead for worker in self.workers.values()))
    @rule()
    def learn_of_deaths(self) -> None:
        for worker in [worker for worker in self.workers.values() if worker.dead]:
            self.bury(worker)
        self.act()

    @rule(seconds=st.sampled_from([0.001, 0.05, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = self.scheduler.due()
        if due is not None and due <= self.now:
            self.scheduler.ticked(self.now)
            self.act()
            left = self.scheduler.due()
            self.check("EXEC-0", left is None or left > self.now)  # or the timer is a busy loop
        for worker in self.workers.values():
            if worker.ready and worker.delivered_at + STALL_S < self.now and not worker.dead and worker.threads == 1:
                self.check("EXEC-9", not worker.unread or len(worker.outstanding()) == 1)

    # --- the world ---------------------------------------------------------------------------------------------------

    def act(self) -> None:
        while effects := self.scheduler.decide(self.now):
            for effect in effects:
                self.carry_out(effect)

    def carry_out(self, effect: Any) -> None:  # noqa: PLR0912 (a table)
        match effect:
            case Fork(worker_id):
                self.check("EXEC-10", not self.gave_up)
                self.forks.append(effect)
                self.workers[worker_id] = worker = ModelWorker(effect, self.slots if self.threads else 1)
                worker.dead = self.barren
            case Deliver(worker_id, run):
                worker = self.workers[worker_id]
                others = worker.outstanding()
                if worker.threads == 1:
                    self.check("EXEC-4", not others or not any(r.flags & UNSHARED for r in [run, *others]))
                self.check("EXEC-5", worker.fork.fresh == bool(run.flags & RunFlag.FRESH))
                self.check("EXEC-5", not worker.fork.fresh or not worker.delivered)
                self.check("EXEC-3", not run.flags & RunFlag.BESIDE or worker.fork.slot >= self.slots)
                worker.delivered += 1
                worker.beside = bool(run.flags & RunFlag.BESIDE)
                worker.delivered_at = self.now
                worker.unread.append(run)
            case Steal(worker_id):
                self.take_back(self.workers[worker_id])
            case EndWorker(worker_id):
                self.workers[worker_id].told_to_end = self.workers[worker_id].dead = True
            case Interrupt(worker_id, attempt):
                self.interrupt(self.workers[worker_id], attempt)
            case Relay(body):
                self.answered(int(body))
                self.check("EXEC-12", int(body) not in self.late)
            case Answer(Ended(attempt)):
                self.answered(attempt)
                for worker in self.workers.values():
                    self.check("EXEC-6", not any(run.attempt == attempt for run in worker.running))
            case Answer(Returned(attempts)):
                for attempt in attempts:
                    self.answered(attempt)
                    self.check("EXEC-8", not self.starts[attempt])
            case Answer(Started(attempt)):
                holders = [w for w in self.workers.values() if any(r.attempt == attempt for r in w.outstanding())]
                self.check("EXEC-10", holders and holders[0].ready)
            case GiveUp():
                self.check("EXEC-10", self.row >= TRIES)
                self.gave_up = True

    def answered(self, attempt: int) -> None:
        self.answers[attempt] += 1
        self.check("EXEC-1", self.answers[attempt] == 1)

    def interrupt(self, worker: ModelWorker, attempt: int) -> None:
        """Every other thread reacts to it."""
        for run in worker.running:
            if run.attempt == attempt and attempt % 2:
                worker.running.remove(run)
                self.ends_the_row(worker)
                self.scheduler.finished(worker.fork.worker, attempt, b"", self.now, interrupted=True)
                return

    def make_ready(self, worker: ModelWorker) -> None:
        if not worker.ready and not worker.dead:
            worker.ready = True
            self.scheduler.ready(worker.fork.worker, self.now)

    def start_one(self, worker: ModelWorker) -> None:
        self.make_ready(worker)
        if worker.unread and len(worker.running) < worker.threads and not worker.dead:
            run = worker.unread.popleft()
            worker.running.append(run)
            self.starts[run.attempt] += 1
            self.check("EXEC-2", self.starts[run.attempt] == 1)
            running = [
                run
                for worker in self.workers.values()
                for run in worker.running
                if run.world is None and not run.flags & RunFlag.BESIDE
            ]
            self.check("EXEC-3", len(running) <= self.slots)

    def hear_of(self, worker: ModelWorker) -> None:
        unheard, worker.unheard = worker.unheard, []
        for run in unheard:
            self.ends_the_row(worker)
            known = self.scheduler._attempts.get(run.attempt)
            if known is not None and known.kill_cause is Cause.TIMEOUT:
                self.late.add(run.attempt)
            self.scheduler.finished(worker.fork.worker, run.attempt, str(run.attempt).encode(), self.now)

    def take_back(self, worker: ModelWorker) -> None:
        unread = [run.attempt for run in worker.unread]
        worker.unread.clear()
        self.hear_of(worker)
        self.scheduler.stolen(worker.fork.worker, unread, self.now)

    def ends_the_row(self, worker: ModelWorker) -> None:
        """It has taken an attempt."""
        worker.took = True
        self.has_run = self.has_run or not worker.beside
        if worker.fork.worker > self.counted:
            self.row = 0
            self.unstarted.clear()

    def bury(self, worker: ModelWorker) -> None:
        handed = [run.attempt for run in worker.unread]
        self.take_back(worker)
        if worker.running:
            self.ends_the_row(worker)
        elif not worker.took and not worker.told_to_end:
            if worker.fork.worker > self.counted:
                begun = self.scheduler._last_worker  # also one that is to be forked, and was not yet
                self.row, self.counted, self.failed_at = self.row + 1, begun, self.now
            self.unstarted.update(handed)
            places = max(fork.slot for fork in self.forks) + 1
            self.check("EXEC-10", max(self.unstarted.values(), default=0) <= TRIES * places)
        worker.running.clear()
        del self.workers[worker.fork.worker]
        self.scheduler.gone(worker.fork.worker, Cause.EXIT, 1, "", self.now)

    def pick(self, pick: int) -> ModelWorker:
        return list(self.workers.values())[pick % len(self.workers)]

    @invariant()
    def it_knows_whether_it_has_run_anything(self) -> None:
        workers = [worker for worker in self.workers.values() if not worker.beside]
        runs = any(worker.ready and worker.outstanding() for worker in workers)
        self.check("EXEC-11", self.scheduler.has_run or not self.has_run)
        self.check("EXEC-11", not self.scheduler.has_run or self.has_run or runs)
        self.check("EXEC-11", self.scheduler.has_run or not any(worker.running for worker in workers))

    @invariant()
    def nothing_waits_for_an_idle_worker(self) -> None:
        placed = {run.attempt for worker in self.workers.values() for run in worker.outstanding()}
        waiting = self.runs.keys() - self.answers.keys() - placed
        if self.gave_up or self.now < self.failed_at + PAUSE_S * 2**TRIES:  # none is started
            return
        fresh = {
            worker.fork.slot
            for worker in self.workers.values()
            if worker.fork.fresh and (worker.outstanding() or worker.took or worker.dead)
        }
        self.check("EXEC-3", self.threads or all(self.runs[attempt].world is None for attempt in waiting))
        self.check("EXEC-3", not any(self.runs[attempt].flags & RunFlag.BESIDE for attempt in waiting))
        idle = [
            worker
            for worker in self.workers.values()
            if not worker.outstanding()
            and not worker.dead
            and worker.fork.slot not in fresh
            and not self.threads
            and worker.fork.slot < self.slots
        ]
        self.check("EXEC-7", not (waiting and idle))

    def teardown(self) -> None:
        if self.broken:
            return
        for _ in range(4 * TRIES if self.barren and not self.gave_up else 0):
            for worker in list(self.workers.values()):
                self.bury(worker)
            self.act()
            self.now += 0.3
            self.scheduler.ticked(self.now)
            self.act()
        self.check("EXEC-10", self.gave_up or not self.barren)
        if self.gave_up:  # the client runs elsewhere what it has no answer to
            return
        for _ in range(4 * len(self.runs) + 20):
            for worker in list(self.workers.values()):
                if worker.dead:
                    self.bury(worker)
                    continue
                self.start_one(worker)
                worker.unheard += worker.running
                worker.running.clear()
                self.hear_of(worker)
                worker.dead = worker.dead or (worker.fork.fresh and worker.took)
            self.act()
            self.now += 0.3  # nobody's timeout
            self.scheduler.ticked(self.now)
            self.act()
        self.check("EXEC-1", self.answers.keys() == self.runs.keys())
