"""A pool's meter goes forward only, and says when to stop; the fleet around a fleet keeps it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any, cast

import anyio
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.engine.api.quantities import cents
from outrider.engine.client.budget import Budget, Cost, Metered
from outrider.providers.base import (
    EntryPoints,
    Fleet,
    LaunchRequest,
    LaunchSettled,
    LaunchUnsure,
    Machine,
    MachineGone,
    MachineId,
    MachineReachable,
    MachineStarted,
)
from outrider.testing.fake_provider import Fake, FakeFleet

HOUR = 3600.0
ONE = MachineId("one")


class Meter(RuleBasedStateMachine):
    """Against bills that are added up machine by machine."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(max_cost=5.0, max_lifetime_s=10 * HOUR)
        self.now = 0.0
        self.prices: dict[MachineId, tuple[float, float]] = {}  # since, USD per hour
        self.bills = 0.0
        self.ids = count()
        self.before = 0.0

    @rule(by=st.floats(0, HOUR))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule(number=st.integers(0, 3), price=st.floats(0, 10))
    def launch(self, number: int, price: float) -> None:
        for _ in range(number):
            machine = MachineId(f"{next(self.ids)}")
            self.budget.launched(machine, price, self.now)
            self.prices[machine] = (self.now, price)

    @precondition(lambda self: self.prices)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """BUDGET-2"""
        machine = data.draw(st.sampled_from(sorted(self.prices)))
        since, price = self.prices.pop(machine)
        self.bills += (self.now - since) * price / HOUR
        self.budget.ended(machine, self.now)
        self.budget.launched(machine, price, self.now)  # a late word of its launch

    @invariant()
    def it_is_what_the_bills_say(self) -> None:
        running = sum((self.now - since) * price / HOUR for since, price in self.prices.values())
        cost = self.budget.cost(self.now)
        assert cost.spent == pytest.approx(self.bills + running, abs=1e-6)
        assert cost.hourly == pytest.approx(sum(price for _, price in self.prices.values()))

    @invariant()
    def it_never_gets_less(self) -> None:
        """BUDGET-1"""
        spent = self.budget.cost(self.now).spent
        assert spent >= self.before
        self.before = spent

    @invariant()
    def what_it_waits_for_is_when_it_has_something_to_say(self) -> None:
        if self.budget.exceeded(self.now) is not None:
            return
        next_s = self.budget.next_s(self.now)
        assert next_s is not None
        later, mostly = self.now + next_s + 1e-3, self.budget.mostly_spent(self.now)
        assert self.budget.exceeded(later) or self.budget.mostly_spent(later) != mostly


TestMeter = Meter.TestCase
WITHOUT_GUARD = settings(
    max_examples=2000, database=None, derandomize=True, report_multiple_bugs=False, phases=[Phase.generate]
)


def test_a_machine_costs_from_the_request_on() -> None:
    budget = Budget()
    budget.launched(ONE, 3.6, now=10.0, since=4.0)
    assert budget.cost(10.0).hourly == 3.6
    assert budget.cost(10.0).spent == pytest.approx(0.006)
    assert budget.cost(20.0).spent == pytest.approx(0.016)


def test_a_machine_that_ends_at_once_is_billed_for_the_least_there_is() -> None:
    budget = Budget()
    budget.launched(ONE, 3600.0, now=10.0, since=4.0, least_s=60.0)
    budget.launched(MachineId("two"), 3600.0, now=10.0, since=10.0, least_s=60.0)
    assert budget.cost(10.0) == Cost(6.0, 7200.0)
    budget.ended(ONE, now=20.0)
    assert budget.cost(20.0) == Cost(70.0, 3600.0)
    budget.ended(MachineId("two"), now=110.0)
    budget.ended(MachineId("two"), now=120.0)
    assert budget.cost(130.0) == Cost(160.0, 0.0)


def test_the_limits_say_what_they_are() -> None:
    budget = Budget(max_cost=1.0, max_lifetime_s=2 * HOUR, since=100.0)
    budget.launched(ONE, 1.0, now=100.0)
    assert budget.next_s(100.0) == pytest.approx(0.8 * HOUR)
    assert not budget.mostly_spent(100.0 + 0.79 * HOUR)
    assert budget.mostly_spent(100.0 + 0.8 * HOUR)
    assert budget.next_s(100.0 + 0.8 * HOUR) == pytest.approx(0.2 * HOUR)
    assert budget.exceeded(100.0 + HOUR - 1) is None
    assert (budget.exceeded(100.0 + HOUR), budget.cost(100.0 + HOUR).spent) == ("max_cost", 1.0)
    budget.ended(ONE, 100.0 + HOUR)
    assert (budget.exceeded(100.0 + 2 * HOUR), budget.cost(100.0 + 2 * HOUR).spent) == ("max_lifetime", 1.0)


def between_lines(work: Callable[[], object], other: Callable[[int], object]) -> None:
    """Do ``work``, and before each line of it that is the budget's ``other``, with its number, as a thread may do."""
    lines = count()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != inspect.getfile(Budget):
            return None
        other(next(lines))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("at", range(8))
