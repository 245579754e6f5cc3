"""LEDGER-1 to 19 hold whatever happens, and each of them falls when its guard is taken away."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outrider.actors import entries as retries_module
from outrider.actors import placement as line_module
from outrider.actors import placement as placement_module
from outrider.actors.amounts import NOTHING, Amounts
from outrider.actors.entries import Entry
from outrider.actors.interfaces import (
    AttemptId,
    Finished,
    GaveUp,
    JobId,
    NodeId,
    Reason,
    Returned,
    Settled,
    Started,
    Task,
    TaskId,
    Verdict,
)
from outrider.actors.ledger import Ledger
from outrider.actors.membership import Roster
from outrider.actors.placement import Claim, Placement, WaitingLine

QUICK = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
WITHOUT_GUARD = settings(QUICK, max_examples=20_000, database=None, derandomize=True, phases=[Phase.generate])
SHORT, LONG = b"short", b"long"
BUSY_S = {SHORT: 0.0001, LONG: 1.0}
HAVE = (Amounts(4000, 8, 1), Amounts(2000, 8), Amounts(4000, 2))  # nodes, in turn
NEED = (Amounts(1000, 2), Amounts(2000, 4), Amounts(4000), Amounts(0, 3, 1))


@pytest.fixture(autouse=True)
def _overtaken_soon(monkeypatch):
    monkeypatch.setattr(line_module, "OVERTAKES", 2)


class LedgerMachine(RuleBasedStateMachine):
    """Plays users, nodes and the clock, and keeps its own books."""

    make = Ledger

    @initialize(slots=st.integers(1, 3), nodes=st.integers(0, 2), quarantine=st.sampled_from([2, 4]))
    def begin(self, slots, nodes, quarantine):
        self.roster = Roster()
        self.slots = slots
        self.quarantine = quarantine
        self.ledger = self.make(self.roster, slots=slots, attempts=count(1), quarantine_after=quarantine)
        self.now = 0.0
        self.jobs = count(1)
        self.ids = count(1)
        self.tasks: dict[int, Task] = {}
        self.queue: list[int] = []  # unpinned tasks that wait, in order
        self.pinned: dict[int, list[int]] = {}
        self.nodes: dict[NodeId, dict[AttemptId, int]] = {}  # what was sent there and not reported back
        self.sent: list[tuple[NodeId, AttemptId]] = []
        self.open: set[NodeId] = set()
        self.moved_at: dict[NodeId, float] = {}  # when something last ended or began there
        self.seats: Counter[NodeId] = Counter()
        self.begun: set[AttemptId] = set()
        self.ended: dict[int, object] = {}
        self.known_short = False
        self.lost_under: Counter[int] = Counter()
        self.charged: Counter[int] = Counter()  # losses that count, by task
        self.blamed: Counter[int] = Counter()  # those of them that nobody had announced, in a row
        self.sent_for: Counter[int] = Counter()  # attempts that were not given back, by task
        self.deadline: dict[int, float] = {}
        self.recalled: dict[NodeId, tuple[AttemptId, ...]] = {}  # not answered yet
        self.ever_recalled: set[AttemptId] = set()
        self.claims: list[Claim] = []
        self.failed: Counter[int] = Counter()  # attempts that did, and are to be followed by another
        self.failed_for_good: set[int] = set()
        self.line: list[int] = []  # tasks that need amounts and wait, in the order of submission
        self.has: dict[NodeId, Amounts] = {}
        self.seated: dict[NodeId, dict[int, Amounts]] = {}  # what broadcasts hold, by job
        self.first: int | None = None  # in line
        self.overtaken: Counter[int] = Counter()  # while it was the first
        self.saved: set[NodeId] = set()  # for it
        self.ranks = 2
        self.ledger.limit(self.ranks)
        for _ in range(nodes):
            self.node_joins()

    # what happens

    @rule(
        function=st.sampled_from([SHORT, SHORT, LONG]),
        on=st.sampled_from([None, None, None, 0, 1]),
        retries=st.integers(0, 2),
        once=st.sampled_from([False, False, False, True]),
        timeout=st.sampled_from([None, None, 1.0]),
        restarts=st.sampled_from([0, 0, 1, 2]),
        many=st.integers(1, 6),
        needs=st.sampled_from([None, None, None, *NEED]),
        near=st.sampled_from([None, None, 1, 2, 3]),
    )
    def submit(self, *, function, on, retries, once, timeout, restarts, many, needs=None, near=None):
        for _ in range(many):
            job = next(self.jobs)
            often = (0, 0) if once else (retries, restarts)
            task = Task(TaskId(job), JobId(job), function, None, on, often[0], once, timeout, often[1], needs)
            if near is not None:
                task = task._replace(near=lambda: NodeId(near))
            self.tasks[job] = task
            self.wait(job, front=False)
            self.ledger.submit(task, lambda ending, job=job: self.settle(job, ending), self.now)
            self.act()

    @rule(many=st.integers(3, 9))
    def a_burst_of_short_tasks(self, many):
        self.submit(function=SHORT, on=None, retries=2, once=False, timeout=None, restarts=0, many=many)

    @rule()
    @precondition(lambda self: any(self.nodes.values()))
    def short_tasks_prove_short(self):
        """Every node's first attempt, where it is a short one, returns."""
        for node, held in self.nodes.items():
            attempt, job = next(iter(held.items()), (None, 0))
            if attempt is not None and self.tasks[job].function == SHORT:
                self.finish(node, 1, Verdict.RETURNED)

    @rule()
    def node_joins(self):
        node = NodeId(next(self.ids))
        self.nodes[node] = {}
        self.moved_at[node] = self.now
        self.open.add(node)
        self.has[node] = HAVE[node % len(HAVE)]
        self.seated[node] = {}
        self.roster.join(node)
        self.ledger.node_ready(node, self.now, self.has[node])
        self.act()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), kind=st.sampled_from(["noticed", "draining", "paused"]))
    def node_closes(self, data, kind):
        node = self.some(data, self.open)
        if node is not None:
            self.open.discard(node)
            if kind != "paused":
                self.roster.leave(node)
            self.ledger.node_closed(node, self.now, noticed=kind == "noticed", recall=kind != "paused")
            self.act()

    @precondition(lambda self: self.nodes.keys() - self.open)
    @rule(data=st.data())
    def node_reopens(self, data):
        node = self.some(data, self.nodes.keys() - self.open)
        if node is not None:
            self.open.add(node)
            self.roster.join(node)
            self.ledger.node_ready(node, self.now)
            self.act()

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), announced=st.booleans())
    def node_is_lost(self, data, announced):
        node = self.some(data, self.nodes)
        if node is not None:
            self.lose(node, announced=announced)

    @precondition(lambda self: self.open)
    @rule(times=st.integers(2, 4))
    def nodes_are_lost_in_a_row(self, times):
        """Without a notice, each under what the one before it left."""
        for _ in range(times):
            self.lose(min(self.nodes), announced=False)
            self.node_joins()

    def lose(self, node, *, announced):
        held = self.nodes.pop(node)
        self.open.discard(node)
        self.roster.leave(node)
        self.seats.pop(node, None)
        del self.seated[node]
        self.recalled.pop(node, None)
        back = []
        for position, (attempt, job) in enumerate(held.items()):
            if job in self.ended:
                continue
            self.lost_under[job] += 1
            ran = position < self.slots or attempt in self.begun or self.tasks[job].at_most_once
            self.charged[job] += 1
            if ran:
                self.blamed[job] = 0 if announced else self.blamed[job] + 1
            may_run = not self.tasks[job].at_most_once and self.charged[job] <= self.tasks[job].retries
            poison = self.blamed[job] >= self.quarantine
            if not ran or (may_run and not poison):
                back.append(job)
            else:
                self.tasks_over.add(job)
        self.come_back(back)
        self.ledger.node_lost(node, "gone", self.now, announced=announced)
        self.act()

    @precondition(lambda self: any(self.nodes.values()))
    @rule(
        data=st.data(),
        verdict=st.sampled_from([*[Verdict.RETURNED] * 4, Verdict.RAISED, Verdict.DIED, Verdict.TIMED_OUT]),
        many=st.integers(1, 8),
    )
    def attempts_finish(self, data, verdict, many):
        node = self.some(data, [node for node, held in self.nodes.items() if held])
        self.finish(node, many, verdict)

    @precondition(lambda self: any(self.nodes.values()))
    @rule(data=st.data(), verdict=st.sampled_from([Verdict.RAISED, Verdict.DIED]), times=st.integers(2, 4))
    def whatever_runs_fails(self, data, verdict, times):
        node = self.some(data, [node for node, held in self.nodes.items() if held])
        for _ in range(times):
            if node in self.nodes:
                self.finish(node, 1, verdict)

    @precondition(lambda self: not self.claims and any(self.nodes[node] for node in self.open))
    @rule(data=st.data())
    def a_node_closes_in_the_step_that_gave_it_work(self, data):
        node = self.some(data, [node for node in self.open if self.nodes[node]])
        if node is not None:
            reports = self.finished(node, 1, Verdict.RETURNED)
            self.open.discard(node)
            self.roster.leave(node)
            self.ledger.received(node, reports, self.now)
            self.ledger.node_closed(node, self.now, noticed=True)
            self.act()

    def finish(self, node, many, verdict):
        self.report(node, *self.finished(node, many, verdict))

    def finished(self, node, many, verdict):
        reports, back = [], []
        for attempt, job in list(self.nodes[node].items())[:many]:
            del self.nodes[node][attempt]
            self.moved_at[node] = self.now
            function = self.tasks[job].function
            if job not in self.ended:
                own = verdict in {Verdict.RAISED, Verdict.DIED}
                if own and self.failed[job] < self.tasks[job].max_restarts:
                    self.failed[job] += 1
                    self.blamed[job] = 0
                    back.append(job)
                else:
                    self.tasks_over.add(job)
                    self.failed_for_good |= {job} if own else set()
                self.known_short |= function == SHORT and verdict is Verdict.RETURNED
            reports.append(Finished(attempt, verdict, "outcome", BUSY_S[function]))
        self.come_back(back)
        return reports

    @precondition(lambda self: self.nodes and self.sent)
    @rule(data=st.data())
    def something_stale_is_reported(self, data):
        known = [(node, attempt) for node, attempt in self.sent if attempt not in self.nodes.get(node, ())]
        if known and self.nodes:
            _, attempt = data.draw(st.sampled_from(known))
            node = data.draw(st.sampled_from(sorted(self.nodes)))
            kind = data.draw(st.sampled_from(["finished", "started", "returned"]))
            self.report_of(kind, node, attempt)

    @precondition(lambda self: any(self.nodes.values()) and len(self.nodes) > 1)
    @rule(data=st.data(), kind=st.sampled_from(["finished", "started", "returned"]))
    def a_node_reports_of_another_nodes_attempt(self, data, kind):
        given_to = data.draw(st.sampled_from(sorted(node for node, held in self.nodes.items() if held)))
        attempt = data.draw(st.sampled_from(sorted(self.nodes[given_to])))
        node = data.draw(st.sampled_from(sorted(self.nodes.keys() - {given_to})))
        self.report_of(kind, node, attempt)

    def report_of(self, kind, node, attempt):
        if kind == "finished":
            self.report(node, Finished(attempt, Verdict.RETURNED, "stale", 0.5))
        elif kind == "started":
            self.report(node, Started(attempt))
        else:
            self.report(node, Returned((attempt,)))

    @precondition(lambda self: any(self.nodes.values()))
    @rule(data=st.data())
    def an_attempt_comes_back_that_nobody_recalled(self, data):
        node = data.draw(st.sampled_from(sorted(node for node, held in self.nodes.items() if held)))
        attempt = data.draw(st.sampled_from(sorted(self.nodes[node])))
        if attempt not in self.ever_recalled:
            self.report(node, Returned((attempt,)))

    @precondition(lambda self: any(self.nodes.values()))
    @rule(data=st.data())
    def an_attempt_starts(self, data):
        node = self.some(data, [node for node, held in self.nodes.items() if held])
        if node is not None:
            attempt = next(iter(self.nodes[node]))
            self.begun.add(attempt)
            self.deadline.pop(self.nodes[node][attempt], None)
            self.report(node, Started(attempt))

    @precondition(lambda self: self.recalled)
    @rule(data=st.data(), some=st.booleans())
    def recalled_attempts_come_back(self, data, some):
        node = self.some(data, self.recalled)
        if node is None:
            return
        asked = self.recalled.pop(node)
        back = [a for a in asked if a in self.nodes[node] and a not in self.begun][int(some) :]
        jobs = [self.nodes[node].pop(attempt) for attempt in back]
        for job in jobs:
            self.sent_for[job] -= 1
        self.come_back([job for job in jobs if job not in self.ended])
        self.report(node, Returned(tuple(back)))

    @precondition(lambda self: self.tasks.keys() - self.ended.keys())
    @rule(data=st.data())
    def cancel(self, data):
        job = self.some(data, self.tasks.keys() - self.ended.keys())
        if job is not None:
            self.stop_waiting(job)
            self.tasks_over.add(job)
            assert self.ledger.cancel(JobId(job))
            self.act()

    @rule(ranks=st.integers(1, 2))
    def there_are_to_be_other_nodes(self, ranks):
        self.ranks = ranks
        for rank in [rank for rank in (0, 1, *self.pinned) if rank >= ranks]:
            self.no_such_rank(rank)
        self.ledger.limit(ranks)
        self.act()

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.7]))
    def time_passes(self, seconds):
        self.now += seconds
        for job, at in list(self.deadline.items()):
            if at <= self.now:
                self.stop_waiting(job)
                self.tasks_over.add(job)
        self.ledger.tick(self.now)
        self.act()

    @rule(least=st.integers(1, 3), every=st.booleans(), again=st.booleans(), needs=st.sampled_from([None, *NEED]))
    @precondition(lambda self: len(self.claims) < 2)
    def a_broadcast_wants_seats(self, least, every, again, needs):
        claim = Claim(JobId(next(self.jobs)), least=least, every=every, again=again, needs=needs)
        self.claims.append(claim)
        self.claims.sort(key=lambda claim: (not claim.again, claim.job))
        self.ledger.claim(claim, self.now)
        self.act()

    @precondition(lambda self: any(self.seats.values()))
    @rule(data=st.data())
    def a_seat_is_free_again(self, data):
        node = self.some(data, [node for node, seats in self.seats.items() if seats])
        if node is not None:
            job = data.draw(st.sampled_from(sorted(self.seated[node])))
            self.seats[node] -= 1
            del self.seated[node][job]
            self.moved_at[node] = self.now
            self.ledger.unseat(node, JobId(job), self.now)
            self.act()

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def a_claim_is_withdrawn(self, data):
        if self.claims:
            claim = data.draw(st.sampled_from(self.claims))
            self.claims.remove(claim)
            self.ledger.withdraw(claim.job, self.now)
            self.act()

    def teardown(self):
        if hasattr(self, "ledger") and sys.exc_info()[0] is None:
            self.tasks_over |= self.tasks.keys()
            self.queue, self.pinned, self.line = [], {}, []
            self.ledger.close()
            self.act()
            assert self.ended.keys() == self.tasks.keys(), "LEDGER-2: a task was forgotten"

    # the books

    tasks_over: set[int]

    def __init__(self):
        super().__init__()
        self.tasks_over = set()

    def some(self, data, of):
        of = sorted(of)
        return data.draw(st.sampled_from(of)) if of else None

    def report(self, node, *reports):
        self.ledger.received(node, reports, self.now)
        self.act()

    def no_such_rank(self, rank):
        for job in [*self.pinned.pop(rank, ()), *(job for job in self.line if self.tasks[job].on == rank)]:
            self.line = [each for each in self.line if each != job]
            self.tasks_over.add(job)
            self.deadline.pop(job, None)

    def wait(self, job, *, front):
        task = self.tasks[job]
        if task.on is not None and task.on >= self.ranks:
            self.tasks_over.add(job)
            return
        if task.needs is not None:
            self.line = sorted((*self.line, job))
        else:
            line = self.queue if task.on is None else self.pinned.setdefault(task.on, [])
            line.insert(0 if front else len(line), job)
        if task.queue_timeout_s is not None and job not in self.deadline:
            self.deadline[job] = self.now + task.queue_timeout_s

    def come_back(self, jobs):
        for job in reversed(jobs):
            self.wait(job, front=True)

    def stop_waiting(self, job):
        self.deadline.pop(job, None)
        for line in (self.queue, self.line, *self.pinned.values()):
            if job in line:
                line.remove(job)

    def settle(self, job, ending):
        assert job not in self.ended, "LEDGER-1: a task ended twice"
        if isinstance(ending, Settled) and ending.verdict in {Verdict.RAISED, Verdict.DIED}:
            assert job in self.tasks_over, "LEDGER-13: it was to run again"
        assert job in self.tasks_over, f"LEDGER-6: ended by {ending}, and nothing had ended it"
        if isinstance(ending, Settled):
            assert ending.outcome != "stale", "LEDGER-6: a stale report ended a task"
        elif ending.reason is Reason.QUARANTINED:
            every = self.blamed[job] == self.sent_for[job] > 1
            assert every or self.blamed[job] >= self.quarantine, "LEDGER-5: it did not take its nodes down"
        self.ended[job] = ending
        self.deadline.pop(job, None)

    def act(self):
        """Take in what was decided, and check every decision."""
        decisions = self.ledger.decisions
        seats, decisions.seats = decisions.seats, []
        for job, granted in seats:
            claim = next(claim for claim in self.claims if claim.job == job)
            assert claim is self.claims[0], "LEDGER-12: out of line"
            self.claims.remove(claim)
            assert len(granted) >= claim.least
            for node in granted:
                self.seats[node] += 1
                self.seated[node][job] = claim.needs or NOTHING
                self.hold(node)
                assert node in self.open, "LEDGER-9: a seat on a closed node"
                assert len(self.nodes[node]) + self.seats[node] <= self.slots, "LEDGER-3: a seat on a full node"
        while decisions.endings:
            _, settle, ending, _ = decisions.endings.popleft()
            settle(ending)
        runs, decisions.runs = decisions.runs, []
        for node, order in runs:
            self.check_run(node, order)
        kills, decisions.kills = decisions.kills, []
        assert all(attempt in self.nodes[node] for node, attempt in kills)
        recalls, decisions.recalls = decisions.recalls, []
        for node, attempts in recalls:
            self.ever_recalled |= {*attempts}
            self.recalled[node] = tuple(dict.fromkeys((*self.recalled.get(node, ()), *attempts)))
        decisions.retries.clear()
        self.first = min(self.line, default=None)
        self.saved = {node for node, host in self.ledger.placement.hosts.items() if host.saved}

    def check_run(self, node, order):
        job = int(order.task.job)
        held = self.nodes[node]
        task = self.tasks[job]
        load = len(held) + self.seats[node]
        assert not (task.at_most_once and self.sent_for[job]), "LEDGER-4: sent again"
        assert self.charged[job] <= task.retries or task.at_most_once, "LEDGER-5: too many attempts"
        assert job not in self.failed_for_good, "LEDGER-13: too many attempts"
        assert task.on is None or task.on < self.ranks, "LEDGER-14: sent to a rank that there is not to be"
        assert job not in self.tasks_over, "LEDGER-1: a task that is over was sent"
        assert node in self.open, "LEDGER-9: work for a closed node"
        assert (node, order.attempt) not in self.sent, "LEDGER-6: an attempt id came twice"
        assert order.attempt not in {attempt for _, attempt in self.sent}, "LEDGER-6: an attempt id came twice"
        if load >= self.slots:
            assert task.function == SHORT, "LEDGER-3: more than its slots, and the task is not short"
            assert self.known_short, "LEDGER-3: more than its slots, and nothing is known of the function"
            assert not self.seats[node], "LEDGER-3: stacked behind a broadcast"
            assert load < self.slots + placement_module.STACK_OF_SHORT, "LEDGER-3: the stack is too high"
            assert not self.lost_under[job], "LEDGER-3: a suspect was stacked"
            assert task.retries, "LEDGER-3: a task that may not be run again was stacked"
        if not held:
            self.moved_at[node] = self.now
        if task.needs is not None:
            self.begin_in_line(node, job)
            held[order.attempt] = job
            self.hold(node)
        else:
            line = self.queue if task.on is None else self.pinned[task.on]
            assert line[0] == job, "LEDGER-8: out of order"
            line.pop(0)
            if task.near is not None and task.on is None and task.near() in self.open - {node}:
                taken = len(self.nodes[task.near()]) + self.seats[task.near()] >= self.slots
                assert taken or self.claims or self.line, "LEDGER-19: elsewhere, though a slot was free there"
        if task.on is not None:
            assert self.roster.rank(node) == task.on, "sent to another rank"
        self.sent_for[job] += 1
        assert self.sent_for[job] <= 1 + task.retries + self.failed[job], "LEDGER-5: too many attempts"
        assert order.number == self.sent_for[job]
        held[order.attempt] = job
        self.sent.append((node, order.attempt))

    def left(self, node):
        held = [self.tasks[job].needs or NOTHING for job in self.nodes[node].values()]
        left = self.has[node]
        for each in (*held, *self.seated[node].values()):
            left = left.minus(each)
        return left

    def hold(self, node):
        assert min(self.left(node)) >= 0, "LEDGER-16: more is held than there is"

    def begin_in_line(self, node, job):
        first = min(self.line)
        if first != self.first:
            self.first, self.saved = first, set()
        if job != first:
            assert node not in self.saved, "LEDGER-17: it begins on the node that is saved for another"
            self.overtaken[first] += 1
        self.line.remove(job)

    @invariant()
    def nothing_waits_for_amounts_in_vain(self):
        hosts = self.ledger.placement.hosts
        first = self.first
        if first is not None and self.overtaken[first] >= line_module.OVERTAKES:
            task = self.tasks[first]
            could = {
                node
                for node in self.open
                if task.needs.fits_in(self.has[node]) and task.on in (None, self.roster.rank(node))
            }
            assert not could or (len(self.saved) == 1 and self.saved <= could), "LEDGER-17: no node is saved"
        for job in () if self.claims else self.line:
            task = self.tasks[job]
            for node in self.open:
                kept = 0 if job == first else hosts[node].keeps
                if task.on in (None, self.roster.rank(node)) and (job == first or not hosts[node].saved):
                    room = len(self.nodes[node]) + self.seats[node] + kept < self.slots
                    assert not (room and task.needs.fits_in(self.left(node))), "LEDGER-18"

    @invariant()
    def the_books_agree(self):
        for node, held in self.nodes.items():
            assert self.ledger.load(node) == len(held) + self.seats[node], "LEDGER-10"
        assert self.ledger.leased == sum(map(len, self.nodes.values())), "LEDGER-10"

        for job in self.tasks_over - self.ended.keys():
            on = self.tasks[job].on
            assert on is None or on < self.ranks, "LEDGER-14: it waits for ever"
            assert job not in self.failed_for_good, "LEDGER-13: it is to run again"
            assert not self.lost_under[job], "LEDGER-4" if self.tasks[job].at_most_once else "LEDGER-5"
            raise AssertionError("LEDGER-1: a task should have ended")
        waiting = {*self.queue, *self.line, *(job for line in self.pinned.values() for job in line)}
        leased = {job for held in self.nodes.values() for job in held.values()} - self.ended.keys()
        assert waiting | leased == self.tasks.keys() - self.ended.keys(), "LEDGER-2"
        assert self.ledger.queued == len(waiting), "LEDGER-2"
        assert waiting <= {int(job) for job in self.ledger._entries}, "LEDGER-2"
        assert waiting <= {int(entry.task.job) for entry in self.queued_entries()}, "LEDGER-2"

        stuck = [node for node in self.nodes if self.now - self.moved_at[node] >= placement_module.LONG_S]
        behind = [job for node in stuck for job in list(self.nodes[node].values())[self.slots :]]
        in_line = [job for job in self.line if self.tasks[job].on is None]
        further = [job for job in behind if job not in self.ended and self.tasks[job].on is None]
        assert self.ledger.backlog(10.0, self.now)[0] == len(self.queue) + len(further) + len(in_line), "LEDGER-15"

        late = [job for job, at in self.deadline.items() if at <= self.now and job not in self.ended]
        assert not late, "LEDGER-11"
        if self.deadline:
            wake_at = self.ledger.wake_at()
            assert wake_at is not None, "LEDGER-11: nobody would wake it"
            assert wake_at <= min(self.deadline.values()), "LEDGER-11: it would be woken too late"

        if not self.claims:
            keeps = {node: host.keeps for node, host in self.ledger.placement.hosts.items()}
            free = [node for node in self.open if len(self.nodes[node]) + self.seats[node] + keeps[node] < self.slots]
            assert not (free and self.queue), "LEDGER-7"
            for rank, line in self.pinned.items():
                assert not (line and self.roster.at(rank) in free), "LEDGER-7"

    def queued_entries(self):
        return [
            *self.ledger._queue,
            *self.ledger.line.entries,
            *(entry for line in self.ledger._pinned.values() for entry in line),
        ]


