"""What a provider says of its machines at the end, as the pool's events tell it."""

from __future__ import annotations

from outrider.actors import events as ev
from outrider.engine.client.budget import UsageIntake
from outrider.providers.base import MachineId, MachineUsage, UsageUnknown


def told(*said: MachineUsage | UsageUnknown) -> list[ev.Event]:
    seen: list[ev.Event] = []
    intake = UsageIntake(seen.append, {"a": 3, "b": 1}.get)
    for each in said:
        intake.add(each)
    intake.close()
    return seen


def used(machine: str, cpu_s: float, memory: int | None = 50, *, seconds: float = 10.0) -> MachineUsage:
    return MachineUsage(MachineId(machine), seconds, 4.0, cpu_s, memory, 100)


def test_nothing_said_is_nothing_told():
    assert told() == []


def test_each_node_has_its_own_figures_and_all_have_them_together():
    """By the processor time that each had: 30 of 80 s."""
    assert told(used("a", 10.0), used("b", 20.0, 25)) == [
        ev.NodeUsed(1, "b", 10.0, 4.0, 20.0, 25, 100),
        ev.NodeUsed(3, "a", 10.0, 4.0, 10.0, 50, 100),
        ev.PoolUsed(2, 30 / 80, 75 / 200),
    ]


def test_memory_that_is_not_known_of_a_node_does_not_count():
    assert told(used("a", 10.0, None), used("b", 10.0))[-1] == ev.PoolUsed(2, 20 / 80, 0.5)


def test_a_machine_that_never_was_a_node_is_left_out():
    assert told(used("of a launch that was called off", 10.0)) == []


def test_why_nothing_is_known_is_told_once():
    assert told(UsageUnknown("no accounting"), UsageUnknown("no accounting")) == [
        ev.PoolUsed(0, None, None, "no accounting")
    ]


def test_machines_that_took_no_time_have_no_efficiency():
    assert told(used("a", 0.0, seconds=0.0))[-1] == ev.PoolUsed(1, None, 0.5)
