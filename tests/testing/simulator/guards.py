"""Each function takes one guard out of the engine, and is named after what the engine then does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outrider.actors import node_lives
from outrider.actors.entries import Entry
from outrider.actors.failure_detector import FailureDetector
from outrider.actors.fencing import Losses
from outrider.actors.fleet_controller import STEPS, Autoscaler, FleetController, NodePhase
from outrider.actors.generations import Gang
from outrider.actors.generations import Phase as GangPhase
from outrider.actors.interfaces import GaveUp, ScaleByLoad, Settled
from outrider.actors.ledger import Expiries, Ledger
from outrider.actors.membership import Membership
from outrider.actors.messages import NodeMessage, Queued
from outrider.actors.node_lives import NodeActor, NodeLives
from outrider.actors.placement import Placement
from outrider.actors.pool import PoolActor
from outrider.actors.stalls import StallWatch
from outrider.actors.stragglers import LaunchQueue, Stragglers
from outrider.engine.client import budget
from outrider.engine.client.budget import Budget
from outrider.engine.node.freeports import PortBook
from outrider.engine.node.slots import Attempt, StartFailures
from outrider.engine.node.worker_scheduler import WorkerScheduler
from outrider.engine.objects.lineage import Lineage, Need, State
from outrider.engine.objects.node_objects import NodeObjects
from outrider.engine.objects.remaking import Run, WaitingJob
from outrider.engine.serialization.stored_objects import StoredObject
from outrider.testing.simulator.machines import Daemon

Patch = pytest.MonkeyPatch


def compares_no_ports(patch: Patch) -> None:
    patch.setattr(Membership, "compare_ports", lambda *_: None)


def counts_no_attempt_in_the_queue(patch: Patch) -> None:
    patch.setattr(
        WorkerScheduler, "attempts", lambda self: (key for key, each in self._attempts.items() if each.slot is not None)
    )


def keeps_ports_of_ended_ranks(patch: Patch) -> None:
    patch.setattr(Daemon, "_over", lambda *_: None)


def knows_no_deadline(patch: Patch) -> None:
    cancel = PoolActor._cancel
    patch.setattr(
        PoolActor, "_cancel", lambda self, message, now: message.limit_s is None and cancel(self, message, now)
    )


def asks_for_ports_once(patch: Patch) -> None:
    """A node that offers no more ports when few are left, as one that has missed its client's count."""
    patch.setattr(PortBook, "is_short", False)
    patch.setattr(Membership, "compare_ports", lambda *_: None)


def holds_what_is_not_there(patch: Patch) -> None:
    patch.setattr(Placement, "has_amounts", lambda *_, **__: True)


def heeds_no_sign_of_life(patch: Patch) -> None:
    answered = StallWatch.answered

    def deaf(self, node, question, seen, now):
        answered(self, node, question, {each: sight._replace(quiet_s=1e9) for each, sight in seen.items()}, now)

    patch.setattr(StallWatch, "answered", deaf)


def restarts_what_has_stalled_for_ever(patch: Patch) -> None:
    patch.setattr(Entry, "may_restart", lambda self: True)


def forgets_stalls_after_a_loss(patch: Patch) -> None:
    lost = Entry.node_lost

    def node_lost(self, *args, **options):
        self.stalls = 0
        return lost(self, *args, **options)

    patch.setattr(Entry, "node_lost", node_lost)


def forgets_a_broadcast_stall_after_a_loss(patch: Patch) -> None:
    add = Losses.add

    def forgetful_add(self, *args):
        self.stalls -= self.stalled
        self.stalled = False
        add(self, *args)

    patch.setattr(Losses, "add", forgetful_add)


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


def ends_attempts_before_their_timeout(patch: Patch) -> None:
    due = Attempt.times_out_at.fget
    assert due is not None

    def early(self):
        at = due(self)
        return None if at is None else at - 0.1

    patch.setattr(Attempt, "times_out_at", property(early))


def leaves_ranks_that_were_to_run_again(patch: Patch) -> None:
    drop = Gang._cancel_reruns
    patch.setattr(Gang, "_cancel_reruns", lambda self: [] if self.phase is GangPhase.FENCING else drop(self))


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
    begin, fence, finished = Gang._begin_generation, Gang._fence_generation, Gang.finished

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

    patch.setattr(Gang, "_begin_generation", begins)
    patch.setattr(Gang, "_fence_generation", fences)
    patch.setattr(Gang, "finished", ends)


def runs_at_most_once_again(patch: Patch) -> None:
    survives = Ledger._survives

    def does(self, entry, *args, **options):
        entry.task = entry.task._replace(at_most_once=False, retries=entry.task.retries + 1)
        return survives(self, entry, *args, **options)

    patch.setattr(Ledger, "_survives", does)