TestLedger = LedgerMachine.TestCase
TestLedger.settings = QUICK


# --- each invariant falls without its guard ---------------------------------------------------------------------------


class EndsTwice(Ledger):
    def _finished(self, host, report, now):
        entry = host.attempts.get(report.attempt)
        known = super()._finished(host, report, now)
        if entry is not None and entry.task.function == LONG and self.decisions.endings:
            self.decisions.endings.append(self.decisions.endings[-1])
        return known


class ForgetsWhatComesBack(Ledger):
    def _requeue(self, entries, now):
        super()._requeue(entries[1:], now)


class ForgetsTheFence(Ledger):
    """Believes any node about any attempt."""

    def _finished(self, host, report, now):
        if report.attempt not in host.attempts and self._entries:
            entry = next(iter(self._entries.values()))
            self._end(entry, GaveUp(Reason.LOST))
            return True
        return super()._finished(host, report, now)


class RunsOnceAgain(Ledger):
    def _survives(self, entry, node, cause, *, ran, announced):
        entry.task = entry.task._replace(at_most_once=False, retries=entry.task.retries + entry.task.at_most_once)
        return super()._survives(entry, node, cause, ran=ran, announced=announced)


class NeverGivesUp(Ledger):
    def _survives(self, entry, node, cause, *, ran, announced):
        if not entry.task.at_most_once:
            entry.task = entry.task._replace(retries=99)
        return super()._survives(entry, node, cause, ran=ran, announced=announced)


