"""The executor's decisions against a model of its workers, and the proof that every invariant can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from outrider.engine.node import slots
from outrider.engine.node import slots as slot_table
from outrider.engine.node import worker_scheduler as scheduler_module
from outrider.engine.node.slots import SlotTable, StartFailures
from outrider.engine.node.worker_scheduler import Answer, Relay, WorkerScheduler
from outrider.engine.wire.messages import Cause, Returned

from .worker_scheduler_model import ExecutorMachine

MACHINE = settings(max_examples=150, stateful_step_count=50, deadline=None, report_multiple_bugs=False,
                   suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])  # fmt: skip
TestExecutor = ExecutorMachine.TestCase
TestExecutor.settings = MACHINE


# --- every invariant, proved by breaking the code once ---------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _replace(name: str, make: Callable[[Any], Any], of: type = WorkerScheduler) -> Patch:
    return lambda patch: patch.setattr(of, name, make(getattr(of, name)))


def _nothing(_: Any) -> Any:
    return lambda *_, **__: None


def _ended_at_once(end_worker: Any) -> Any:
    def say_it_already(self: WorkerScheduler, worker: Any, now: float) -> None:
        end_worker(self, worker, now)
        for slot in self._table.slots:
            if slot.worker is worker and slot.pipe:
                self._end(slot.pipe.popleft(), Cause.KILLED, 0, "")

    return say_it_already


def _forget(_: Any) -> Any:
    def vacated(self: WorkerScheduler, slot: Any, *_: Any, **__: Any) -> None:
        while slot.pipe:
            del self._attempts[slot.pipe.pop().run.attempt]
        slot.leaves_by = None

    return vacated


def _requeue_all(vacate: Any) -> Any:
    def vacated(self: WorkerScheduler, slot: Any, *_: Any, **__: Any) -> None:
        while slot.pipe:
            self._unstarted(slot.pipe.pop())
        slot.leaves_by = None

    del vacate
    return vacated


def _recall_started_too(recalled: Any) -> Any:
    def take(self: WorkerScheduler, attempts: tuple[int, ...]) -> None:
        running = tuple(a for a in attempts if a in self._attempts and self._attempts[a].slot is not None)
        self._effects.append(Answer(Returned(running)))
        recalled(self, attempts)

    return take


def _believe(finished: Any) -> Any:
    def finish(self: WorkerScheduler, worker: int, attempt: int, body: bytes, *rest: Any, **more: Any) -> None:
        if attempt not in self._attempts:
            self._effects.append(Relay(body))
        finished(self, worker, attempt, body, *rest, **more)

    return finish


def _take_what_is_late(finished: Any) -> Any:
    def finish(self: WorkerScheduler, worker: int, attempt: int, *rest: Any, **more: Any) -> None:
        known = self._attempts.get(attempt)
        if known is not None and known.kill_cause is Cause.TIMEOUT:
            known.kill_cause = None
        finished(self, worker, attempt, *rest, **more)

    return finish


def _free_while_fresh(finished: Any) -> Any:
    def finish(self: WorkerScheduler, worker: int, attempt: int, *rest: Any, **more: Any) -> None:
        known = self._attempts.get(attempt)
        slot = known.slot if known is not None else None
        finished(self, worker, attempt, *rest, **more)
        if slot is not None and slot.worker is not None and slot.worker.fresh:
            self._table.free.append(slot)

    return finish


def _keep_the_fresh(end_worker: Any) -> Any:
    def ends(self: WorkerScheduler, worker: Any, now: float) -> None:
        slots = [slot for slot in self._table.slots if slot.worker is worker]  # several, where threads share it
        if not worker.fresh or any(slot.pipe or slot.leaves_by is not None for slot in slots):
            end_worker(self, worker, now)

    return ends


def _ready_early(worker: Any) -> Any:
    worker.ready = True
    return worker


SECONDS = {"there is a slot too many", "a fresh worker keeps its slot"}  # others of EXEC-3 and EXEC-7 take less
MUTATIONS: dict[str, tuple[str, Patch]] = {
    "a timer stays due": ("EXEC-0", lambda patch: patch.setattr(WorkerScheduler, "due", lambda self: 0.0)),
    "a dead worker's attempts are forgotten": ("EXEC-1", _replace("_vacate", _forget)),
    "repeated results are believed": ("EXEC-1", _replace("finished", _believe)),
    "what began is queued again": ("EXEC-2", _replace("_vacate", _requeue_all)),
    "there is a slot too many": ("EXEC-3", _replace("open", lambda open_: lambda self, slots, **how: open_(
        self, slots + 1, **how))),
    "ranks wait like everybody": ("EXEC-3", _replace("_queue_of", lambda _: lambda self, _: self._queue)),
    "what runs beside takes a slot": ("EXEC-3", _replace("beside", lambda beside: lambda self: (
        self.take_any() or beside(self)), SlotTable)),
    "what runs beside waits": ("EXEC-3", lambda patch: patch.setattr(scheduler_module, "_BESIDE", 0)),
    "streams are stacked": ("EXEC-4", lambda patch: patch.setattr(slot_table, "_UNSHARED", 0)),
    "fresh tasks run in warm workers": ("EXEC-5", lambda patch: patch.setattr(scheduler_module, "_FRESH", 0)),
    "a fresh worker is used again": ("EXEC-5", _replace("finished", _free_while_fresh)),
    "Ended is said before the worker is gone": ("EXEC-6", _replace("_end_worker", _ended_at_once)),
    "a fresh worker keeps its slot": ("EXEC-7", _replace("_end_worker", _keep_the_fresh)),
    "a finished slot is not released": ("EXEC-7", _replace("release", _nothing, SlotTable)),
    "recall returns what runs": ("EXEC-8", _replace("recalled", _recall_started_too)),
    "starts that fail are not counted": ("EXEC-10", lambda patch: patch.setattr(
        StartFailures, "failed", lambda *_: False)),
    "one start that fails is enough": ("EXEC-10", lambda patch: patch.setattr(slots, "TRIES", 1)),
    "what was handed over counts as begun": ("EXEC-10", _replace("_make", lambda make: lambda self, *which, **how: (
        _ready_early(make(self, *which, **how))))),
    "what runs does not count as run": ("EXEC-11", lambda patch: patch.setattr(
        WorkerScheduler, "has_run", property(lambda self: self._has_run))),
    "who is ready counts as having run": ("EXEC-11", lambda patch: patch.setattr(
        WorkerScheduler, "has_run", property(lambda self: any(worker.ready for worker in self._workers.values())))),
    "what runs beside counts as having run": ("EXEC-11", lambda patch: patch.setattr(
        WorkerScheduler, "has_run", property(
            lambda self: self._has_run or any(slot.pipe for slot in self._table.slots)))),
    "an answer after its timeout is taken": ("EXEC-12", _replace("finished", _take_what_is_late)),
    "time passes unnoticed": ("EXEC-9", _replace("ticked", _nothing)),
}  # fmt: skip


OWN_CHECK = "slot . counted as free without a worker"  # the scheduler's, where it comes before the invariant's


@pytest.mark.parametrize(
    "mutation", [pytest.param(each, marks=[pytest.mark.nightly] * (each in SECONDS)) for each in MUTATIONS]
)
def test_the_machine_notices_when(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    invariant_name, patch = MUTATIONS[mutation]
    monkeypatch.setattr(ExecutorMachine, "checked", invariant_name)
    patch(monkeypatch)
    hurried = settings(MACHINE, max_examples=10_000, derandomize=True, phases=[Phase.generate], database=None)
    with pytest.raises(AssertionError, match=rf"{invariant_name}|{OWN_CHECK}"):
        run_state_machine_as_test(ExecutorMachine, settings=hurried)
