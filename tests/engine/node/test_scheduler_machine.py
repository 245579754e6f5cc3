"""The executor's decisions against a model of its workers, and the proof that every invariant can fail."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outrider.engine.node import births as births_module
from outrider.engine.node import scheduler as scheduler_module
from outrider.engine.node.births import PAUSE_S, TRIES, Births
from outrider.engine.node.effects import Answer, Deliver, EndWorker, Fork, GiveUp, Interrupt, Relay, Steal
from outrider.engine.node.scheduler import Scheduler
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
        self.born = self.took = self.beside = False
        self.dead = False  # its death is on its way too
        self.told_to_end = False

    def outstanding(self) -> list[Run]:
        return [*self.unread, *self.running, *self.unheard]


class ExecutorMachine(RuleBasedStateMachine):
    """Workers read, answer and die whenever they like; the client submits, kills and recalls."""

    checked: str | None = None  # only this invariant, to prove that it can fail

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.now = 1000.0
        self.workers: dict[int, ModelWorker] = {}
        self.runs: dict[int, Run] = {}
        self.answers: Counter[int] = Counter()
        self.starts: Counter[int] = Counter()
        self.slots = 0
        self.threads = False
        self.broken = False
        self.barren = False  # whoever is forked dies at its birth
        self.gave_up = False
        self.late: set[int] = set()  # attempts that were answered after their timeout
        self.has_run = False  # as can be known
        self.row = 0  # times that births failed, since one succeeded; what was born together fails together
        self.counted = 0  # the last worker that was forked then
        self.failed_at = 0.0
        self.forks: list[Fork] = []
        self.stillborn: Counter[int] = Counter()  # attempt -> newborns that it was handed to, in that row

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
    def be_born(self, pick: int) -> None:
        self.bear(self.pick(pick))
        self.act()

    @rule(barren=st.booleans())
    def bear_none(self, barren: bool) -> None:
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
            if (
                worker.born
                and worker.delivered_at + scheduler_module.STALL_S < self.now
                and not worker.dead
                and worker.threads == 1
            ):
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
                self.check("EXEC-10", holders and holders[0].born)
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

    def bear(self, worker: ModelWorker) -> None:
        if not worker.born and not worker.dead:
            worker.born = True
            self.scheduler.born(worker.fork.worker, self.now)

    def start_one(self, worker: ModelWorker) -> None:
        self.bear(worker)
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
            self.stillborn.clear()

    def bury(self, worker: ModelWorker) -> None:
        handed = [run.attempt for run in worker.unread]
        self.take_back(worker)
        if worker.running:
            self.ends_the_row(worker)
        elif not worker.took and not worker.told_to_end:
            if worker.fork.worker > self.counted:
                begun = self.scheduler._last_worker  # also one that is to be forked, and was not yet
                self.row, self.counted, self.failed_at = self.row + 1, begun, self.now
            self.stillborn.update(handed)
            places = max(fork.slot for fork in self.forks) + 1
            self.check("EXEC-10", max(self.stillborn.values(), default=0) <= TRIES * places)
        worker.running.clear()
        del self.workers[worker.fork.worker]
        self.scheduler.gone(worker.fork.worker, Cause.EXIT, 1, "", self.now)

    def pick(self, pick: int) -> ModelWorker:
        return list(self.workers.values())[pick % len(self.workers)]

    @invariant()
    def it_knows_whether_it_has_run_anything(self) -> None:
        workers = [worker for worker in self.workers.values() if not worker.beside]
        runs = any(worker.born and worker.outstanding() for worker in workers)
        self.check("EXEC-11", self.scheduler.has_run or not self.has_run)
        self.check("EXEC-11", not self.scheduler.has_run or self.has_run or runs)
        self.check("EXEC-11", self.scheduler.has_run or not any(worker.running for worker in workers))

    @invariant()
    def nothing_waits_for_an_idle_worker(self) -> None:
        placed = {run.attempt for worker in self.workers.values() for run in worker.outstanding()}
        waiting = self.runs.keys() - self.answers.keys() - placed
        if self.gave_up or self.now < self.failed_at + PAUSE_S * 2**TRIES:  # births rest
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


MACHINE = settings(max_examples=150, stateful_step_count=50, deadline=None, report_multiple_bugs=False,
                   suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])  # fmt: skip
TestExecutor = ExecutorMachine.TestCase
TestExecutor.settings = MACHINE


def test_a_worker_that_is_gone_is_asked_for_nothing() -> None:
    """Its last result, heard with its death, makes the next in its pipe the first: one that is to be killed."""
    scheduler = Scheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.born(fork.worker, 0.0)
    for attempt in (1, 2):
        scheduler.submitted(Run(attempt, b"quick", Value(b""), 1, 1, None, 0, None), b"run")
    scheduler.decide(0.0)
    scheduler.killed(2, 0.001)
    assert scheduler.decide(0.001) == [Steal(fork.worker)]
    scheduler.stolen(fork.worker, [], 0.002)  # it had read both
    scheduler.finished(fork.worker, 1, b"1", 0.002)
    scheduler.stolen(fork.worker, [], 0.002)
    scheduler.gone(fork.worker, Cause.SIGNAL, 11, "", 0.002)
    relayed, ended, forked = scheduler.decide(0.002)
    assert relayed == Relay(b"1")
    assert ended == Answer(Ended(2, Cause.KILLED, 0, ""))
    assert isinstance(forked, Fork)


def test_attempts_beyond_the_slots_lie_in_the_workers_pipes_until_the_first_takes_long() -> None:
    scheduler = Scheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.born(fork.worker, 0.0)
    runs = [Run(attempt, b"quick", Value(b""), 1, 1, None, 0, None) for attempt in range(1, scheduler_module.DEPTH + 2)]
    for run in runs:
        scheduler.submitted(run, b"run")
    assert scheduler.decide(0.0) == [Deliver(fork.worker, run, b"run") for run in runs[:-1]]
    scheduler.ticked(scheduler_module.STALL_S)
    assert scheduler.decide(scheduler_module.STALL_S) == [Steal(fork.worker)]
    scheduler.stolen(fork.worker, [run.attempt for run in runs[1:-1]], scheduler_module.STALL_S)
    assert scheduler.decide(scheduler_module.STALL_S) == []
    scheduler.finished(fork.worker, 1, b"1", 0.1)
    assert scheduler.decide(0.1) == [Relay(b"1"), *(Deliver(fork.worker, run, b"run") for run in runs[1:])]


def test_an_answer_after_the_timeout_is_none() -> None:
    """As when the fork server stands still, which is to kill the worker: the task goes on, and returns at last."""
    scheduler = Scheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.born(fork.worker, 0.0)
    scheduler.submitted(Run(1, b"slow", Value(b""), 1, 1, 0.5, 0, None), b"run")
    scheduler.decide(0.0)
    scheduler.ticked(0.5)
    assert scheduler.decide(0.5) == [Steal(fork.worker)]
    scheduler.stolen(fork.worker, [], 0.5)
    assert scheduler.decide(0.5) == [EndWorker(fork.worker)]
    assert not scheduler.finished(fork.worker, 1, b"1", 20.0)
    assert scheduler.decide(20.0) == [Answer(Ended(1, Cause.TIMEOUT, 0, ""))]
    scheduler.gone(fork.worker, Cause.SIGNAL, 9, "", 26.0)
    (again,) = scheduler.decide(26.0)
    assert isinstance(again, Fork)


def test_a_fresh_worker_whose_attempt_was_taken_back_does_not_keep_its_slot() -> None:
    """Found by the simulator: a task that was cancelled before its own process had read it cost the node a slot."""
    scheduler = Scheduler()
    scheduler.open(1, threads=False, now=0.0)
    (warm,) = scheduler.decide(0.0)
    assert isinstance(warm, Fork)
    scheduler.born(warm.worker, 0.0)
    scheduler.submitted(Run(1, b"f", Value(b""), 1, 1, None, int(RunFlag.FRESH), None), b"run")
    fork, _ = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.killed(1, 0.0)
    assert scheduler.decide(0.0) == [Steal(fork.worker)]
    scheduler.stolen(fork.worker, [1], 0.0)
    assert scheduler.decide(0.0) == [Answer(Ended(1, Cause.KILLED, 0, "")), EndWorker(fork.worker)]
    scheduler.gone(fork.worker, Cause.SIGNAL, 9, "", 0.1)
    run = Run(2, b"f", Value(b""), 1, 1, None, 0, None)
    scheduler.submitted(run, b"run")
    assert scheduler.decide(0.1) == [Deliver(warm.worker, run, b"run")]


def test_fresh_workers_that_die_before_they_read_are_births_that_failed() -> None:
    """What they had not read is told just before their end."""
    scheduler, now = Scheduler(), 0.0
    scheduler.open(1, threads=False, now=now)
    (warm,) = scheduler.decide(now)
    assert isinstance(warm, Fork)
    scheduler.born(warm.worker, now)
    scheduler.submitted(Run(1, b"f", Value(b""), 1, 1, None, int(RunFlag.FRESH), None), b"run")
    for number in range(TRIES):
        fork = scheduler.decide(now)[0]
        assert isinstance(fork, Fork)
        scheduler.stolen(fork.worker, [1], now)
        scheduler.gone(fork.worker, Cause.EXIT, 1, "", now)
        assert isinstance([*scheduler.decide(now), None][0], GiveUp) == (number == TRIES - 1)
        now += 1.0
        scheduler.ticked(now)


def test_workers_that_have_waited_for_work_were_born_well() -> None:
    """Found by the simulator: workers that somebody killed hours apart, on a node without work, ended its executor."""
    scheduler, now = Scheduler(), 0.0
    scheduler.open(1, threads=False, now=now)
    (fork,) = scheduler.decide(now)
    for _ in range(TRIES + 1):
        assert isinstance(fork, Fork)
        scheduler.born(fork.worker, now)
        now += scheduler_module.SETTLED_S
        scheduler.gone(fork.worker, Cause.SIGNAL, 9, "", now)
        (fork,) = scheduler.decide(now)
    for number in range(TRIES):  # and they are no licence for those that come next
        assert isinstance(fork, Fork)
        scheduler.born(fork.worker, now)
        scheduler.gone(fork.worker, Cause.SIGNAL, 9, "", now)
        now += 1.0
        scheduler.ticked(now)
        (fork,) = scheduler.decide(now)
        assert isinstance(fork, GiveUp) == (number == TRIES - 1)


# --- every invariant, proved by breaking the code once ---------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _replace(name: str, make: Callable[[Any], Any]) -> Patch:
    return lambda patch: patch.setattr(Scheduler, name, make(getattr(Scheduler, name)))


def _nothing(_: Any) -> Any:
    return lambda *_, **__: None


def _ended_at_once(end_worker: Any) -> Any:
    def say_it_already(self: Scheduler, worker: Any, now: float) -> None:
        end_worker(self, worker, now)
        for slot in self._slots:
            if slot.worker is worker and slot.pipe:
                self._end(slot.pipe.popleft(), Cause.KILLED, 0, "")

    return say_it_already


def _forget(_: Any) -> Any:
    def vacated(self: Scheduler, slot: Any, *_: Any) -> None:
        while slot.pipe:
            del self._attempts[slot.pipe.pop().run.attempt]
        slot.leaves_by = None

    return vacated


def _requeue_all(vacate: Any) -> Any:
    def vacated(self: Scheduler, slot: Any, *_: Any) -> None:
        while slot.pipe:
            self._unstarted(slot.pipe.pop())
        slot.leaves_by = None

    del vacate
    return vacated


def _recall_started_too(recalled: Any) -> Any:
    def take(self: Scheduler, attempts: tuple[int, ...]) -> None:
        running = tuple(a for a in attempts if a in self._attempts and self._attempts[a].slot is not None)
        self._effects.append(Answer(Returned(running)))
        recalled(self, attempts)

    return take


def _believe(finished: Any) -> Any:
    def finish(self: Scheduler, worker: int, attempt: int, body: bytes, *rest: Any, **more: Any) -> None:
        if attempt not in self._attempts:
            self._effects.append(Relay(body))
        finished(self, worker, attempt, body, *rest, **more)

    return finish


def _take_what_is_late(finished: Any) -> Any:
    def finish(self: Scheduler, worker: int, attempt: int, *rest: Any, **more: Any) -> None:
        known = self._attempts.get(attempt)
        if known is not None and known.kill_cause is Cause.TIMEOUT:
            known.kill_cause = None
        finished(self, worker, attempt, *rest, **more)

    return finish


def _free_while_fresh(finished: Any) -> Any:
    def finish(self: Scheduler, worker: int, attempt: int, *rest: Any, **more: Any) -> None:
        known = self._attempts.get(attempt)
        slot = known.slot if known is not None else None
        finished(self, worker, attempt, *rest, **more)
        if slot is not None and slot.worker is not None and slot.worker.fresh:
            self._free.append(slot)

    return finish


def _keep_the_fresh(end_worker: Any) -> Any:
    def ends(self: Scheduler, worker: Any, now: float) -> None:
        slots = [slot for slot in self._slots if slot.worker is worker]  # several, where threads share it
        if not worker.fresh or any(slot.pipe or slot.leaves_by is not None for slot in slots):
            end_worker(self, worker, now)

    return ends


def _born_early(worker: Any) -> Any:
    worker.born = True
    return worker


MUTATIONS: dict[str, tuple[str, Patch]] = {
    "a timer stays due": ("EXEC-0", lambda patch: patch.setattr(Scheduler, "due", lambda self: 0.0)),
    "a dead worker's attempts are forgotten": ("EXEC-1", _replace("_vacate", _forget)),
    "repeated results are believed": ("EXEC-1", _replace("finished", _believe)),
    "what began is queued again": ("EXEC-2", _replace("_vacate", _requeue_all)),
    "there is a slot too many": ("EXEC-3", _replace("open", lambda open_: lambda self, slots, **how: open_(
        self, slots + 1, **how))),
    "ranks wait like everybody": ("EXEC-3", _replace("_queue_of", lambda _: lambda self, _: self._queue)),
    "what runs beside takes a slot": ("EXEC-3", _replace("_beside", lambda _: lambda self: self._seat(0.0))),
    "what runs beside waits": ("EXEC-3", lambda patch: patch.setattr(scheduler_module, "_BESIDE", 0)),
    "streams are stacked": ("EXEC-4", lambda patch: patch.setattr(scheduler_module, "_UNSHARED", 0)),
    "fresh tasks run in warm workers": ("EXEC-5", lambda patch: patch.setattr(scheduler_module, "_FRESH", 0)),
    "a fresh worker is used again": ("EXEC-5", _replace("finished", _free_while_fresh)),
    "Ended is said before the worker is gone": ("EXEC-6", _replace("_end_worker", _ended_at_once)),
    "a fresh worker keeps its slot": ("EXEC-7", _replace("_end_worker", _keep_the_fresh)),
    "a finished slot is not released": ("EXEC-7", _replace("_release", _nothing)),
    "recall returns what runs": ("EXEC-8", _replace("recalled", _recall_started_too)),
    "births that fail are not counted": ("EXEC-10", lambda patch: patch.setattr(Births, "failed", lambda *_: False)),
    "one birth that fails is enough": ("EXEC-10", lambda patch: patch.setattr(births_module, "TRIES", 1)),
    "what was handed over counts as begun": ("EXEC-10", _replace("_make", lambda make: lambda self, *which, **how: (
        _born_early(make(self, *which, **how))))),
    "what runs does not count as run": ("EXEC-11", lambda patch: patch.setattr(
        Scheduler, "has_run", property(lambda self: any(slot.used and not slot.beside for slot in self._slots)))),
    "who was born counts as having run": ("EXEC-11", lambda patch: patch.setattr(
        Scheduler, "has_run", property(lambda self: any(worker.born for worker in self._workers.values())))),
    "what runs beside counts as having run": ("EXEC-11", lambda patch: patch.setattr(
        Scheduler, "has_run", property(lambda self: any(slot.used or slot.pipe for slot in self._slots)))),
    "an answer after its timeout is taken": ("EXEC-12", _replace("finished", _take_what_is_late)),
    "time passes unnoticed": ("EXEC-9", _replace("ticked", _nothing)),
}  # fmt: skip


OWN_CHECK = "slot . counted as free without a worker"  # the scheduler's, where it comes before the invariant's


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_machine_notices_when(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    invariant_name, patch = MUTATIONS[mutation]
    monkeypatch.setattr(ExecutorMachine, "checked", invariant_name)
    patch(monkeypatch)
    hurried = settings(MACHINE, max_examples=10_000, derandomize=True, phases=[Phase.generate], database=None)
    with pytest.raises(AssertionError, match=rf"{invariant_name}|{OWN_CHECK}"):
        run_state_machine_as_test(ExecutorMachine, settings=hurried)