class PassesPoisonOn(Ledger):
    def _survives(self, entry, node, cause, *, ran, announced):
        return super()._survives(entry, node, cause, ran=ran, announced=True)


class SendsToClosedNodes(Ledger):
    def node_closed(self, node, now, *, noticed=False, recall=True):
        super().node_closed(node, now, noticed=noticed, recall=recall)
        if node in self.placement.hosts:
            self.placement.hosts[node].open = True
            self.placement.place(self.placement.hosts[node])


class SendsWhatItHadDecided(Ledger):
    def _take_back_unsent(self, host):
        return []


class UsesIdsTwice(Ledger):
    def _send_from(self, queue, pick, now):
        self._attempts = count(1)
        super()._send_from(queue, pick, now)


class QueuesLastWhatComesBack(Ledger):
    def _requeue(self, entries, now):
        super()._requeue(entries, now)
        self._queue.rotate(-len(entries))


class IgnoresReturned(Ledger):
    def _returned(self, host, attempts, now):
        host.recalling = False


class NeverRestarts(Ledger):
    def _failed(self, entry, host, verdict):
        return False


class RestartsForEver(Ledger):
    def _failed(self, entry, host, verdict):
        entry.failures = 0
        return super()._failed(entry, host, verdict)


class WaitsForNobody(Ledger):
    def limit(self, ranks):
        pass