def test_no_moment_is_counted_twice_when_two_threads_ask_at_once(at: int) -> None:
    budget = Budget()
    budget.launched(ONE, HOUR, now=0.0)
    between_lines(lambda: budget.cost(60.0), lambda line: budget.cost(60.0) if line == at else None)
    assert budget.cost(60.0) == Cost(60.0, HOUR)


def test_another_thread_sees_a_change_as_a_whole() -> None:
    budget = Budget()
    budget.launched(ONE, HOUR, now=0.0)

    def changed(change: Callable[[], None]) -> None:
        before, seen = budget.cost(10.0), set[Cost]()
        between_lines(change, lambda _: seen.add(budget.cost(10.0)))
        assert seen == {before, budget.cost(10.0)}

    changed(lambda: budget.launched(MachineId("two"), HOUR, now=10.0, since=5.0, least_s=60.0))
    changed(lambda: budget.ended(MachineId("two"), now=10.0))


def test_a_closed_pool_costs_nothing_more() -> None:
    budget = Budget()
    budget.launched(ONE, 1.0, now=0.0)
    budget.launched(MachineId("two"), 2.0, now=0.0)
    budget.close(HOUR)
    assert budget.cost(2 * HOUR) == Cost(3.0, 0)


def test_without_limits_there_is_nothing_to_wait_for() -> None:
    budget = Budget()
    budget.launched(ONE, 100.0, now=0.0)
    assert budget.next_s(HOUR) is None
    assert budget.exceeded(1000 * HOUR) is None


def test_machines_that_cost_nothing_spend_nothing() -> None:
    budget = Budget(max_cost=1.0)
    budget.launched(ONE, 0.0, now=0.0)
    assert budget.next_s(HOUR) is None
    assert budget.cost(1000 * HOUR).spent == 0


@given(st.lists(st.floats(-HOUR, HOUR)))
def test_a_clock_that_goes_back_stands_still(steps: list[float]) -> None:
    budget, now, last = Budget(), 0.0, 0.0
    budget.launched(ONE, 1.0, now=0.0)
    for step in steps:
        now += step
        budget.launched(ONE, 1.0, now)
        spent = budget.cost(now).spent
        assert spent >= last
        last = spent


# --- the fleet around a fleet -----------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Priced(FakeFleet):
    """A fleet whose machines have a price."""

    least_s = 0.0

    async def launch(self, request: LaunchRequest, count: int) -> list[Machine]:
        terms = {"hourly_cost": HOUR, "billed_at_least_s": self.least_s}
        return [replace(machine, **terms) for machine in await super().launch(request, count)]


@pytest.mark.anyio
async def test_a_metered_fleet_counts_from_launch_to_the_confirmed_end() -> None:
    async with anyio.create_task_group() as tasks:
        clock, budget, inner = Clock(), Budget(), Priced(Fake(), "p", tasks)
        changes: list[float] = []
        fleet = Metered(inner, budget, lambda: changes.append(clock.now), clock)
        first, second, third = await fleet.launch(LaunchRequest("key", 3), 3)
        clock.now = 10.0
        assert budget.cost(clock.now) == Cost(30.0, 3 * HOUR)
        await fleet.terminate([first.id, MachineId("unknown")])
        clock.now = 20.0
        assert budget.cost(clock.now) == Cost(50.0, 2 * HOUR)
        inner.lose(second.id)
        inner._say(MachineReachable(replace(third, hourly_cost=2 * HOUR)))
        async with aclosing(fleet.events()) as events:
            assert [await anext(events), await anext(events)] == [
                MachineGone(second.id, "spot interruption"),
                MachineReachable(replace(third, hourly_cost=2 * HOUR)),
            ]
        clock.now = 30.0
        assert budget.cost(clock.now) == Cost(70.0, 2 * HOUR)
        assert changes == [0.0, 10.0, 20.0, 20.0]


@pytest.mark.anyio
async def test_a_machine_that_is_reachable_before_its_launch_is_answered_costs_from_its_request_on() -> None:
    """Found by the simulator: it cost from its first word on, and its provider's least was forgotten."""
    clock = Clock()
    budget = Budget(since=0.0)
    async with Fake().open("p", EntryPoints()) as inner:

        class Slow:
            async def launch(self, request: LaunchRequest, count: int) -> list[Machine]:
                machines = await inner.launch(request, count)
                clock.now = 50.0
                inner._say(MachineReachable(machines[0]))
                await anext(events)
                clock.now = 100.0
                return [replace(each, hourly_cost=HOUR, billed_at_least_s=60.0) for each in machines]

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        fleet = Metered(cast("Fleet", Slow()), budget, lambda: None, clock)
        async with aclosing(fleet.events()) as events:
            await fleet.launch(LaunchRequest("key", 1), 1)
        assert budget.cost(clock.now) == Cost(100.0, HOUR)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["started", "reachable"])
