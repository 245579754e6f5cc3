"""The guarantees' table on real hosts: how soon each kind of loss is seen, and what is none."""

from __future__ import annotations

import pytest
from bars import losses, weather
from bars.site import busy

pytestmark = pytest.mark.anyio


async def test_a_task_whose_process_dies_is_a_typed_error_in_a_second(lab):
    """The best of three: on a busy computer some take longer."""
    took = await losses.process_dies(lab, times=3)
    assert max(min(figures) for figures in took.values()) < losses.PROCESS_S, took


async def test_every_loss_of_a_machine_is_seen_in_time(lab):
    """Those that close their connections in 1 s, those that fall silent in 10 s; who stays is not given up."""
    took = await losses.machines_go(lab, {**losses.SILENT, **losses.CLOSED})
    for name in losses.SILENT:
        assert losses.STALL_S < took[name].lost_s < busy(losses.SILENT_S), took
    for name in losses.CLOSED:
        assert took[name].suspected_s < busy(losses.CLOSED_S), took
    assert took[losses.KILLED].lost_s < busy(losses.CLOSED_S), "there is nothing that could come back"


@pytest.mark.parametrize(
    "fault",
    [
        "power off, cloud",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("power off, LAN", "frozen host")),
    ],
)
async def test_a_pools_only_node_is_lost_as_soon_where_another_host_answers(lab, fault):
    lost_s, attempt = await losses.only_node_goes(lab, losses.SILENT[fault], hosts=2)
    assert losses.STALL_S < lost_s < busy(losses.SILENT_S)
    assert attempt == 2


@pytest.mark.nightly  # test_ssh_losses.py has the same network, with one stall
async def test_five_percent_loss_and_stalls_of_three_seconds_are_no_death(lab):
    """Some of the benchmark's half an hour."""
    seen = await weather.storm(lab, lasts_s=40.0)
    assert seen.stalls > 2