class JumpsTheLine(Placement):
    def claim(self, claim):
        self.claims.insert(0, claim)
        self._new_first()


class ForgetsToAssign(Ledger):
    def _changed(self, host, now):
        self.placement.place(host)


class NeverExpires(Ledger):
    def _expire_later(self, entry, now):
        pass


class StacksAnything(Placement):
    def pick(self, stack):
        return super().pick(2)

    def place(self, host):
        host.slow = 0
        super().place(host)


class ForgetsStacks(Placement):
    def stuck(self, now):
        return iter(())


class SeatsAnywhere(Placement):
    def _count(self, host, *, candidate, free):
        super()._count(host, candidate=candidate, free=candidate)


def with_places(kind):
    class Other(Ledger):
        def __init__(self, roster, *, slots, attempts, quarantine_after):
            super().__init__(roster, slots=slots, attempts=attempts, quarantine_after=quarantine_after)
            self.placement = kind(slots)
            self.line = self._queues.line = WaitingLine(self.placement, roster)

    return Other


class HoldsWhatIsNotThere(Placement):
    def has_amounts(self, host, needs, *, first):
        return True


class SavesNothing(Ledger):
    def __init__(self, roster, **options):
        super().__init__(roster, **options)
        self.line._to_save = lambda: None


class OvertakesOnTheSavedNode(Placement):
    def has_amounts(self, host, needs, *, first):
        return super().has_amounts(host, needs, first=True)


