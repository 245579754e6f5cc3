"""Tasks that need amounts: who waits for whom, told in stories. `test_ledger` has the invariants."""

from __future__ import annotations

from itertools import count

import pytest

from outrider.actors import placement as line_module
from outrider.actors.amounts import Amounts, describe
from outrider.actors.entries import Host
from outrider.actors.interfaces import AttemptId, Finished, JobId, NodeId, Reason, Task, TaskId, Verdict
from outrider.actors.ledger import Ledger
from outrider.actors.membership import Roster
from outrider.actors.placement import Claim, Placement

ONE, TWO, ALL = Amounts(1000), Amounts(2000), Amounts(4000)


class Story:
    """A ledger and what it has sent: attempts by job, and where each runs."""

    def __init__(self, *, slots: int = 8) -> None:
        self.roster = Roster()
        self.ledger = Ledger(self.roster, slots=slots, attempts=count(1))
        self.jobs = count(1)
        self.running: dict[int, tuple[NodeId, AttemptId]] = {}
        self.ended: dict[int, object] = {}

    def node(self, node: int, has: Amounts = ALL) -> None:
        self.roster.join(NodeId(node))
        self.ledger.node_ready(NodeId(node), 0.0, has)
        self.look()

    def submit(self, needs: Amounts | None, *, on: int | None = None, function: bytes = b"f") -> int:
        job = JobId(next(self.jobs))
        task = Task(TaskId(job), job, function, None, on, needs=needs)
        self.ledger.submit(task, lambda ending: self.ended.__setitem__(int(job), ending), 0.0)
        self.look()
        return int(job)

    def finish(self, job: int, busy_s: float = 1.0) -> None:
        node, attempt = self.running.pop(job)
        self.ledger.received(node, [Finished(attempt, Verdict.RETURNED, None, busy_s)], 0.0)
        self.look()

    def look(self) -> None:
        runs, self.ledger.decisions.runs = self.ledger.decisions.runs, []
        self.running |= {int(order.task.job): (node, order.attempt) for node, order in runs}
        while self.ledger.decisions.endings:
            _, settle, ending, _ = self.ledger.decisions.endings.popleft()
            settle(ending)

    def where(self, job: int) -> int | None:
        return int(self.running[job][0]) if job in self.running else None


def test_a_node_runs_no_more_than_its_amounts_allow() -> None:
    story = Story()
    story.node(0)
    jobs = [story.submit(TWO) for _ in range(3)]
    assert list(story.running) == jobs[:2]
    story.finish(jobs[0])
    assert list(story.running) == jobs[1:]


def test_few_of_many_nodes_are_looked_at_for_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, nodes = [0], 200
    has_amounts = Placement.has_amounts

    def counting(self: Placement, host: Host, needs: Amounts, *, first: bool) -> bool:
        looks[0] += 1
        return has_amounts(self, host, needs, first=first)

    monkeypatch.setattr(Placement, "has_amounts", counting)
    story = Story()
    for node in range(nodes):
        story.node(node)
    jobs = [story.submit(TWO) for _ in range(3 * nodes)]
    assert len(story.running) == 2 * nodes
    assert looks[0] < 4 * len(jobs), "while the nodes fill up, and when all are full"
    looks[0] = 0
    for job in jobs[:nodes]:
        story.finish(job)
    assert set(story.running) == set(jobs[nodes:])
    assert looks[0] < 8 * nodes, "when a task has ended"


def test_a_small_task_goes_before_a_large_one_that_does_not_fit() -> None:
    story = Story()
    story.node(0)
    first, large, small = story.submit(ONE), story.submit(ALL), story.submit(ONE)
    assert list(story.running) == [first, small]
    story.finish(first)
    story.finish(small)
    assert list(story.running) == [large]


def test_a_large_task_is_overtaken_so_often_and_no_more() -> None:
    """A stream of small tasks, of which one always runs, would keep it waiting for ever."""
    story = Story()
    story.node(0)
    last = story.submit(ONE)
    large = story.submit(ALL)
    overtook = 0
    for _ in range(10 * line_module.OVERTAKES):
        small = story.submit(ONE)
        if small not in story.running:
            break
        overtook += 1
        story.finish(last)
        last = small
    assert overtook == line_module.OVERTAKES
    story.finish(last)
    assert list(story.running) == [large]
    story.finish(large)
    assert list(story.running) == [small]