def takes_any_port(patch: Patch) -> None:
    begin = Gang._begin_generation
    patch.setattr(
        Gang,
        "_begin_generation",
        lambda self, given, now: begin(self, [tuple(range(9, 9 + len(p))) for p in given], now),
    )


def does_not_fence(patch: Patch) -> None:
    fence = Gang._fence_generation

    def fences(self, node_, now):
        fence(self, node_, now)
        if self.phase is GangPhase.FENCING:
            self._generation_fenced(now)

    patch.setattr(Gang, "_fence_generation", fences)


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
    patch.setattr(node_lives, "CLOSE_S", 0.0)


def leaves_seats_to_tasks(patch: Patch) -> None:
    patch.setattr(Gang, "_claim_seats_ahead", lambda self: None)


def waits_for_whoever_is_silent(patch: Patch) -> None:
    patch.setattr(Stragglers, "overdue", lambda self, now: [])
    patch.setattr(Stragglers, "not_before", lambda self: None)


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


def lets_the_boot_begin_in_the_queue(patch: Patch) -> None:
    patch.setattr(NodeActor, "receive", lambda self, message, own=NodeActor.receive: _but_queued(self, message, own))


def _but_queued(actor: NodeActor, message: NodeMessage, receive: Callable[[NodeActor, NodeMessage], None]) -> None:
    if not isinstance(message, Queued):
        receive(actor, message)


def calls_what_is_queued_late(patch: Patch) -> None:
    patch.setattr(Stragglers, "queued", lambda self, node: None)


def waits_for_no_queue(patch: Patch) -> None:
    patch.setattr(LaunchQueue, "holds", lambda self, now: False)


def counts_no_late_machine_that_is_being_ended(patch: Patch) -> None:
    ended = Stragglers.ended

    def frees_its_place(self, node):
        ended(self, node)
        self.gone(node)

    patch.setattr(Stragglers, "ended", frees_its_place)


def takes_a_wait_for_over_that_ended_before_the_fence(patch: Patch) -> None:
    lacks = Gang._candidate_gone

    def waits_no_longer(self, gone, now, *, had_seat):
        before = self._replacement_wait.ends_at, self._replacement_wait.over_early
        lacks(self, gone, now, had_seat=had_seat)
        if self.phase is GangPhase.FENCING:
            self._replacement_wait.ends_at, self._replacement_wait.over_early = before

    patch.setattr(Gang, "_candidate_gone", waits_no_longer)


def lets_what_is_given_up_run_on(patch: Patch) -> None:
    patch.setattr(Ledger, "_give_up", lambda self, entry, ending: self._end(entry, GaveUp(ending.reason, entry.losses)))


def knows_no_timeout(patch: Patch) -> None:
    patch.setattr(Attempt, "times_out_at", None)


def knows_no_queue_timeout(patch: Patch) -> None:
    patch.setattr(Expiries, "take", lambda self, now: [])
    patch.setattr(Expiries, "first_at", lambda self: None)


def gives_up_what_it_may_make_again(patch: Patch) -> None:
    patch.setattr(Lineage, "need", lambda self, origin: Need.NOTHING if origin.state is State.THERE else Need.GIVE_UP)


def mixes_the_sizes_of_two_makings(patch: Patch) -> None:
    is_now = StoredObject.is_now

    def keeps_sizes(self, made):
        sizes = self.at.sizes
        is_now(self, made)
        made.at.sizes = sizes or made.at.sizes

    patch.setattr(StoredObject, "is_now", keeps_sizes)


def makes_a_result_again_for_each_who_asks(patch: Patch) -> None:
    need = Lineage.need

    def each(self, origin):
        if origin.state is State.RUNNING:
            origin.state = State.GONE
        return need(self, origin)

    patch.setattr(Lineage, "need", each)


def counts_no_remake(patch: Patch) -> None:
    need = Lineage.need

    def uncounted(self, origin):
        found = need(self, origin)
        origin.left += found is Need.RUN
        return found

    patch.setattr(Lineage, "need", uncounted)


def makes_again_what_nobody_waits_for(patch: Patch) -> None:
    begins = Run.__init__

    def waited_for(self, task):
        begins(self, task)
        self.waiters = 1

    patch.setattr(Run, "__init__", waited_for)


def keeps_what_is_let_go(patch: Patch) -> None:
    patch.setattr(NodeObjects, "let_go", lambda *_: None)


def remembers_calls_for_ever(patch: Patch) -> None:
    patch.setattr(Lineage, "_forget_unneeded", lambda *_: None)


def forgets_whoever_waits_for_a_result(patch: Patch) -> None:
    async def there(self):
        await self._remaking.recompute_lost(self._objects)

    patch.setattr(WaitingJob, "_send_when_available", there)