class HearsOfNothing(Ledger):
    def _give_back(self, host, entry):
        super()._give_back(host, entry)
        self.line.stirred = False

    def _changed(self, host, now):
        stirred = self.line.stirred
        self.line.stir = lambda host=None: None
        super()._changed(host, now)
        self.line.stirred = stirred


class LooksAtNoNodeThatWasFreed(Ledger):
    def __init__(self, roster, **options):
        class Nothing(dict):
            def __setitem__(self, node, host):
                pass

        super().__init__(roster, **options)
        self.line._freed = Nothing()


class BeginsAnywhere(Ledger):
    def _near(self, task):
        return None


SEEDS = {BeginsAnywhere: 13, RestartsForEver: 13}  # a tenth of a second of a processor; others take up to 28 s


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [
        (EndsTwice, "LEDGER-1"),
        (ForgetsWhatComesBack, "LEDGER-2|LEDGER-8"),  # whichever is looked at first
        (with_places(StacksAnything), "LEDGER-3"),
        (with_places(SeatsAnywhere), "LEDGER-3|LEDGER-16"),
        (RunsOnceAgain, "LEDGER-4"),
        (NeverGivesUp, "LEDGER-5"),
        pytest.param(PassesPoisonOn, "LEDGER-5|LEDGER-1", marks=pytest.mark.nightly),
        (ForgetsTheFence, "LEDGER-6"),
        (UsesIdsTwice, "LEDGER-6"),
        (ForgetsToAssign, "LEDGER-7|LEDGER-18"),
        (QueuesLastWhatComesBack, "LEDGER-8"),
        (SendsToClosedNodes, "LEDGER-9"),
        (SendsWhatItHadDecided, "LEDGER-9"),
        pytest.param(IgnoresReturned, "LEDGER-10", marks=pytest.mark.nightly),
        (NeverExpires, "LEDGER-11"),
        pytest.param(with_places(JumpsTheLine), "LEDGER-12", marks=pytest.mark.nightly),
        (NeverRestarts, "LEDGER-13"),
        (RestartsForEver, "LEDGER-13"),
        (WaitsForNobody, "LEDGER-14"),
        pytest.param(with_places(ForgetsStacks), "LEDGER-15", marks=pytest.mark.nightly),
        (with_places(HoldsWhatIsNotThere), "LEDGER-16"),
        (SavesNothing, "LEDGER-17"),
        pytest.param(with_places(OvertakesOnTheSavedNode), "LEDGER-17", marks=pytest.mark.nightly),
        (HearsOfNothing, "LEDGER-18"),
        (LooksAtNoNodeThatWasFreed, "LEDGER-18|LEDGER-7"),
        (BeginsAnywhere, "LEDGER-19"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken, invariant):
    class Machine(LedgerMachine):
        make = broken

    if broken in SEEDS:
        seed(SEEDS[broken])(Machine)
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=WITHOUT_GUARD)


