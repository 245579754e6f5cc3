"""The jax plugin: its variables, without JAX. With it: tests/frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider import InstanceInfo, SpecError, instance_info, plugins
from outrider.actors.interfaces import NodeFacts

Place = Callable[..., InstanceInfo]


def test_every_rank_knows_the_coordinator_and_its_number(place: Place) -> None:
    assert plugins.jax().env(place(1, nodes=4)) == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.0:29500",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "1",
        "JAX_LOCAL_DEVICE_COUNT": "1",
    }
    assert plugins.jax().env(place(1, address="fd00::{}"))["JAX_COORDINATOR_ADDRESS"] == "[fd00::0]:29500"


def test_one_process_has_all_devices_of_its_node_and_several_share_them(place: Place) -> None:
    eight = NodeFacts("h", "10.0.0.1", (), (("H100", 80.0),) * 8)
    assert [plugins.jax().ranks_per_node(eight), plugins.jax("auto").ranks_per_node(eight)] == [1, 8]

    all_of_them = plugins.jax().env(place(0, gpus=8))
    assert all_of_them["JAX_LOCAL_DEVICE_COUNT"] == "8"
    assert "JAX_LOCAL_DEVICE_IDS" not in all_of_them
    some = plugins.jax(2).env(place(3, each=2, gpus=8))
    assert (some["JAX_LOCAL_DEVICE_COUNT"], some["JAX_LOCAL_DEVICE_IDS"]) == ("4", "4,5,6,7")


def test_a_cpu_can_be_several_devices(place: Place) -> None:
    env = plugins.jax(cpu_devices=3).env(place(0))
    assert (env["JAX_NUM_CPU_DEVICES"], env["JAX_LOCAL_DEVICE_COUNT"]) == ("3", "3")


def test_a_task_alone_needs_no_coordinator() -> None:
    with plugins.jax().session(instance_info()):
        pass  # and no jax: this environment may lack it


def test_a_broadcast_is_collective_and_its_processes_end_with_it() -> None:
    plugin = plugins.jax()
    assert (plugin.collective, plugin.fresh_process, plugin.ports) == (True, True, "head")


@pytest.mark.parametrize(
    "options", [{"ranks_per_node": 0}, {"cpu_devices": 0}, {"cpu_devices": "2"}, {"timeout": -1}, {"timeout": "1 h"}]
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"plugins\.jax: "):
        plugins.jax(**options)
