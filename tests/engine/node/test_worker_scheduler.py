"""What the scheduler decides in cases that once went wrong, or that the machine seldom comes to."""

from __future__ import annotations

import pytest

from outrider.engine.node.slots import DEPTH, STALL_S, TRIES
from outrider.engine.node.worker_scheduler import (
    SETTLED_S,
    Answer,
    Deliver,
    Effect,
    EndWorker,
    Fork,
    GiveUp,
    Relay,
    Steal,
    WorkerScheduler,
)
from outrider.engine.wire.messages import Cause, Ended, Returned, Run, RunFlag, Value


def test_a_worker_that_is_gone_is_asked_for_nothing() -> None:
    """Its last result, heard with its death, makes the next in its pipe the first: one that is to be killed."""
    scheduler = WorkerScheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.ready(fork.worker, 0.0)
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
    scheduler = WorkerScheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.ready(fork.worker, 0.0)
    runs = [Run(attempt, b"quick", Value(b""), 1, 1, None, 0, None) for attempt in range(1, DEPTH + 2)]
    for run in runs:
        scheduler.submitted(run, b"run")
    assert scheduler.decide(0.0) == [Deliver(fork.worker, run, b"run") for run in runs[:-1]]
    scheduler.ticked(STALL_S)
    assert scheduler.decide(STALL_S) == [Steal(fork.worker)]
    scheduler.stolen(fork.worker, [run.attempt for run in runs[1:-1]], STALL_S)
    assert scheduler.decide(STALL_S) == []
    scheduler.finished(fork.worker, 1, b"1", 0.1)
    assert scheduler.decide(0.1) == [Relay(b"1"), *(Deliver(fork.worker, run, b"run") for run in runs[1:])]


def test_an_answer_after_the_timeout_is_none() -> None:
    """As when the fork server stands still, which is to kill the worker: the task goes on, and returns at last."""
    scheduler = WorkerScheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.ready(fork.worker, 0.0)
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
    scheduler = WorkerScheduler()
    scheduler.open(1, threads=False, now=0.0)
    (warm,) = scheduler.decide(0.0)
    assert isinstance(warm, Fork)
    scheduler.ready(warm.worker, 0.0)
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


def test_an_attempt_whose_time_is_up_before_its_fresh_worker_reads_it_runs_in_another() -> None:
    """As when the machine stands still: the slot was never free again, and the attempt waited for it."""
    scheduler = WorkerScheduler()
    scheduler.open(1, threads=False, now=0.0)
    (warm,) = scheduler.decide(0.0)
    assert isinstance(warm, Fork)
    scheduler.ready(warm.worker, 0.0)
    run = Run(1, b"f", Value(b""), 1, 1, 0.5, int(RunFlag.FRESH), None)
    scheduler.submitted(run, b"run")
    fork, _ = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.ready(fork.worker, 0.0)
    scheduler.ticked(0.6)
    assert scheduler.decide(0.6) == [Steal(fork.worker)]
    scheduler.stolen(fork.worker, [1], 0.6)
    assert scheduler.decide(0.6) == [EndWorker(fork.worker)]
    scheduler.gone(fork.worker, Cause.SIGNAL, 9, "", 0.7)
    another, delivered = scheduler.decide(0.7)
    assert isinstance(another, Fork)
    assert delivered == Deliver(another.worker, run, b"run")


def test_fresh_workers_that_die_before_they_read_failed_to_start() -> None:
    """What they had not read is told just before their end."""
    scheduler, now = WorkerScheduler(), 0.0
    scheduler.open(1, threads=False, now=now)
    (warm,) = scheduler.decide(now)
    assert isinstance(warm, Fork)
    scheduler.ready(warm.worker, now)
    scheduler.submitted(Run(1, b"f", Value(b""), 1, 1, None, int(RunFlag.FRESH), None), b"run")
    for number in range(TRIES):
        fork = scheduler.decide(now)[0]
        assert isinstance(fork, Fork)
        scheduler.stolen(fork.worker, [1], now)
        scheduler.gone(fork.worker, Cause.EXIT, 1, "", now)
        assert isinstance([*scheduler.decide(now), None][0], GiveUp) == (number == TRIES - 1)
        now += 1.0
        scheduler.ticked(now)