# --- what is easier told in one story ---------------------------------------------------------------------------------


@pytest.fixture
def story():
    """A ledger with its endings by job, and a way to submit."""

    class Story:
        def __init__(self):
            self.roster = Roster()
            self.ledger = Ledger(self.roster, slots=1, attempts=count(1))
            self.ended = {}
            self.jobs = count(1)

        def node(self, node, now=0.0):
            self.roster.join(NodeId(node))
            self.ledger.node_ready(NodeId(node), now)

        def submit(self, **options):
            job = JobId(next(self.jobs))
            task = Task(TaskId(job), job, options.pop("function", SHORT), None, **options)
            self.ledger.submit(task, lambda ending: self.ended.__setitem__(job, ending), 0.0)
            return job

        def runs(self):
            runs, self.ledger.decisions.runs = self.ledger.decisions.runs, []
            return [(int(node), int(order.task.job), order) for node, order in runs]

        def finish(self, node, order, busy_s=0.0001, now=0.0):
            self.ledger.received(NodeId(node), [Finished(order.attempt, Verdict.RETURNED, None, busy_s)], now)

        def settle(self):
            while self.ledger.decisions.endings:
                _, settle, ending, _ = self.ledger.decisions.endings.popleft()
                settle(ending)

    return Story()


def test_as_many_tasks_are_stacked_as_run_in_20_ms_once_their_function_is_known(story):
    story.node(0)
    for function, busy_s, stacked in [
        (b"n", 0.0, 1 + placement_module.STACK_OF_SHORT),
        (b"s", 0.00001, 1 + placement_module.STACK_OF_SHORT),
        (b"b", 0.0045, 1 + 4),
        (b"m", 0.0150, 1 + 1),
        (b"o", 0.0201, 1),
        (b"l", 0.1, 1),
    ]:
        first = story.submit(function=function)
        for _ in range(300):
            story.submit(function=function)
        ((_, job, order),) = story.runs()
        assert job == first
        story.finish(0, order, busy_s)
        sent = story.runs()
        assert len(sent) == stacked
        while sent:
            node, _, order = sent.pop(0)
            story.finish(node, order, busy_s)
            sent += story.runs()


