"""HOLD-1 and HOLD-2 hold whatever comes and goes, and each of them falls when its guard is taken away."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from outrider.engine.node.holdings import FREE, OWN, THREADS, VISIBLE, Holdings, named_devices
from outrider.engine.wire.messages import Hold

DEVICES = ("0", "1", "2", "GPU-3")


class HoldingsMachine(RuleBasedStateMachine):
    """Plays a client that gives the node no more than it has, and workers that take their time to end."""

    make = Holdings

    def __init__(self) -> None:
        super().__init__()
        self.holdings = self.make(DEVICES)
        self.next = 1
        self.running: dict[int, set[str]] = {}  # by attempt, which is its worker's number too
        self.ending: dict[int, set[str]] = {}  # answered; the process is still there

    @precondition(lambda self: sum(map(len, self.running.values())) < len(DEVICES))
    @rule(data=st.data())
    def an_attempt_begins(self, data: st.DataObject) -> None:
        left = len(DEVICES) - sum(map(len, self.running.values()))
        count = data.draw(st.integers(1, left))
        attempt, self.next = self.next, self.next + 1
        self.holdings.add(Hold(attempt, 0, 0, count))
        own = self.holdings.allotment(attempt, attempt).settings[VISIBLE].split(",")
        assert len(own) == len({*own}) == count
        held = set().union(*self.running.values()) if self.running else set()
        assert held.isdisjoint(own), "HOLD-1: a device of another attempt"
        leaving = set().union(*self.ending.values()) if self.ending else set()
        unused = {*DEVICES} - held - leaving
        assert unused <= {*own} or leaving.isdisjoint(own), "HOLD-2: a process that ends has it, and others nobody has"
        self.running[attempt] = {*own}

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def an_attempt_is_answered(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.running)))
        self.ending[attempt] = self.running.pop(attempt)
        self.holdings.ended(attempt)

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def a_process_is_gone(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.ending)))
        del self.ending[attempt]
        self.holdings.gone(attempt)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_process_dies(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[attempt]
        self.holdings.gone(attempt)
        self.holdings.ended(attempt)


QUICK = settings(max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestHoldings = HoldingsMachine.TestCase
TestHoldings.settings = QUICK


class ForgetsWhoHasWhat(Holdings):
    def _use(self, device: str) -> tuple[int, int]:
        running, users = super()._use(device)
        return 0, users - running


class TakesWhatEnds(Holdings):
    def _use(self, device: str) -> tuple[int, int]:
        running, users = super()._use(device)
        return running, -users


@pytest.mark.parametrize(("broken", "invariant"), [(ForgetsWhoHasWhat, "HOLD-1"), (TakesWhatEnds, "HOLD-2")])
def test_the_invariant_falls_without_its_guard(broken: type[Holdings], invariant: str) -> None:
    class Machine(HoldingsMachine):
        make = broken

    once = settings(QUICK, max_examples=2000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=once)  # type: ignore[no-untyped-call]


def test_an_attempt_that_gets_another_worker_gets_no_device_of_others() -> None:
    """Its first worker was ended before it had read the attempt, and still ends."""
    holdings = Holdings(("0", "1"))
    for attempt in (1, 2):
        holdings.add(Hold(attempt, 0, 0, 1))
    assert holdings.allotment(1, 1).settings[VISIBLE] == "0"
    assert holdings.allotment(2, 2).settings[VISIBLE] == "1"
    assert holdings.allotment(3, 2).settings[VISIBLE] == "1"


def test_a_task_without_amounts_changes_nothing() -> None:
    holdings = Holdings(DEVICES)
    assert holdings.allotment(1, 1) is FREE
    holdings.add(Hold(2, 0, 5_000_000, 0))
    assert holdings.allotment(2, 2) == ({}, {}, 5_000_000)


def test_threads_are_as_many_as_whole_processors_and_at_least_one() -> None:
    holdings = Holdings(DEVICES)
    for attempt, millicpus, threads in ((1, 2500, "2"), (2, 100, "1")):
        holdings.add(Hold(attempt, millicpus, 0, 0))
        assert holdings.allotment(attempt, attempt).defaults == dict.fromkeys(THREADS, threads)


def test_devices_are_in_the_order_of_the_node() -> None:
    holdings = Holdings(("5", "2", "9"))
    for attempt in (1, 2):
        holdings.add(Hold(attempt, 0, 0, attempt))
    assert holdings.allotment(1, 1).settings == {VISIBLE: "5", OWN: "5"}
    assert holdings.allotment(2, 2).settings == {VISIBLE: "2,9", OWN: "2,9"}


@pytest.mark.parametrize(
    ("count", "env", "names"),
    [
        (2, {}, ("0", "1")),
        (2, {VISIBLE: "3, 1"}, ("3", "1")),
        (1, {VISIBLE: "GPU-5f3c,1"}, ("GPU-5f3c",)),
        (2, {VISIBLE: "3"}, ("0", "1")),  # somebody's plugin found more
        (0, {VISIBLE: ""}, ()),
    ],
)
def test_devices_have_the_names_by_which_the_nodes_tasks_see_them(
    count: int, env: dict[str, str], names: tuple[str, ...]
) -> None:
    assert named_devices(count, env) == names