async def test_a_machine_in_the_queue_costs_nothing_until_it_runs(how: str) -> None:
    async with anyio.create_task_group() as tasks:
        clock, budget, inner = Clock(), Budget(), Priced(Fake(), "p", tasks)
        fleet = Metered(inner, budget, lambda: None, clock)
        (first,) = await fleet.launch(LaunchRequest("key", 1), 1)
        async with aclosing(fleet.events()) as events:
            inner.queue(first.id)
            await anext(events)
            clock.now = 1000.0
            assert budget.cost(clock.now) == Cost(0.0, 0.0)
            inner._say(MachineStarted(first.id) if how == "started" else MachineReachable(first))
            await anext(events)
            clock.now = 1010.0
            assert budget.cost(clock.now) == Cost(10.0, HOUR)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["started", "reachable"])
async def test_the_least_time_of_a_machine_that_was_queued_counts_from_its_start(how: str) -> None:
    async with anyio.create_task_group() as tasks:
        clock, budget, inner = Clock(), Budget(), Priced(Fake(), "p", tasks)
        inner.least_s = 60.0
        fleet = Metered(inner, budget, lambda: None, clock)
        (first, second) = await fleet.launch(LaunchRequest("key", 2), 2)
        async with aclosing(fleet.events()) as events:
            for each in (first, second):
                inner.queue(each.id)
                await anext(events)
            clock.now = 1000.0
            inner._say(MachineStarted(first.id) if how == "started" else MachineReachable(first))
            await anext(events)
            clock.now = 1010.0
            await fleet.terminate([first.id, second.id])
            assert budget.cost(clock.now) == Cost(60.0, 0.0), "the second never ran"


@pytest.mark.anyio
async def test_one_that_is_queued_before_its_launch_is_answered_costs_nothing_either() -> None:
    async with anyio.create_task_group() as tasks:
        clock, budget, inner = Clock(), Budget(), Priced(Fake(), "p", tasks)
        fleet = Metered(inner, budget, lambda: None, clock)
        async with aclosing(fleet.events()) as events:
            inner.queue(MachineId("p-1"))
            await anext(events)
            await fleet.launch(LaunchRequest("key", 1), 1)
            clock.now = 1000.0
            assert budget.cost(clock.now) == Cost(0.0, 0.0)
            await fleet.terminate([MachineId("p-1")])
            clock.now = 2000.0
            assert budget.cost(clock.now) == Cost(0.0, 0.0)


@pytest.mark.anyio
async def test_a_launch_without_an_answer_costs_until_it_is_settled() -> None:
    clock = Clock()
    budget = Budget(since=0.0)
    async with Fake().open("p", EntryPoints()) as inner:
        fleet = Metered(inner, budget, lambda: None, clock)
        clock.now = 100.0
        token = MachineId("token")
        asked_at = anyio.current_time() - 90.0  # whenever the pool comes to hear of it
        inner._say(LaunchUnsure(token, 2, 2 * HOUR, asked_at, text="up to 2 machines may exist"))
        inner._say(LaunchSettled(token))
        async with aclosing(fleet.events()) as events:
            await anext(events)
            spent, hourly = budget.cost(clock.now).spent, budget.cost(clock.now).hourly
            assert 2 * 89.99 < spent < 2 * (anyio.current_time() - asked_at) + 0.01
            assert hourly == 2 * HOUR
            clock.now = 110.0
            await anext(events)
        clock.now = 200.0
        assert budget.cost(clock.now) == Cost(pytest.approx(spent + 20.0), 0.0)


@pytest.mark.anyio
async def test_a_metered_fleet_is_the_fleet() -> None:
    async with Fake().open("p", EntryPoints()) as inner:
        fleet = Metered(inner, Budget(), lambda: None)
        machines = await fleet.launch(LaunchRequest("key", 2), 2)
        assert {machine.id for machine in machines} == set(inner.machines)
        await fleet.terminate([machine.id for machine in machines])
        assert inner.machines == {}


@pytest.mark.parametrize(
    ("usd", "said"),
    [
        (0.0, "0.00"),
        (12.345, "12.35"),
        (0.01, "0.01"),
        (0.0042, "0.0042"),
        (0.00012, "0.00012"),
        (1e-9, "less than 0.0001"),
    ],
)
def test_amounts_under_a_cent_are_not_told_as_nothing(usd: float, said: str) -> None:
    assert cents(usd) == said


def _forgets_the_time_before_a_change(patch: pytest.MonkeyPatch) -> None:
    ended = Budget.ended

    def forgets(budget: Budget, machine: MachineId, now: float) -> None:
        budget._account = replace(budget._account, at=now)
        ended(budget, machine, now)

    patch.setattr(Budget, "ended", forgets)


def _counts_the_dead(patch: pytest.MonkeyPatch) -> None:
    ended = Budget.ended

    def forgets(budget: Budget, machine: MachineId, now: float) -> None:
        ended(budget, machine, now)
        budget._ended.discard(machine)

    patch.setattr(Budget, "ended", forgets)


@pytest.mark.parametrize(
    ("invariant", "breaks"), [("BUDGET-1", _forgets_the_time_before_a_change), ("BUDGET-2", _counts_the_dead)]
)
def test_the_invariant_falls_without_its_guard(
    invariant: str, breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Meter, settings=WITHOUT_GUARD)