def test_a_task_that_is_brief_but_suspect_or_at_most_once_lies_behind_nothing(story):
    story.node(0)
    story.submit()
    ((_, _, order),) = story.runs()
    story.finish(0, order)
    story.submit()
    assert len(story.runs()) == 1
    story.submit(at_most_once=True, retries=0)
    assert story.runs() == []


def test_a_stalled_stack_is_halved_until_the_idle_node_has_work(story):
    story.node(0)
    story.submit()
    ((_, _, order),) = story.runs()
    story.finish(0, order)
    jobs = [story.submit() for _ in range(9)]
    held = [order for _, _, order in story.runs()]
    assert len(held) == 9
    story.node(1)
    assert story.ledger.wake_at() == pytest.approx(placement_module.STALL_S)
    story.ledger.tick(0.021)
    ((node, attempts),) = story.ledger.decisions.recalls
    assert node == 0
    assert list(attempts) == [order.attempt for order in held[-4:]]
    story.ledger.received(NodeId(0), [Returned(attempts)], 0.022)
    assert {node for node, _, _ in story.runs()} == {1}
    assert story.ended == {}
    assert len(jobs) == 9


def test_what_waits_behind_a_long_task_is_work_for_a_further_node(story):
    """It is known to be short and so waits at the node, and no other node has a free slot to take it."""
    story.node(0)
    story.submit()
    ((_, _, order),) = story.runs()
    story.finish(0, order)
    for _ in range(9):
        story.submit()
    assert story.ledger.backlog(10.0, 0.5)[0] == 0  # that nodes hold some short tasks in advance is no reason to grow
    tasks, slots, _ = story.ledger.backlog(10.0, placement_module.LONG_S)
    assert tasks == 8
    assert 0.0 < slots < 1.0


def test_a_task_that_took_down_every_node_it_ran_on_is_quarantined(story):
    job = story.submit(retries=2)
    for node in range(3):
        story.node(node)
        assert len(story.runs()) == 1
        story.ledger.node_lost(NodeId(node), "panic", 0.0)
    story.settle()
    assert story.ended[job] == GaveUp(Reason.QUARANTINED, ((0, "panic"), (1, "panic"), (2, "panic")))


def test_preemptions_do_not_make_a_task_a_suspect(story):
    job = story.submit(retries=1)
    for node in range(2):
        story.node(node)
        story.runs()
        story.ledger.node_lost(NodeId(node), "spot", 0.0, announced=True)
    story.settle()
    assert story.ended[job].reason is Reason.LOST


def test_a_task_whose_process_dies_on_a_noticed_node_is_run_again(story):
    job = story.submit()
    story.node(0)
    ((_, _, order),) = story.runs()
    story.ledger.node_closed(NodeId(0), 0.0, noticed=True)
    story.ledger.received(NodeId(0), [Finished(order.attempt, Verdict.TERMINATED, "signal 15", 0.0)], 0.0)
    story.settle()
    assert job not in story.ended
    story.node(1)
    ((node, again, order),) = story.runs()
    assert (node, again, order.number) == (1, job, 2)


@pytest.mark.parametrize("verdict", [Verdict.TIMED_OUT, Verdict.DIED, Verdict.RAISED])
def test_how_a_task_ends_by_itself_is_not_the_machines_doing(story, verdict):
    """There was a notice: until the machine ends, its tasks overrun, exit and raise as on any other."""
    job = story.submit()
    story.node(0)
    ((_, _, order),) = story.runs()
    story.ledger.node_closed(NodeId(0), 0.0, noticed=True)
    story.ledger.received(NodeId(0), [Finished(order.attempt, verdict, "its own", 0.0)], 0.0)
    story.settle()
    assert story.ended[job].verdict is verdict


