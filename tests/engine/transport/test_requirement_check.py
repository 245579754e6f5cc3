"""What a host must have, and which differences in versions matter."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest

from outrider.actors.interfaces import NodeFacts, NodeId
from outrider.engine.node import facts as node_facts
from outrider.engine.transport import requirement_check
from outrider.engine.wire import messages as wire
from outrider.providers.base import AcceleratorRequest


def facts(*devices: tuple[str, float]) -> NodeFacts:
    return NodeFacts("gpu1", "10.0.0.1", (), devices)


@pytest.mark.parametrize(
    ("wanted", "devices", "enough"),
    [
        (None, (), True),
        (AcceleratorRequest("T4", memory_gb=16), (("Tesla T4", 15.0),), True),
        (AcceleratorRequest("A100", 2, 80), (("A100-SXM4-80GB", 80.0),) * 2, True),
        (AcceleratorRequest("A100", 2), (("A100-SXM4-80GB", 80.0),), False),
        (AcceleratorRequest("A100", 1, 80), (("A100-SXM4-40GB", 40.0),), False),
        (AcceleratorRequest("A100"), (("H100", 80.0),), False),
        (AcceleratorRequest("A100"), (), False),
    ],
)
def test_a_host_must_have_the_accelerators_that_were_asked_for(
    wanted: AcceleratorRequest | None, devices: tuple[tuple[str, float], ...], enough: bool
) -> None:
    error = requirement_check.too_small(facts(*devices), {}, requirement_check.Wanted(wanted))
    assert (error is None) == enough
    if error is not None:
        assert "gpu1" in str(error)
        assert str(wanted) in str(error)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (requirement_check.Wanted(), ""),
        (requirement_check.Wanted(vcpus=8, memory_gb=16), ""),  # sold as 16, and shows 15.4
        (requirement_check.Wanted(vcpus=9), "9 vCPUs per node; gpu1 has 8"),
        (requirement_check.Wanted(memory_gb=32), "32 GB of memory per node; gpu1 has 15.4"),
        (requirement_check.Wanted(AcceleratorRequest("A100")), "shows none"),
    ],
)
def test_a_host_must_have_the_processors_and_memory_that_were_asked_for(
    wanted: requirement_check.Wanted, said: str
) -> None:
    error = requirement_check.too_small(facts(), {"cpus": 8, "memory_bytes": 15_400_000_000}, wanted)
    assert (error is None) == (said == "")
    assert said in str(error)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "installed_packages", lambda: {"numpy": "2.1.0", "torch": "2.13.0+cpu"})
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))


@pytest.mark.usefixtures("here")
def test_what_this_program_uses_and_the_node_would_misread_is_an_error_with_the_table() -> None:
    mismatches = requirement_check.differences({"numpy": "1.26.4", "torch": "2.12.0"})
    error = requirement_check.misfit(facts(), mismatches, NodeId(3))
    assert error is not None
    assert error.node == 3
    assert ("numpy", "2.1.0", "1.26.4") in error.versions
    assert 'Image(pip=["numpy==2.1.0"])' in str(error)
    assert "2.12.0" in str(error)


@pytest.mark.usefixtures("here")
def test_lesser_differences_are_told_and_no_error() -> None:
    mismatches = requirement_check.differences({"numpy": "2.0.2", "torch": "2.13.0"})
    assert requirement_check.misfit(facts(), mismatches, NodeId(0)) is None
    assert [each.what for each in mismatches] == ["numpy"]


def test_a_package_that_this_program_has_not_imported_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "installed_packages", lambda: {"numpy": "2.1.0"})
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    mismatches = requirement_check.differences({"numpy": "1.26.4"})
    assert mismatches
    assert requirement_check.misfit(facts(), mismatches, NodeId(0)) is None


SAID: dict[str, object] = {
    "hostname": "gpu1", "addresses": ["10.0.0.1"], "accelerators": [["T4", 15.0]], "cpus": 8, "memory_bytes": 16e9,
    "packages": {"numpy": "2.0"},
}  # fmt: skip


def welcome(**said: object) -> wire.Welcome:
    return wire.Welcome(1, False, 0, {**SAID, **said}, (), (4000,))


def test_a_node_is_taken_at_its_word() -> None:
    has = {"millicpus": 8000, "memory_bytes": 16_000_000_000}
    assert requirement_check.facts(welcome()) == NodeFacts("gpu1", "10.0.0.1", (4000,), (("T4", 15.0),), **has)


def test_nodes_that_are_one_computer_have_an_equal_part_of_it_and_a_processor_at_least() -> None:
    found = requirement_check.facts(welcome(sharing=3)).amounts
    assert found == (2000, 5_333_333_333, 1)
    assert requirement_check.facts(welcome(sharing=20)).amounts.millicpus == 1000


@pytest.mark.parametrize(
    "said",
    [
        {"hostname": 5}, {"hostname": "x" * 256}, {"addresses": []}, {"addresses": None}, {"addresses": [["a"]]},
        {"addresses": ["x" * 900_000]}, {"accelerators": 1}, {"sharing": 0},
        {"sharing": "2"}, {"accelerators": [["T4"]]}, {"accelerators": [[4, 15]]},
        {"accelerators": [["T4", math.nan]]}, {"accelerators": [["T4", -1]]}, {"accelerators": [["T4", 15]] * 257},
        {"cpus": math.inf}, {"cpus": "8"}, {"memory_bytes": -1}, {"memory_bytes": 2**64 - 1}, {"packages": []},
        {"packages": {"numpy": 2}}, {"packages": {"numpy": {}}},
    ],
    ids=lambda said: str(said)[:40],
)  # fmt: skip
def test_facts_that_are_none_are_refused(said: dict[str, object]) -> None:
    """What one node says of itself goes to all others: a name without end would not fit into their frames."""
    with pytest.raises(ValueError, match="fact"):
        requirement_check.facts(welcome(**said))
