"""STALL-1 to 6 and GANG-14: which jobs have stalled, and what follows."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.actors.fencing import Losses
from outrider.actors.interfaces import (
    AttemptId,
    AttemptSeen,
    GaveUp,
    JobId,
    NodeId,
    OnLoss,
    Order,
    Reason,
    Stall,
    Task,
    TaskId,
    Verdict,
    World,
)
from outrider.actors.stalls import ANSWER_S, AskNode, HasStalled, StallWatch

QUICK = settings(max_examples=50, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
WITHOUT_GUARD = settings(QUICK, max_examples=2_000, database=None, derandomize=True, phases=[Phase.generate])
STALL_S = 10.0


def order(attempt: int, job: int, rank: int = 0, ranks: int = 0, *, stall: Stall | None = None) -> Order:
    world = World(1, tuple(map(NodeId, range(ranks))), 1, "", 0) if ranks else None
    task = Task(TaskId(job), JobId(job), b"", None, stall=stall or Stall(STALL_S, False))
    return Order(AttemptId(attempt), task, 1, world, rank)


class StallMachine(RuleBasedStateMachine):
    """Plays tasks and nodes; knows when each attempt has given its last sign, wherever that is known."""

    make = StallWatch

    def __init__(self):
        super().__init__()
        self.watch = self.make()
        self.now = 0.0
        self.ids = 0
        self.jobs: dict[int, dict[int, tuple[int, float]]] = {}  # job -> attempt -> its node, its last sign
        self.sent: dict[int, float] = {}  # attempt -> its last line that the client has
        self.questions: list[AskNode] = []
        self.open: dict[int, set[int]] = {}  # job -> its questions that no answer, sign or time has ended
        self.signs: dict[int, int] = {}  # job -> signs since it was told of
        self.ended_at: dict[int, float] = {}

    def attempts(self):
        return [(job, attempt) for job, places in self.jobs.items() for attempt in places]

    @rule(ranks=st.integers(0, 3))
    def a_job_begins(self, ranks):
        self.ids += 1
        job = self.ids * 100
        self.jobs[job] = {}
        for rank in range(max(1, ranks)):
            self.jobs[job][job + rank] = (rank, self.now)
            self.watch.began(NodeId(rank), order(job + rank, job, rank, ranks), self.now)

    @rule(data=st.data(), line=st.booleans())
    @precondition(lambda self: self.jobs)
    def one_gives_a_sign(self, data, line):
        job, attempt = data.draw(st.sampled_from(self.attempts()))
        self.jobs[job][attempt] = (self.jobs[job][attempt][0], self.now)
        if line:
            self.sent[attempt] = self.now

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def one_ends(self, data):
        job, attempt = data.draw(st.sampled_from(self.attempts()))
        node, _ = self.jobs[job].pop(attempt)
        self.ended_at[job] = self.now
        if not self.jobs[job]:
            del self.jobs[job]
        self.watch.finished(NodeId(node), AttemptId(attempt), self.now)
        self.watch.finished(NodeId(node), AttemptId(7), self.now)

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def another_node_says_that_one_has_ended(self, data):
        job, attempt = data.draw(st.sampled_from(self.attempts()))
        self.watch.finished(NodeId(self.jobs[job][attempt][0] + 1), AttemptId(attempt), self.now)

    @rule(node=st.integers(0, 2))
    def a_node_is_lost(self, node):
        for job, places in list(self.jobs.items()):
            for attempt in [each for each, (of, _) in places.items() if of == node]:
                del places[attempt]
                self.ended_at[job] = self.now
            if not places:
                del self.jobs[job]
        self.watch.lost(NodeId(node), self.now)

    @rule(data=st.data(), whole=st.booleans())
    @precondition(lambda self: self.questions)
    def a_node_answers(self, data, whole):
        self.answer(data.draw(st.sampled_from(self.questions)), whole)

    @rule(sign=st.booleans())
    def all_are_silent_and_all_nodes_answer(self, sign):
        self.time_passes(STALL_S)
        if sign and self.jobs:  # which the nodes know alone
            job, attempt = self.attempts()[0]
            self.jobs[job][attempt] = (self.jobs[job][attempt][0], self.now)
        for asked in list(self.questions):
            self.answer(asked, whole=True)

    def answer(self, asked, whole):
        self.questions.remove(asked)
        seen = {
            AttemptId(attempt): AttemptSeen(f"stack of {attempt}", self.now - max(at, self.sent.get(attempt, 0.0)))
            for places in self.jobs.values()
            for attempt, (node, at) in places.items()
            if node == asked.node
        }
        if not whole:
            seen = dict(list(seen.items())[1:])
        self.watch.answered(asked.node, asked.question, seen, self.now)
        self.carry_out(told_by=asked)

    @rule(s=st.sampled_from([0.5, 3.0, STALL_S, 60.0]))
    def time_passes(self, s):
        end = self.now + s
        while (at := self.watch.wake_at()) is not None and at <= end:
            self.now = max(self.now, at)
            self.watch.tick(self.now, self.heard)
            self.carry_out(told_by=None)
        self.now = end

    def heard(self, node, attempt):
        return None if attempt not in self.sent else self.now - self.sent[attempt]

    def carry_out(self, told_by):
        effects, self.watch.effects = self.watch.effects, []
        for effect in effects:
            if isinstance(effect, AskNode):
                assert effect.quiet_s == STALL_S
                self.questions.append(effect)
                self.questions = self.questions[-12:]
                continue
            assert isinstance(effect, HasStalled)
            assert told_by is not None, "STALL-3: nobody was seen"
            places = self.jobs[effect.job]
            seen = {attempt: sight.text for attempt, sight in effect.seen.items()}
            assert seen == {each: f"stack of {each}" for each in places}, "STALL-3: an attempt was not seen"
            last = max(max(at, self.sent.get(each, 0.0)) for each, (_, at) in places.items())
            assert self.now - last >= STALL_S - 1e-6, "STALL-1: it has given a sign"
            key = (effect.job, last, self.ended_at.get(effect.job))
            assert key not in self.told, "STALL-2: told twice without a sign in between"
            self.told.add(key)
            assert effect.quiet_s >= STALL_S - 1e-6

    @property
    def told(self):
        return self.__dict__.setdefault("_told", set())

    @invariant()
    def what_runs_is_watched(self):
        watched = {attempt for job in self.watch.jobs.values() for attempt in job.places}
        assert watched == {attempt for _, attempt in self.attempts()}, "STALL-6: another attempt is over than has ended"
        assert bool(self.watch.jobs) == bool(self.jobs)
        at = self.watch.wake_at()
        if self.jobs:
            assert at is not None, "STALL-5: nobody looks at it any more"
            assert at <= self.now + max(STALL_S, ANSWER_S) + 1e-6, "STALL-5: it is looked at too late"
            due = (job.question_at + ANSWER_S if job.due_at is None else job.due_at for job in self.watch.jobs.values())
            assert at <= min(due), "STALL-5: one is due before"
        open_questions = [job.question for job in self.watch.jobs.values() if job.question]
        assert len({*open_questions}) == len(open_questions)
        for job in self.watch.jobs.values():
            assert (job.due_at is None) == bool(job.question), "STALL-4: a question is open, and another one is due"
            assert bool(job.question) or not job.waiting, "STALL-4: an answer to no question is waited for"


TestStalls = StallMachine.TestCase
TestStalls.settings = QUICK


class BelievesTheFirst(StallWatch):
    def _judge(self, name, job, quiet_s, now):
        job.seen = {attempt: AttemptSeen("", quiet_s) for attempt in job.places} | job.seen
        super()._judge(name, job, quiet_s, now)


class HeedsNoSign(StallWatch):
    def answered(self, node, question, seen, now):
        super().answered(node, question, {each: AttemptSeen(sight.text, 1e9) for each, sight in seen.items()}, now)


class TellsAgain(StallWatch):
    def _judge(self, name, job, quiet_s, now):
        job.is_reported = False
        super()._judge(name, job, quiet_s, now)


class AsksTwice(StallWatch):
    def _ask(self, job, now):
        super()._ask(job, now)
        job.due_at = now + 1.0


class BelievesAnyNode(StallWatch):
    def finished(self, node, attempt, now):
        if (job := self._of.get(attempt)) is not None:
            node = self.jobs[job].places[attempt].node
        super().finished(node, attempt, now)


class ForgetsToLook(StallWatch):
    def wake_at(self):
        times = [job.due_at for job in self.jobs.values() if job.due_at is not None]
        return min(times, default=None)


@pytest.mark.parametrize(
    ("broken", "which"),
    [
        (HeedsNoSign, "STALL-1"),
        (TellsAgain, "STALL-2"),
        (BelievesTheFirst, "STALL-3"),
        (AsksTwice, "STALL-4"),
        (ForgetsToLook, "STALL-5"),
        (BelievesAnyNode, "STALL-6"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken, which):
    class Machine(StallMachine):
        make = broken

    with pytest.raises(AssertionError, match=which):
        run_state_machine_as_test(Machine, settings=WITHOUT_GUARD)


# --- stories on a pool ------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.anyio


def stacked(pool, quiet_s, texts=None):
    """All nodes answer that what runs there has been silent for so long."""
    for node in pool.site.nodes.values():
        node.quiet_s, node.texts = quiet_s, texts or {}


async def test_a_hung_broadcast_is_told_of_with_its_stuck_rank(rig, work):
    waits = '  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 1 in all_reduce'
    user = '  File "/home/u/train.py", line 7 in train'
    async with rig(desired=3) as pool:
        await pool.ready()
        stacked(pool, 20.0, {0: f"{waits}\n{user}", 1: user, 2: f"{waits}\n{user}"})
        job = pool.broadcast(work(hangs=True), stall=Stall(5.0, False, "train"))
        await pool.until(lambda: pool.seen.all("stalled"), within_s=6)
        await anyio.sleep(60)
        (told,) = pool.seen.all("stalled")
        assert (told["job"], told["generation"], told["ranks"], told["rank"]) == (job, 1, (0, 1, 2), 1)
        assert (told["function"], told["restart"], told["quiet_s"]) == ("train", False, 20.0)
        assert [each["rank"] for each in pool.seen.all("stack_taken")] == [0, 1, 2]
        assert job not in pool.all_endings, "it goes on"


async def test_a_broadcast_that_gives_signs_is_left_alone(rig, work):
    async with rig(desired=3) as pool:
        await pool.ready()
        stacked(pool, 2.0)
        job = pool.broadcast(work(takes_s=100.0), stall=Stall(5.0, True))
        await pool.settled(job)
        assert pool.seen.all("stalled") == []


async def test_a_line_that_was_sent_here_saves_the_question(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        pool.site.nodes[0].heard_s = 1.0
        job = pool.submit(work(takes_s=60.0), stall=Stall(5.0, False))
        await pool.settled(job)
        assert pool.site.nodes[0].looked == []
        assert pool.seen.all("stalled") == []


@pytest.mark.parametrize("on_loss", [OnLoss.RESTART, OnLoss.RESEND, OnLoss.FAIL])
async def test_a_hung_broadcast_is_restarted_as_often_as_its_retries_say(rig, work, on_loss):
    async with rig(desired=2) as pool:
        await pool.ready()
        stacked(pool, 9.0)
        job = pool.broadcast(work(hangs=True), stall=Stall(5.0, True), restarts=2, on_loss=on_loss)
        await pool.settled(job)
        endings, generation = pool.all_endings[job]
        assert generation == 3
        assert [each.reason for each in endings] == [Reason.STALLED] * 2
        assert [each["restart"] for each in pool.seen.all("stalled")] == [True, True, False]
        assert len(pool.seen.all("generation_lost")) == 2


async def test_a_broadcast_that_runs_after_a_stall_returns(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()
        stacked(pool, 9.0)
        job = pool.broadcast(lambda order: work(hangs=order.number == 1), stall=Stall(5.0, True))
        await pool.settled(job)
        endings, generation = pool.all_endings[job]
        assert (generation, [each.verdict for each in endings]) == (2, [Verdict.RETURNED] * 2)


async def test_a_hung_task_is_restarted_as_often_as_its_retries_say(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        stacked(pool, 9.0)
        once = pool.submit(lambda order: work(hangs=order.number == 1), stall=Stall(5.0, True), retries=1)
        await pool.settled(once)
        assert (pool.endings[once].verdict, pool.endings[once].number) == (Verdict.RETURNED, 2)
        always = pool.submit(work(hangs=True), stall=Stall(5.0, True), retries=1)
        await pool.settled(always)
        ending = pool.endings[always]
        assert isinstance(ending, GaveUp)
        assert ending.reason is Reason.STALLED
        state = await pool.state()
        await pool.until(lambda: not pool.site.nodes[0].running)
        assert state.queued == 0


async def test_the_attempt_after_a_stalled_one_whose_node_was_lost_has_not_stalled(rig, work):
    """The node was lost before the stalled attempt had ended: what the next one raises is the task's end."""
    async with rig(desired=1) as pool:
        await pool.ready()
        stacked(pool, 9.0)
        pool.site.deaf = True
        raises = work(verdict=Verdict.RAISED)
        job = pool.submit(lambda order: work(hangs=True) if order.number == 1 else raises, stall=Stall(5.0, True))
        await pool.until(lambda: pool.seen.all("stalled"))
        pool.site.nodes[0].die()
        await pool.settled(job)
        assert (pool.endings[job].verdict, pool.endings[job].number) == (Verdict.RAISED, 2)


