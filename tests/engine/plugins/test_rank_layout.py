"""What plugins work out from where a rank is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outrider import InstanceInfo, SpecError, instance_info
from outrider.actors.interfaces import NodeFacts
from outrider.engine.plugins import rank_layout

Place = Callable[..., InstanceInfo]


def test_every_rank_has_as_many_devices_and_no_two_the_same(place: Place) -> None:
    assert [rank_layout.devices(place(rank, each=4, gpus=8)) for rank in range(4)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert rank_layout.devices(place(5, each=4, gpus=8)) == (2, 3)  # of its own node
    assert rank_layout.devices(place(1, each=1, gpus=2)) == (0, 1)
    assert rank_layout.devices(place(2, each=4, gpus=3)) == ()  # not one for each


def test_a_task_in_one_of_several_slots_has_the_devices_of_its_slot(place: Place) -> None:
    alone = replace(place(0, nodes=1, gpus=4), workers_per_node=2)
    assert [rank_layout.devices(replace(alone, worker=slot)) for slot in range(2)] == [(0, 1), (2, 3)]


def test_the_interface_of_an_address_is_found() -> None:
    assert rank_layout.interface("127.0.0.1") == "lo"
    assert rank_layout.interface("127.0.0.2") == "lo"
    assert rank_layout.interface("localhost") == "lo"
    assert rank_layout.interface("192.0.2.77") is None  # of documentation: nobody's
    assert rank_layout.interface("some-host") is None
    assert rank_layout.interface("") is None


def test_endpoints_are_as_grpc_reads_them() -> None:
    assert rank_layout.endpoint("10.0.0.1", 80) == "10.0.0.1:80"
    assert rank_layout.endpoint("fd00::1", 80) == "[fd00::1]:80"


def test_a_rank_is_reached_at_its_own_address_and_a_task_alone_at_its_nodes(place: Place) -> None:
    assert rank_layout.own_address(place(3, nodes=4)) == "10.0.0.3"
    assert rank_layout.own_address(instance_info()) == "127.0.0.1"


def test_defaults_give_way_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_TEST_A", "mine")
    monkeypatch.delenv("OUTRIDER_TEST_B", raising=False)
    assert rank_layout.unless_set({"OUTRIDER_TEST_A": "ours", "OUTRIDER_TEST_B": "ours"}) == {
        "OUTRIDER_TEST_A": "mine",
        "OUTRIDER_TEST_B": "ours",
    }


def test_ranks_per_node_is_a_number_or_one_for_each_device() -> None:
    eight = NodeFacts("h", "10.0.0.1", (), (("H100", 80.0),) * 8)
    none = NodeFacts("h", "10.0.0.1", ())
    assert [rank_layout.ranks_on(facts, ranks) for facts in (none, eight) for ranks in ("auto", 2)] == [1, 2, 8, 2]
    for wrong in (0, -1, True, 1.5, "two", None):
        with pytest.raises(SpecError, match=r"plugins\.jax: ranks_per_node"):
            rank_layout.checked_ranks("jax", wrong)
