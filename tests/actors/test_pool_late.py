"""Machines that do not answer while those launched with them do: made up for, and taken if they come after all."""

from __future__ import annotations

import anyio
import pytest

from outrider.actors import messages as m
from outrider.actors.interfaces import ConnectFailed, NodeId, PoolSpec
from outrider.actors.node_lives import TRIES_AT_ONCE
from outrider.actors.stragglers import GRACE_S
from outrider.providers.errors import NotAuthorized
from outrider.providers.ssh import SSH
from outrider.testing.fake_provider import Script

pytestmark = pytest.mark.anyio
NEVER_S = 1e6
DEAF = ConnectFailed("no answer")
BOOT_TIMEOUT_S = PoolSpec(1, 1, 1).boot_timeout_s


def deaf(*nodes):
    return lambda site: site.refuse.update({NodeId(node): [DEAF] for node in nodes})


@pytest.mark.parametrize("how", ["no address", "no answer"])
async def test_a_machine_that_does_not_answer_is_made_up_for_and_dismissed(rig, how):
    boots = (1.0, 2.0, 3.0, NEVER_S, 3.0) if how == "no address" else (1.0, 2.0, 3.0)
    async with rig(Script(boot_s=boots), prepare=deaf(*([3] if how == "no answer" else []))) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(3.0 + GRACE_S + 3.0, abs=0.1)
        (late,) = pool.seen.all("node_late")
        assert late == {"node": 3, "waited_s": pytest.approx(13.0, abs=0.1), "others_s": pytest.approx(3.0, abs=0.1)}
        await anyio.sleep(1)
        assert pool.seen.all("node_dismissed") == [{"node": 3}]
        assert pool.seen.all("node_failed") == []
        assert len(pool.provider.alive) == 4


async def test_one_that_is_ready_after_all_works_and_the_other_is_ended(rig):
    async with rig(Script(boot_s=(1.0, 2.0, 3.0, 20.0, 30.0))) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(20.0, abs=0.1)
        await anyio.sleep(60)
        assert sorted(pool.site.nodes) == [0, 1, 2, 3]
        assert pool.seen.all("node_dismissed") == [{"node": 4}]
        assert len(pool.provider.alive) == 4


async def test_one_that_has_answered_may_take_its_time(rig):
    """An image may take minutes on one machine, and seconds on others that have it."""
    async with rig(Script(boot_s=(1.0,)), prepare=lambda site: site.prepare_s.update({NodeId(3): 300.0})) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(301.0, abs=0.1)
        assert pool.seen.all("node_late") == []
        assert len(pool.provider.launched) == 4


async def test_a_replacement_is_measured_by_those_that_were_there_before(rig):
    async with rig(Script(boot_s=(1.0, 2.0, 3.0)), prepare=deaf(4)) as pool:
        await pool.ready()
        lost_at = anyio.current_time()
        pool.fleet.lose(pool.site.nodes[NodeId(0)].machine.id)
        await pool.until(lambda: NodeId(5) in pool.site.nodes)
        assert anyio.current_time() - lost_at == pytest.approx(3.0 + GRACE_S + 3.0, abs=0.5)


async def test_without_capacity_for_another_the_pool_opens_with_the_late_one(rig):
    """As it would have if nobody had asked: the tries beside it are none of the pool's."""
    script = Script(boot_s=(1.0, 1.0, 1.0, 500.0), capacity=4)
    async with rig(script, launch_retries=1) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(500.0, abs=0.1)
        assert len(pool.seen.all("launch_failed")) > 5
        assert {facts["failures"] for facts in pool.seen.all("launch_failed")} == {0}
        assert (await pool.state()).error is None


async def test_nor_does_a_refusal_for_good_end_what_may_still_come(rig):
    script = Script(boot_s=(1.0, 1.0, 1.0, 500.0), failures=(None, NotAuthorized("no permission")))
    async with rig(script) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(500.0, abs=0.1)
        assert len(pool.fleet.requests) == 2
        assert (await pool.state()).error is None