async def test_a_stall_leaves_a_task_its_retries_for_losses(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        stacked(pool, 9.0)
        hangs = lambda order: work(hangs=order.number == 1, takes_s=3.0)  # noqa: E731
        job = pool.submit(hangs, stall=Stall(5.0, True), retries=1)
        await pool.until(lambda: len(pool.site.ran) == 2)
        pool.site.nodes[0].die()
        await pool.settled(job)
        assert (pool.endings[job].verdict, pool.endings[job].number) == (Verdict.RETURNED, 3)


async def test_what_is_at_most_once_is_told_of_and_goes_on(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        stacked(pool, 9.0)
        pool.submit(work(hangs=True), stall=Stall(5.0, True), retries=0, at_most_once=True)
        await pool.until(lambda: pool.seen.all("stalled"))
        await anyio.sleep(30)
        (told,) = pool.seen.all("stalled")
        assert told["restart"] is False
        assert pool.endings == {}
        assert pool.site.nodes[0].killed == []


async def test_a_task_that_waits_for_its_slot_has_not_stalled(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        stacked(pool, 0.0)
        first = pool.submit(work(takes_s=60.0))
        second = pool.submit(work(takes_s=1.0), stall=Stall(5.0, True))
        await pool.settled(first, second)
        assert pool.seen.all("stalled") == []
        assert pool.endings[second].number == 1


class CountsNoStall(Losses):
    def count(self):
        before = self.failures
        super().count()
        self.stalls, self.failures = 0, before


async def test_gang_14_falls_without_its_guard(rig, work, monkeypatch):
    """GANG-14: a broadcast whose stalls nobody counts runs again for ever."""
    monkeypatch.setattr("outrider.actors.generations.Losses", CountsNoStall)
    async with rig(desired=1) as pool:
        await pool.ready()
        stacked(pool, 9.0)
        job = pool.broadcast(work(hangs=True), stall=Stall(5.0, True), restarts=2)
        await anyio.sleep(200)
        assert job not in pool.all_endings
        assert len(pool.site.ran) > 3
