"""Each promise of the simulator falls when its guard is taken out of the engine, and by that number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from outrider.actors import node
from outrider.actors.autoscaler import Autoscaler
from outrider.actors.failure_detector import FailureDetector
from outrider.actors.fleet_controller import STEPS, FleetController, NodePhase
from outrider.actors.generations import Gang
from outrider.actors.generations import Phase as GangPhase
from outrider.actors.interfaces import OnLoss, ScaleByLoad, Settled
from outrider.actors.launch_queue import LaunchQueue
from outrider.actors.ledger import Ledger
from outrider.actors.membership import Membership
from outrider.actors.messages import NodeMessage, Queued
from outrider.actors.node import NodeActor
from outrider.actors.node_lives import NodeLives
from outrider.actors.placement import Placement
from outrider.actors.retries import Entry
from outrider.actors.stalls import StallWatch
from outrider.actors.stragglers import Stragglers
from outrider.engine.client import budget
from outrider.engine.client.budget import Budget
from outrider.engine.node.slots import Attempt, StartFailures
from outrider.engine.node.worker_scheduler import WorkerScheduler
from outrider.engine.testing.simulator import faults as f
from outrider.engine.testing.simulator.draw import draw
from outrider.engine.testing.simulator.play import play
from outrider.engine.testing.simulator.rules.promises import PROMISES
from outrider.engine.testing.simulator.scenario import CloudSpec, Job, Scenario

SEEDS = 2000  # at most; most promises fall within twenty

Patch = pytest.MonkeyPatch


def holds_what_is_not_there(patch: Patch) -> None:
    patch.setattr(Placement, "has_amounts", lambda *_, **__: True)


def heeds_no_sign_of_life(patch: Patch) -> None:
    answered = StallWatch.answered

    def deaf(self, node, question, seen, now):
        answered(self, node, question, {each: sight._replace(quiet_s=1e9) for each, sight in seen.items()}, now)

    patch.setattr(StallWatch, "answered", deaf)


def restarts_what_has_stalled_for_ever(patch: Patch) -> None:
    patch.setattr(Entry, "may_restart", lambda self: True)


def takes_the_attempt_after_a_loss_for_stalled(patch: Patch) -> None:
    lost = Entry.node_lost

    def loses(self, *args, **options):
        stalled = self.stalled
        ending = lost(self, *args, **options)
        self.stalled = stalled
        return ending

    patch.setattr(Entry, "node_lost", loses)


def counts_stalls_as_losses(patch: Patch) -> None:
    lost = Entry.node_lost

    def loses(self, *args, **options):
        stalls, self.stalls = self.stalls, 0
        ending = lost(self, *args, **options)
        self.stalls = stalls
        return ending

    patch.setattr(Entry, "node_lost", loses)


def lost_after_its_stall(seed: int) -> Scenario:
    """What is seldom drawn: a task hangs, runs again for that, and then its machine dies."""
    job = Job(id=1, at_s=0.0, takes_s=2.5, retries=1, stall_s=3.0, stall_restarts=True, hangs=1)
    death = f.Death(at_s=1.0, after=("task_started", 2), who=0.0, reported_s=0.2)
    return Scenario(seed=seed, nodes=1, min=1, max=1, announce=True, jobs=(job,), faults=(death,))


def lost_before_its_stall_ends_it(seed: int) -> Scenario:
    """What is not drawn: a task hangs, its machine dies before the task is ended for that, and then the task raises."""
    job = Job(id=1, at_s=0.0, takes_s=0.5, ends="raises", stall_s=3.0, stall_restarts=True, hangs=1)
    death = f.Death(at_s=0.5, after=("stalled", 1), who=0.0, reported_s=0.2)
    return Scenario(seed=seed, nodes=1, min=1, max=1, cloud=CloudSpec(kill_s=(5.0, 5.0)), jobs=(job,), faults=(death,))


def ends_attempts_before_their_timeout(patch: Patch) -> None:
    due = Attempt.times_out_at.fget
    assert due is not None

    def early(self):
        at = due(self)
        return None if at is None else at - 0.1

    patch.setattr(Attempt, "times_out_at", property(early))


def leaves_ranks_that_were_to_run_again(patch: Patch) -> None:
    drop = Gang._drop_gaps
    patch.setattr(Gang, "_drop_gaps", lambda self: [] if self.phase is GangPhase.FENCING else drop(self))


def settles_twice(patch: Patch) -> None:
    finished = Ledger._finished

    def twice(self, host, report, now):
        known = finished(self, host, report, now)
        if self.decisions.endings:
            self.decisions.endings.append(self.decisions.endings[-1])
        return known

    patch.setattr(Ledger, "_finished", twice)


def tells_each_rank_twice(patch: Patch) -> None:
    end = Gang._end_rank

    def twice(self, rank, ending):
        end(self, rank, ending)
        end(self, rank, ending)

    patch.setattr(Gang, "_end_rank", twice)


def takes_an_ending_back(patch: Patch) -> None:
    end = Gang._end_rank

    def again(self, rank, ending):
        end(self, rank, ending)
        if isinstance(ending, Settled):
            self._endings[rank] = ending._replace(at=-1.0)  # which nothing but what was told can contradict

    patch.setattr(Gang, "_end_rank", again)


def keeps_results_of_lost_generations(patch: Patch) -> None:
    begin, fence, finished = Gang._begin, Gang._fence, Gang.finished

    def begins(self, given, now):
        kept = {rank: each for rank, each in getattr(self, "kept", {}).items() if isinstance(each, Settled)}
        begin(self, given, now)
        self._endings = kept

    def fences(self, node_, now):
        self.kept = dict(self._endings)
        fence(self, node_, now)

    def ends(self, of, attempt, *said):
        before = dict(self._endings)
        known = finished(self, of, attempt, *said)
        self._endings |= before
        return known

    patch.setattr(Gang, "_begin", begins)
    patch.setattr(Gang, "_fence", fences)
    patch.setattr(Gang, "finished", ends)


def runs_at_most_once_again(patch: Patch) -> None:
    survives = Ledger._survives

    def does(self, entry, *args, **options):
        entry.task = entry.task._replace(at_most_once=False, retries=entry.task.retries + 1)
        return survives(self, entry, *args, **options)

    patch.setattr(Ledger, "_survives", does)


def takes_any_port(patch: Patch) -> None:
    begin = Gang._begin
    patch.setattr(
        Gang, "_begin", lambda self, given, now: begin(self, [tuple(range(9, 9 + len(p))) for p in given], now)
    )


def does_not_fence(patch: Patch) -> None:
    fence = Gang._fence

    def fences(self, node_, now):
        fence(self, node_, now)
        if self.phase is GangPhase.FENCING:
            self._fenced(now)

    patch.setattr(Gang, "_fence", fences)


def sends_to_closed_nodes(patch: Patch) -> None:
    closed = Ledger.node_closed

    def closes(self, of, now, **options):
        closed(self, of, now, **options)
        if of in self.placement.hosts:
            self.placement.hosts[of].open = True
            self.placement.place(self.placement.hosts[of])

    patch.setattr(Ledger, "node_closed", closes)


def runs_beside_the_slots(patch: Patch) -> None:
    patch.setattr(WorkerScheduler, "_queue_of", lambda self, attempt: self._ranks)


def starts_workers_for_ever(patch: Patch) -> None:
    patch.setattr(StartFailures, "failed", lambda *_: False)


def gives_up_at_the_first_failed_start(patch: Patch) -> None:
    patch.setattr(StartFailures, "failed", lambda *_: True)


def blames_nobody(patch: Patch) -> None:
    survives = Ledger._survives
    patch.setattr(
        Ledger, "_survives", lambda self, *args, **options: survives(self, *args, **options | {"announced": True})
    )


def forgets_what_comes_back(patch: Patch) -> None:
    requeue = Ledger._requeue
    patch.setattr(Ledger, "_requeue", lambda self, entries, now: requeue(self, entries[1:], now))


def goes_on_with_fewer(patch: Patch) -> None:
    patch.setattr(Gang, "size", lambda self: 1)


def replaces_nothing(patch: Patch) -> None:
    patch.setattr(FleetController, "_try_anew", lambda self, now: None)
    patch.setattr(FleetController, "wake_at", lambda self: None)


def terminates_nothing(patch: Patch) -> None:
    patch.setattr(NodeLives, "_terminate", lambda self, member: None)


def forgets_what_it_asked_for(patch: Patch) -> None:
    patch.setattr(FleetController, "_missing", lambda self: self.wanted + self.spare - self._present)


def waits_for_the_death(patch: Patch) -> None:
    def noticed(self, of, now):
        if self.nodes.get(of) is NodePhase.READY:
            self._move(of, NodePhase.NOTICED)
        return True

    patch.setattr(FleetController, "noticed", noticed)


def promotes_nobody(patch: Patch) -> None:
    patch.setattr(FleetController, "_promote", lambda self, places: None)


def never_blames_the_network(patch: Patch) -> None:
    patch.setattr(FailureDetector, "network_wide", property(lambda self: False))


def waits_out_every_lease(patch: Patch) -> None:
    patch.setattr(
        FailureDetector, "_due", lambda self: {of: since + self._lease_s for of, (since, _) in self._away.items()}
    )


def tells_nobody_who_left(patch: Patch) -> None:
    left = Membership.left

    def leaves(self, member):
        before = self.outdated
        left(self, member)
        self.outdated = before

    patch.setattr(Membership, "left", leaves)


def leaves_connections_open(patch: Patch) -> None:
    patch.setattr(node, "CLOSE_S", 0.0)


def leaves_seats_to_tasks(patch: Patch) -> None:
    patch.setattr(Gang, "_reserve", lambda self: None)


def busy_with_a_spare(seed: int) -> Scenario:
    """What is seldom drawn: a broadcast that loses a node, one that stands by, and tasks that wait for a slot."""
    broadcast = Job(id=1, at_s=30.0, takes_s=60.0, ranks=1)
    tasks = tuple(Job(id=number, at_s=40.0, takes_s=30.0) for number in range(2, 9))
    death = f.Death(at_s=50.0, who=0.0, reported_s=0.2)
    cloud = CloudSpec(boot_s=(5.0, 10.0))
    return Scenario(seed=seed, nodes=2, min=2, max=2, spare=1, cloud=cloud, jobs=(broadcast, *tasks), faults=(death,))


def waits_for_whoever_is_silent(patch: Patch) -> None:
    patch.setattr(Stragglers, "overdue", lambda self, now: [])
    patch.setattr(Stragglers, "wake_at", lambda self: None)


def has_a_hole_in_its_table(patch: Patch) -> None:
    patch.setitem(STEPS, NodePhase.NOTICED, {NodePhase.READY})


def believes_every_node(patch: Patch) -> None:
    finished = Gang.finished

    def believes(self, of, attempt, *said):
        _, given_to = self._attempts.running.get(attempt, (0, of))
        return finished(self, given_to, attempt, *said)

    patch.setattr(Gang, "finished", believes)


def blames_every_executor_that_ends(patch: Patch) -> None:
    patch.setattr(WorkerScheduler, "has_run", False)


def used_and_barren(seed: int) -> Scenario:
    """What is seldom drawn: one node after the other runs something, and can start no worker any more."""
    tasks = tuple(Job(id=number + 1, at_s=2.0 * number, takes_s=0.5) for number in range(90))
    ends = tuple(f.Barren(at_s=12.0, after=("node_ready", nth), who="newest", for_s=700.0) for nth in range(1, 6))
    cloud = CloudSpec(boot_s=(5.0, 10.0))
    return Scenario(seed=seed, nodes=1, min=1, max=1, cloud=cloud, jobs=tasks, faults=ends)


def keeps_what_is_too_many(patch: Patch) -> None:
    patch.setattr(FleetController, "_shrink", lambda self, surplus: None)


def counts_no_launch_without_an_answer(patch: Patch) -> None:
    patch.setattr(budget, "LaunchUnsure", type("Never", (), {}))


def counts_machines_from_the_answer_on(patch: Patch) -> None:
    launched = Budget.launched
    patch.setattr(
        Budget, "launched", lambda self, machine, cost, now, **options: launched(self, machine, cost, now, since=now)
    )


def knows_no_most(patch: Patch) -> None:
    made = Autoscaler.__init__

    def boundless(self, scale, **options):
        made(self, ScaleByLoad(99, scale.idle_s), **options)

    patch.setattr(Autoscaler, "__init__", boundless)


def lets_the_busy_go(patch: Patch) -> None:
    see = Autoscaler._see

    def sees_nobody_busy(self, working, now):
        return see(self, (each._replace(busy=False) for each in working), now)

    patch.setattr(Autoscaler, "_see", sees_nobody_busy)


def keeps_what_is_idle(patch: Patch) -> None:
    patch.setattr(Autoscaler, "_shrink", lambda self, needed, there, missing, now: None)


def stalls_with_a_node_lost(seed: int) -> Scenario:
    """What is seldom drawn: ranks hang, one of them is lost, and there is no other node before they have stalled."""
    job = Job(
        id=1, at_s=0.0, takes_s=5.0, ranks=1, on_loss=OnLoss.RESEND, collective=False, stall_s=10.0,
        stall_restarts=True, hangs=1,
    )  # fmt: skip
    death = f.Death(at_s=4.0, after=("generation_started", 1), who=0.9, reported_s=0.2)
    cloud = CloudSpec(boot_s=(20.0, 40.0))
    return Scenario(seed=seed, nodes=3, min=3, max=3, cloud=cloud, jobs=(job,), faults=(death,))


def queued(seed: int) -> Scenario:
    """What is drawn in one of seven: a cluster, whose jobs wait longer than a boot or a replacement may take."""
    cloud = CloudSpec(queue_s=(100.0, 900.0), boot_s=(5.0, 40.0))
    jobs = (Job(id=1, at_s=0.0, takes_s=60.0, ranks=1, retries=10), Job(id=2, at_s=0.0, takes_s=5.0, on=1))
    deaths = tuple(f.Death(at_s=10.0, after=("generation_started", 1), who=who, reported_s=0.2) for who in (0.0, 0.6))
    timeouts = {"boot_timeout_s": 120.0, "replace_timeout_s": 30.0}
    return Scenario(seed=seed, nodes=3, min=3, max=3, cloud=cloud, jobs=jobs, faults=deaths, **timeouts)  # type: ignore[arg-type]


def lets_the_boot_begin_in_the_queue(patch: Patch) -> None:
    patch.setattr(NodeActor, "receive", lambda self, message, own=NodeActor.receive: _but_queued(self, message, own))


def _but_queued(actor: NodeActor, message: NodeMessage, receive: Callable[[NodeActor, NodeMessage], None]) -> None:
    if not isinstance(message, Queued):
        receive(actor, message)


def calls_what_is_queued_late(patch: Patch) -> None:
    patch.setattr(Stragglers, "queued", lambda self, node: None)


def waits_for_no_queue(patch: Patch) -> None:
    patch.setattr(LaunchQueue, "holds", lambda self, now: False)


BY_HAND = {
    leaves_seats_to_tasks: busy_with_a_spare,
    blames_every_executor_that_ends: used_and_barren,
    leaves_ranks_that_were_to_run_again: stalls_with_a_node_lost,
    counts_stalls_as_losses: lost_after_its_stall,
    takes_the_attempt_after_a_loss_for_stalled: lost_before_its_stall_ends_it,
    lets_the_boot_begin_in_the_queue: queued,
    calls_what_is_queued_late: queued,
    waits_for_no_queue: queued,
}


@pytest.mark.parametrize(
    ("promise", "without"),
    [
        ("SIM-1", settles_twice),
        ("SIM-1", tells_each_rank_twice),
        ("SIM-2", keeps_results_of_lost_generations),
        ("SIM-2", takes_an_ending_back),
        ("SIM-2", ends_attempts_before_their_timeout),
        ("SIM-3", runs_at_most_once_again),
        ("SIM-3", counts_stalls_as_losses),
        ("SIM-3", takes_the_attempt_after_a_loss_for_stalled),
        ("SIM-4", takes_any_port),
        ("SIM-5", does_not_fence),
        ("SIM-6", sends_to_closed_nodes),
        ("SIM-7", runs_beside_the_slots),
        ("SIM-8", blames_nobody),
        ("SIM-9", forgets_what_comes_back),
        ("SIM-9", leaves_ranks_that_were_to_run_again),
        ("SIM-10", goes_on_with_fewer),
        ("SIM-11", replaces_nothing),
        ("SIM-12", terminates_nothing),
        ("SIM-13", forgets_what_it_asked_for),
        pytest.param("SIM-14", waits_for_the_death, marks=pytest.mark.nightly),
        ("SIM-14", promotes_nobody),
        pytest.param("SIM-15", never_blames_the_network, marks=pytest.mark.nightly),
        ("SIM-16", waits_out_every_lease),
        pytest.param("SIM-17", tells_nobody_who_left, marks=pytest.mark.nightly),
        ("SIM-18", leaves_connections_open),
        ("SIM-19", leaves_seats_to_tasks),
        ("SIM-20", has_a_hole_in_its_table),
        ("SIM-21", waits_for_whoever_is_silent),
        ("SIM-22", believes_every_node),
        ("SIM-23", starts_workers_for_ever),
        ("SIM-23", gives_up_at_the_first_failed_start),
        ("SIM-24", keeps_what_is_too_many),
        ("SIM-25", blames_every_executor_that_ends),
        ("SIM-26", counts_no_launch_without_an_answer),
        ("SIM-26", counts_machines_from_the_answer_on),
        ("SIM-27", knows_no_most),
        ("SIM-28", lets_the_busy_go),
        ("SIM-29", keeps_what_is_idle),
        ("SIM-30", holds_what_is_not_there),
        ("SIM-31", heeds_no_sign_of_life),
        ("SIM-31", restarts_what_has_stalled_for_ever),
        ("SIM-32", lets_the_boot_begin_in_the_queue),
        ("SIM-32", calls_what_is_queued_late),
        ("SIM-32", waits_for_no_queue),
    ],
)
def test_a_promise_falls_without_its_guard(promise: str, without: Callable[[Patch], None], monkeypatch: Patch) -> None:
    without(monkeypatch)
    fell: dict[str, int] = {}
    scenario = BY_HAND.get(without, draw)
    for seed in count():
        violation = play(scenario(seed), keep=0).violation
        if violation is not None:
            fell.setdefault(violation.rule, seed)
        if promise in fell:
            break
        assert seed < SEEDS, f"only {fell} fell"


@pytest.mark.parametrize("scenario", dict.fromkeys(BY_HAND.values()))
def test_a_scenario_of_our_own_keeps_its_promises(scenario: Callable[[int], Scenario]) -> None:
    assert [play(scenario(seed)).violation for seed in range(20)] == [None] * 20


def test_every_promise_is_tested_so() -> None:
    (mark,) = test_a_promise_falls_without_its_guard.pytestmark  # type: ignore[attr-defined]
    assert {getattr(each, "values", each)[0] for each in mark.args[1]} == set(PROMISES)


def test_the_guide_lists_every_promise() -> None:
    guide = (Path(__file__).parents[4] / "docs/guides/testing-resilience.md").read_text()
    for promise, words in PROMISES.items():
        assert f"| {promise} | {words} |" in guide