def test_workers_that_have_waited_for_work_had_started_well() -> None:
    """Found by the simulator: workers that somebody killed hours apart, on a node without work, ended its executor."""
    scheduler, now = WorkerScheduler(), 0.0
    scheduler.open(1, threads=False, now=now)
    (fork,) = scheduler.decide(now)
    for _ in range(TRIES + 1):
        assert isinstance(fork, Fork)
        scheduler.ready(fork.worker, now)
        now += SETTLED_S
        scheduler.gone(fork.worker, Cause.SIGNAL, 9, "", now)
        (fork,) = scheduler.decide(now)
    for number in range(TRIES):  # and they are no licence for those that come next
        assert isinstance(fork, Fork)
        scheduler.ready(fork.worker, now)
        scheduler.gone(fork.worker, Cause.SIGNAL, 9, "", now)
        now += 1.0
        scheduler.ticked(now)
        (fork,) = scheduler.decide(now)
        assert isinstance(fork, GiveUp) == (number == TRIES - 1)


def with_one_running_and_one_queued() -> WorkerScheduler:
    scheduler = WorkerScheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.ready(fork.worker, 0.0)
    for attempt in (1, 2):
        scheduler.submitted(Run(attempt, b"f", Value(b""), 1, 1, None, int(RunFlag.ALONE), None), b"run")
    scheduler.decide(0.0)
    return scheduler


@pytest.mark.parametrize(
    ("of_the_client", "effects"),
    [
        ((1, 2), []),
        ((1, 2, 7), [Answer(Ended(7, Cause.UNKNOWN, 0, ""))]),
        ((1,), [Answer(Ended(2, Cause.KILLED, 0, ""))]),
        ((2,), [Steal(1)]),  # by which a running attempt's end begins
    ],
)
def test_attempts_that_one_side_alone_has_are_settled(of_the_client: tuple[int, ...], effects: list[Effect]) -> None:
    """EXEC-13"""
    scheduler = with_one_running_and_one_queued()
    scheduler.compared(of_the_client, 1.0)
    assert scheduler.decide(1.0) == effects


@pytest.mark.parametrize("side", ["here", "there"])
def test_exec_13_falls_without_its_guard(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EXEC-13"""
    if side == "here":
        monkeypatch.setattr(WorkerScheduler, "compared", lambda *_: None)
    else:
        monkeypatch.setattr(WorkerScheduler, "killed", lambda *_: None)
    with pytest.raises(AssertionError):
        for numbers, effects in [((1, 2, 7), [Answer(Ended(7, Cause.UNKNOWN, 0, ""))]), ((1,), [Steal(1)])]:
            test_attempts_that_one_side_alone_has_are_settled(numbers, [*effects])


def test_an_attempt_that_is_to_be_given_back_still_counts() -> None:
    scheduler = WorkerScheduler()
    scheduler.open(1, threads=False, now=0.0)
    (fork,) = scheduler.decide(0.0)
    assert isinstance(fork, Fork)
    scheduler.ready(fork.worker, 0.0)
    for attempt in range(1, DEPTH + 3):
        scheduler.submitted(Run(attempt, b"quick", Value(b""), 1, 1, None, 0, None), b"run")
    scheduler.decide(0.0)
    scheduler.recalled((DEPTH, DEPTH + 2))
    assert scheduler.decide(0.0) == [Steal(fork.worker)]
    assert sorted(scheduler.attempts()) == list(range(1, DEPTH + 3)), "the client has no answer yet"
    scheduler.stolen(fork.worker, [DEPTH], 0.0)
    assert Answer(Returned((DEPTH, DEPTH + 2))) in scheduler.decide(0.0)
    assert {DEPTH, DEPTH + 2}.isdisjoint(scheduler.attempts())