def test_a_task_that_fails_is_run_again_so_often_and_its_losses_are_counted_apart(story):
    job = story.submit(max_restarts=2, retries=1)
    story.node(0)
    for verdict in (Verdict.RAISED, Verdict.TERMINATED):
        ((_, _, order),) = story.runs()
        story.ledger.received(NodeId(0), [Finished(order.attempt, verdict, "its own", 0.0)], 0.0)
    assert [cause for _, _, _, cause in story.ledger.decisions.retries] == ["it raised", "it was killed"]
    ((_, _, order),) = story.runs()
    story.ledger.node_lost(NodeId(0), "gone", 0.0)
    story.node(1)
    ((node, _, order),) = story.runs()
    assert order.number == 4
    story.ledger.received(NodeId(node), [Finished(order.attempt, Verdict.RAISED, "its own", 0.0)], 0.0)
    story.settle()
    assert (story.ended[job].verdict, story.ended[job].number) == (Verdict.RAISED, 4)


def test_what_overruns_its_timeout_is_not_run_again(story):
    job = story.submit(max_restarts=2)
    story.node(0)
    ((_, _, order),) = story.runs()
    story.ledger.received(NodeId(0), [Finished(order.attempt, Verdict.TIMED_OUT, "30 s", 30.0)], 0.0)
    story.settle()
    assert story.ended[job].verdict is Verdict.TIMED_OUT


def test_tasks_for_a_rank_that_there_is_not_to_be_any_more_are_told(story):
    for node in range(3):
        story.node(node)
    running = story.submit(on=2, function=LONG)
    queued, elsewhere = story.submit(on=2), story.submit(on=1)
    story.ledger.limit(2)
    late = story.submit(on=5)
    story.settle()
    assert {job: ending.reason for job, ending in story.ended.items()} == {
        queued: Reason.NO_SUCH_RANK,
        late: Reason.NO_SUCH_RANK,
    }
    ((_, _, order), _) = story.runs()
    assert order.task.job == running
    assert elsewhere not in story.ended


def test_on_means_the_node_that_has_the_rank_at_dispatch(story):
    story.node(0)
    story.node(1)
    story.roster.leave(NodeId(0))
    story.ledger.node_lost(NodeId(0), "gone", 0.0)
    job = story.submit(on=1)
    assert story.runs() == []
    story.node(2)  # takes the empty seat, rank 0: node 1 stays rank 1
    ((node, sent, _),) = story.runs()
    assert (node, sent) == (1, job)


def test_a_pinned_task_that_comes_back_goes_to_the_node_that_has_the_rank_now(story):
    story.node(0)
    story.node(1)
    story.submit(on=0)
    ((_, _, order),) = story.runs()
    story.finish(0, order)
    story.submit(on=0)
    job = story.submit(on=0)
    stacked = next(order for _, of, order in story.runs() if of == job)
    story.roster.leave(NodeId(0))
    story.ledger.node_closed(NodeId(0), 0.0)
    assert story.ledger.decisions.recalls == [(0, (stacked.attempt,))]
    story.ledger.received(NodeId(0), [Returned((stacked.attempt,))], 0.0)
    ((node, sent, _),) = story.runs()
    assert (node, sent) == (1, job)


def test_a_withdrawn_claim_gives_back_what_was_granted_and_not_heard_of(story):
    story.node(0)
    claim = Claim(JobId(100), least=1)
    story.ledger.claim(claim, 0.0)
    assert story.ledger.decisions.seats == [(100, (0,))]
    story.ledger.withdraw(JobId(100), 0.0)
    assert story.ledger.decisions.seats == []
    assert story.ledger.load(NodeId(0)) == 0


def test_deciding_takes_no_longer_with_a_thousand_nodes(story, monkeypatch):
    """O(1) per event: no event on a task looks at more than a few hosts."""
    for node in range(1000):
        story.node(node)
    looked = Counter()
    place = Placement.place

    def counting(self, host):
        looked["hosts"] += 1
        place(self, host)

    monkeypatch.setattr(Placement, "place", counting)
    for _ in range(100):
        story.submit()
    for node, _, order in story.runs():
        story.finish(node, order)
    assert looked["hosts"] <= 3 * 200


def test_a_function_is_forgotten_before_there_are_too_many(story, monkeypatch):
    monkeypatch.setattr(retries_module, "FUNCTIONS_KEPT", 10)
    for i in range(30):
        story.submit(function=str(i).encode())
    assert len(story.ledger._functions) == 10


def test_entries_are_small():
    assert not hasattr(Entry(Task(TaskId(1), JobId(1), b"", None), print, retries_module.Function(), True), "__dict__")


def test_what_comes_back_in_the_step_that_sent_it_is_not_overtaken(story):
    story.node(1)
    story.node(2)
    _, _, third, fourth = [story.submit(function=LONG) for _ in range(4)]
    (closing, _, one), (other, _, two) = story.runs()
    story.finish(closing, one, busy_s=1.0)  # the third is to go there
    story.finish(other, two, busy_s=1.0)  # and the fourth there
    assert [order.task.job for _, order in story.ledger.decisions.runs] == [third, fourth]
    story.roster.leave(NodeId(closing))
    story.ledger.node_closed(NodeId(closing), 0.0, noticed=True)
    assert [(node, job) for node, job, _ in story.runs()] == [(other, third)]
