"""Tasks that end while they wait are forgotten, though one before them goes on waiting."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.actors.amounts import Amounts
from outrider.actors.entries import FEW, OVER, QUEUED, Entry, Function, TaskQueue
from outrider.actors.interfaces import JobId, NodeId, Task, TaskId
from outrider.actors.ledger import Expiries, Ledger
from outrider.actors.membership import Roster

MANY = 10_000


def entry(job: int) -> Entry:
    return Entry(Task(TaskId(job), JobId(job), b"f", None, None), lambda _: None, Function(), stacks=True)


@given(st.lists(st.sampled_from(["add", "add", "first", "end", "end", "end"]), max_size=2000), st.randoms())
def test_those_that_wait_stay_in_order_and_the_others_are_few(steps: list[str], random) -> None:  # type: ignore[no-untyped-def]
    queue, waiting = TaskQueue(), list[Entry]()
    for number, step in enumerate(steps):
        if step == "add":
            waiting.append(entry(number))
            queue.append(waiting[-1])
        elif step == "first" and queue and queue[0].state == QUEUED:
            waiting.remove(queue.popleft())
        elif step == "end" and waiting:
            over = waiting.pop(random.randrange(len(waiting)))
            over.state = OVER
            queue.ended()
        assert [each for each in queue if each.state == QUEUED] == waiting
        assert len(queue) <= 2 * len(waiting) + 2 * FEW


@pytest.mark.parametrize(("needs", "on"), [(None, None), (None, 0), (Amounts(1000), None), (Amounts(1000), 0)], ids=str)
def test_cancelled_tasks_are_forgotten_behind_one_that_waits(needs: Amounts | None, on: int | None) -> None:
    roster = Roster()
    ledger = Ledger(roster, slots=1, attempts=count(1))
    roster.join(NodeId(0))
    ledger.node_ready(NodeId(0), 0.0, Amounts(1000))

    def submit(job: int) -> None:
        task = Task(TaskId(job), JobId(job), b"f", None, on, needs=needs, queue_timeout_s=3600.0)
        ledger.submit(task, lambda _: None, 0.0)

    for job in range(MANY):  # the first runs, and the second waits for its end
        submit(job)
    for job in range(2, MANY):
        ledger.cancel(JobId(job))
        ledger.decisions.endings.clear()
    queues = [ledger._queue, *ledger._pinned.values(), *ledger.line._lanes.values()]
    assert sum(map(len, queues)) <= 2 + 2 * FEW
    assert len(ledger._expiries._heap) <= 2 + 2 * FEW
    assert ledger.queued == 1
    assert len(ledger._entries) == 2


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300))
def test_a_forgotten_wait_is_never_over_and_the_others_are_in_time(drawn: list[tuple[int, bool]]) -> None:
    expiries, waiting = Expiries(), dict[int, float]()
    entries = [entry(number) for number in range(len(drawn))]
    for number, (at, _) in enumerate(drawn):
        expiries.add(entries[number], float(at))
        waiting[number] = float(at)
    for number, (_, ends) in enumerate(drawn):
        if ends:
            expiries.ended(entries[number])
            expiries.ended(entries[number])
            del waiting[number]
    assert len(expiries._heap) <= 2 * len(waiting) + 2 * FEW
    assert expiries.first_at() == min(waiting.values(), default=None)
    over = {int(each.task.job) for each in expiries.take(25.0)}
    assert over == {number for number, at in waiting.items() if at <= 25.0}