def test_while_a_node_is_saved_small_tasks_run_on_the_others() -> None:
    story = Story()
    story.node(0)
    story.node(1)
    kept = [story.submit(ONE), story.submit(ONE)]  # one on each
    large = story.submit(ALL)
    for _ in range(line_module.OVERTAKES):
        story.finish(story.submit(ONE))
    small = [story.submit(ONE) for _ in range(3)]
    assert len({story.where(job) for job in small}) == 1
    (other,) = {story.where(job) for job in small}
    story.finish(next(job for job in kept if story.where(job) != other))
    assert story.where(large) == 1 - other


def test_a_cancelled_task_lets_those_behind_it_go() -> None:
    story = Story()
    story.node(0)
    story.submit(ONE)
    large = story.submit(ALL)
    for _ in range(line_module.OVERTAKES):
        story.finish(story.submit(ONE))
    small = story.submit(ONE)
    assert small not in story.running
    story.ledger.cancel(JobId(large))
    story.look()
    assert small in story.running


def test_the_older_task_gets_the_slot_whether_it_needs_amounts_or_not() -> None:
    story = Story(slots=1)
    story.node(0)
    running = story.submit(None)
    plain, needy, last = story.submit(None), story.submit(ONE), story.submit(None)
    for finished, next_ in ((running, plain), (plain, needy), (needy, last)):
        story.finish(finished)
        assert list(story.running) == [next_]


def test_short_tasks_that_stack_do_not_keep_the_slot_from_one_that_needs_amounts() -> None:
    story = Story(slots=1)
    story.node(0)
    story.finish(story.submit(None, function=b"short"), busy_s=0.0001)
    short = [story.submit(None, function=b"short") for _ in range(5)]
    assert list(story.running) == short, "they are stacked"
    needy = story.submit(ONE)
    later = story.submit(None, function=b"short")
    assert later not in story.running
    for job in short:
        story.finish(job, busy_s=0.0001)
    assert list(story.running) == [needy]


def test_a_task_without_accelerators_leaves_those_nodes_alone_that_have_them() -> None:
    story = Story()
    story.node(0, Amounts(4000, 0, 2))
    story.node(1)
    assert story.where(story.submit(ONE)) == 1
    assert story.where(story.submit(ONE)) == 1
    assert story.where(story.submit(Amounts(gpus=1))) == 0


def test_on_a_rank_it_waits_for_that_node() -> None:
    story = Story()
    story.node(0)
    story.node(1)
    first = story.submit(ALL, on=1)
    second = story.submit(ONE, on=1)
    assert (story.where(first), story.where(second)) == (1, None)
    story.finish(first)
    assert story.where(second) == 1


def test_tasks_for_ranks_that_are_busy_or_not_there_keep_no_task_from_an_idle_node() -> None:
    story = Story(slots=1)
    story.node(0)
    for rank in range(1, line_module.LOOK + 10):
        story.submit(ONE, on=rank)
    assert story.where(story.submit(TWO)) == 0


def test_what_was_kept_for_a_task_is_free_when_that_is_dropped() -> None:
    story = Story(slots=1)
    story.node(0)
    first = story.submit(None)
    story.submit(ONE, on=0)
    host = story.ledger.placement.hosts[NodeId(0)]
    assert host.keeps == 1
    story.ledger.line.drop(story.ledger.line.lanes())
    assert host.keeps == 0
    story.finish(first)
    assert story.where(story.submit(None)) == 0


def test_a_broadcasts_seats_hold_amounts_until_they_are_left() -> None:
    story = Story()
    story.node(0)
    running = story.submit(TWO)
    story.ledger.claim(Claim(JobId(100), least=1, every=True, needs=ALL), 0.0)
    story.look()
    assert story.ledger.decisions.seats == []
    small = story.submit(ONE)
    assert small not in story.running, "what is free is kept for the broadcast"
    story.finish(running)
    assert story.ledger.decisions.seats == [(100, (0,))]
    assert small not in story.running
    story.ledger.unseat(NodeId(0), JobId(100), 0.0)
    story.look()
    assert small in story.running


def test_a_node_that_leaves_can_serve_nobody_who_waits() -> None:
    story = Story()
    story.node(0, ALL)
    story.node(1, ONE)
    story.submit(ALL)
    large = story.submit(TWO)
    assert story.ledger.line.too_large() == []
    story.ledger.node_closed(NodeId(0), 0.0)
    (lane,) = story.ledger.line.too_large()
    assert story.ledger.line.why(lane) == "cpus=2, and the nodes have cpus=1, memory_gb=0, gpus=0"
    story.ledger.refuse(lane, 0.0)
    story.look()
    assert large in story.ended