async def test_without_capacity_a_late_one_that_never_comes_fails_as_any_other(rig):
    async with rig(Script(boot_s=(1.0, 1.0, 1.0, NEVER_S, 1.0), capacity=4), launch_retries=1) as pool:
        await anyio.sleep(BOOT_TIMEOUT_S + 1)
        (failed,) = pool.seen.all("node_failed")
        assert failed["node"] == 3
        pool.provider.script = Script()
        await pool.ready()


async def test_a_late_one_that_goes_while_another_boots_is_no_failed_launch(rig):
    async with rig(Script(boot_s=(1.0, 1.0, 1.0, NEVER_S, 5.0)), launch_retries=0) as pool:
        await pool.until(lambda: pool.seen.all("node_late"))
        await anyio.sleep(1)
        pool.fleet.lose(pool.provider.launched[3])
        await pool.ready()
        assert len(pool.seen.all("node_failed")) == 1
        assert pool.seen.all("launch_failed") == []
        assert len(pool.provider.launched) == 5


async def test_no_more_than_half_of_the_nodes_are_late_at_a_time(rig):
    boots = (1.0, 1.0, 1.0, *[NEVER_S] * 4)
    async with rig(Script(boot_s=boots)) as pool:
        await anyio.sleep(BOOT_TIMEOUT_S - 1)
        assert len(pool.seen.all("node_late")) == 2
        assert len(pool.provider.alive) == 6


async def test_those_that_wait_for_their_turn_are_not_late(rig):
    nodes = 4 + 2 * TRIES_AT_ONCE
    async with rig() as pool:
        await pool.ready()
        pool.site.connect_s = 8.0  # the second half answers after 16 s, where the first nodes took none
        pool.ref.tell(m.Resize(nodes))
        await anyio.sleep(30)
        assert len(pool.site.nodes) == nodes
        assert pool.seen.all("node_late") == []


async def test_none_waits_for_its_turn_while_images_are_brought_to_others(rig):
    """Until it is connected to, nobody renews a machine's lease."""
    nodes = TRIES_AT_ONCE + 10
    async with rig(
        desired=nodes, prepare=lambda site: site.prepare_s.update(dict.fromkeys(range(nodes), 120.0))
    ) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(120.0, abs=1)


async def test_a_notice_for_a_late_node_ends_it(rig):
    async with rig(Script(boot_s=(1.0, 1.0, 1.0, NEVER_S, 5.0))) as pool:
        await pool.until(lambda: pool.seen.all("node_late"))
        pool.fleet.give_notice(pool.provider.launched[3], seconds=120.0)
        await pool.ready()
        assert pool.seen.all("node_dismissed") == [{"node": 3}]
        assert len(pool.provider.launched) == 5


async def test_resizing_to_those_that_are_ready_ends_the_late_one_and_the_other(rig):
    async with rig(Script(boot_s=(1.0, 1.0, 1.0, NEVER_S, 5.0))) as pool:
        await pool.until(lambda: pool.seen.all("node_late"))
        await anyio.sleep(1)
        pool.ref.tell(m.Resize(3))
        await pool.ready()
        await anyio.sleep(1)
        assert len(pool.provider.alive) == 3


async def test_ones_own_hosts_keep_the_patience_that_they_have(rig):
    """There is no machine to add, and `connect_timeout` says how long one is waited for."""
    provider = SSH(hosts=[f"h{number}" for number in range(5)], connect_timeout=60)
    async with rig(provider=provider, prepare=deaf(3)) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(60.0, abs=3)
        assert pool.seen.all("node_late") == []


async def test_a_host_that_has_answered_is_not_down_because_its_connection_was_lost(rig):
    """An image takes longer to bring than `connect_timeout`, which is for hosts that do not answer."""
    provider = SSH(hosts=["h0"], connect_timeout=10)
    async with rig(provider=provider, desired=1, prepare=lambda s: s.breaks_s.update({NodeId(0): 60.0})) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(60.0, abs=1)
        assert pool.seen.all("node_failed") == []