def test_a_broadcast_does_not_wait_for_a_node_that_leaves() -> None:
    story = Story()
    story.node(0, ALL)
    story.node(1, ONE)
    story.submit(ALL)
    story.ledger.claim(Claim(JobId(100), least=1, needs=TWO), 0.0)
    assert story.ledger.placement.too_large() is None
    story.ledger.node_closed(NodeId(0), 0.0)
    assert story.ledger.placement.too_large() is not None


def test_a_broadcast_is_refused_that_lacks_large_enough_nodes_after_a_loss() -> None:
    story = Story()
    story.node(0, ALL)
    story.ledger.claim(Claim(JobId(100), least=2, again=True, needs=TWO), 0.0)
    assert story.ledger.placement.too_large() is None  # another one may come
    story.node(1, ONE)
    assert story.ledger.placement.too_large() is not None
    story.node(2, ALL)
    assert story.ledger.placement.too_large() is None


def test_a_broadcast_that_a_node_is_too_small_for_runs_on_no_part_of_the_pool() -> None:
    for busy in (False, True):  # granted at once, or when seats are free
        story = Story(slots=1)
        story.node(0, ALL)
        running = story.submit(ONE) if busy else None
        story.node(1, ONE)
        story.ledger.claim(Claim(JobId(100), least=1, every=True, needs=TWO), 0.0)
        if running is not None:
            story.finish(running)
        story.look()
        assert story.ledger.decisions.seats == []
        claim = story.ledger.placement.too_large()
        assert claim is not None
        assert claim.job == 100


def test_what_no_node_has_is_found_and_refused_in_words() -> None:
    story = Story()
    story.node(0, Amounts(4000, 8_000_000_000))
    story.node(1, Amounts(2000, 4_000_000_000, 1))
    assert story.ledger.line.too_large() == []
    waits = story.submit(Amounts(4000, 0, 1))
    ((lane),) = story.ledger.line.too_large()
    story.ledger.refuse(lane, 0.0)
    story.look()
    ending = story.ended[waits]
    assert ending.reason is Reason.TOO_LARGE  # type: ignore[attr-defined]
    assert ending.why == (  # type: ignore[attr-defined]
        "cpus=4, gpus=1, and the nodes have cpus=4, memory_gb=8, gpus=0 or cpus=2, memory_gb=4, gpus=1"
    )


def test_without_nodes_a_task_waits_as_any_other_does() -> None:
    """Until they are there, or will not come, which is told in other words."""
    story = Story()
    story.ledger.limit(2)
    for on in (None, 1):
        story.submit(Amounts(gpus=8), on=on)
    assert story.ledger.line.too_large() == []
    assert story.ledger.missed(0) == [0, 1]
    story.node(0)
    ((_, on),) = story.ledger.line.too_large()
    assert on is None, "the other one's node has not come"
    story.ledger.strand(0)
    story.ledger.strand(1)
    story.look()
    assert {ending.reason for ending in story.ended.values()} == {Reason.NO_REPLACEMENT}  # type: ignore[attr-defined]


def test_the_backlog_counts_what_a_task_leaves_no_room_for() -> None:
    story = Story(slots=8)
    assert story.submit(TWO) not in story.running
    assert story.ledger.backlog(10.0, 0.0) == (1, 1.0, 0), "nothing is known of the nodes to come"
    story.node(0)
    for _ in range(3):
        story.submit(TWO)
    assert story.ledger.backlog(10.0, 0.0) == (2, 8.0, 0), "two halves of a node with 8 slots"
    assert story.ledger.placement.busy == 8, "the other two have it all"


def test_amounts_are_told_as_users_write_them() -> None:
    assert str(Amounts(1500, 4_000_000_000, 2)) == "cpus=1.5, memory_gb=4, gpus=2"
    assert str(Amounts(gpus=1)) == "gpus=1"
    assert describe([Amounts(1000 * n) for n in range(1, 7)]).endswith(" or less")


@pytest.mark.parametrize(("needs", "share"), [(TWO, 0.5), (Amounts(1000, 0, 2), 1.0), (Amounts(0, 1), float("inf"))])
def test_a_share_is_of_what_is_scarcest(needs: Amounts, share: float) -> None:
    assert needs.share_of(Amounts(4000, 0, 2)) == share
