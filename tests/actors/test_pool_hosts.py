"""A pool on hosts that exist already: those that are down, those that are of no use, and one that comes back."""

from __future__ import annotations

import anyio
import pytest

from outrider.actors import messages as m
from outrider.actors.interfaces import ConnectFailed, NodeId
from outrider.providers.errors import BadRequest, NoCapacity
from outrider.providers.ssh import SSH

pytestmark = pytest.mark.anyio
DOWN = ConnectFailed("connection refused")


def hosts(count: int, connect_timeout: float = 5) -> SSH:
    return SSH(hosts=[f"h{number}" for number in range(count)], connect_timeout=connect_timeout)


def hosts_of(pool) -> list[str]:
    return sorted(node.machine.address.host for node in pool.site.nodes.values())


async def test_a_host_that_is_down_is_passed_over_when_there_is_another(rig):
    async with rig(provider=hosts(3), desired=2, prepare=lambda site: site.refuse.update({NodeId(0): [DOWN]})) as pool:
        await pool.ready()
        assert hosts_of(pool) == ["h1", "h2"]
        assert anyio.current_time() < 15


async def test_a_pool_that_can_do_with_less_starts_and_takes_the_host_when_it_comes(rig):
    def refuse(site):
        site.refuse.update({NodeId(0): [DOWN], NodeId(2): [DOWN]})  # twice the same host

    async with rig(provider=hosts(2), desired=2, min=1, prepare=refuse) as pool:
        await pool.ready()
        assert anyio.current_time() < 1
        await pool.until(lambda: hosts_of(pool) == ["h0", "h1"])


@pytest.mark.parametrize(("count", "up"), [(1, 0), (3, 0), (3, 2)])
async def test_without_enough_hosts_that_answer_a_pool_does_not_start(rig, count, up):
    """Each of them has had its time; another round would not be more than a longer one."""

    def refuse(site):
        site.refuse |= {NodeId(node): [DOWN] for node in range(up, count)}

    async with rig(provider=hosts(count), desired=count, prepare=refuse) as pool:
        with pytest.raises(NoCapacity, match=r"given.* cannot be reached: .*connection refused"):
            await pool.ready()
        assert len(pool.seen.all("node_failed")) == count - up
        assert anyio.current_time() < 5 + 2


async def test_coming_back_does_not_wait_for_hosts_that_are_still_being_prepared(rig):
    """Bringing an image takes minutes, and as many tries as are made at once."""
    async with rig(desired=2, min=1) as pool:
        await pool.ready()
        await pool.until(lambda: len(pool.site.nodes) == 2)
        pool.site.connect_s = 300
        pool.ref.tell(m.Resize(60))
        await anyio.sleep(10)
        pool.site.nodes[NodeId(0)].drop()
        await anyio.sleep(30)
        assert pool.seen.all("node_lost") == []


async def test_a_host_that_goes_later_is_tried_for_longer(rig):
    """It may be starting anew."""
    async with rig(provider=hosts(1), desired=1) as pool:
        await pool.ready()
        pool.site.refuse |= {NodeId(node): [DOWN] for node in (1, 2, 3)}
        pool.site.nodes[NodeId(0)].die()
        await pool.until(lambda: NodeId(4) in pool.site.nodes)
        assert len(pool.seen.all("node_failed")) == 3


async def test_an_unusable_host_is_replaced_at_once_and_never_tried_again(rig):
    def refuse(site):
        site.refuse[NodeId(0)] = [ConnectFailed("another host key", fatal=True)]

    async with rig(provider=hosts(3), desired=2, prepare=refuse) as pool:
        await pool.ready()
        assert anyio.current_time() < 3
        assert hosts_of(pool) == ["h1", "h2"]
        pool.site.nodes[NodeId(1)].die()
        await anyio.sleep(200)
        assert "h0" not in hosts_of(pool)


async def test_a_host_whose_name_does_not_exist_is_not_waited_for(rig):
    def refuse(site):
        site.refuse[NodeId(0)] = [ConnectFailed("no such name", futile=True)] * 1000

    async with rig(provider=hosts(1, connect_timeout=500), desired=1, prepare=refuse) as pool:
        with pytest.raises(ConnectFailed, match="no such name"):
            await pool.ready()
        assert anyio.current_time() < 10


async def test_a_host_that_is_up_and_refuses_is_waited_for_a_part_of_the_time(rig):
    def refuse(site):
        site.refuse[NodeId(0)] = [ConnectFailed("nothing listens", refused=True)] * 1000

    async with rig(provider=hosts(1, connect_timeout=500), desired=1, prepare=refuse) as pool:
        with pytest.raises(NoCapacity, match="nothing listens"):
            await pool.ready()
        assert 150 <= anyio.current_time() < 180


async def test_a_name_that_does_not_exist_for_a_while_is_asked_for_again(rig):
    """A network that is away takes the names with it: neither the node nor its host is given up for that."""
    async with rig(provider=hosts(1), desired=1) as pool:
        await pool.ready()
        pool.site.refuse |= {NodeId(node): [ConnectFailed("no such name", futile=True)] for node in (1, 2)}
        pool.site.nodes[NodeId(0)].die()
        await pool.until(lambda: NodeId(3) in pool.site.nodes)
        assert len(pool.seen.all("node_failed")) == 2


async def test_without_enough_usable_hosts_the_first_refusal_is_raised_with_the_others(rig):
    def refuse(site):
        site.refuse[NodeId(0)] = [ConnectFailed("another host key", fatal=True)]
        site.refuse[NodeId(1)] = [ConnectFailed("its disk is full", fatal=True)]

    async with rig(provider=hosts(3), desired=3, prepare=refuse) as pool:
        with pytest.raises(ConnectFailed) as told:
            await pool.ready()
        (note,) = told.value.__notes__
        assert {str(told.value), note.removeprefix("Also: ")} == {"another host key", "its disk is full"}
        assert anyio.current_time() < 3


async def test_what_no_machine_could_do_is_not_tried_on_others(rig):
    def refuse(site):
        site.refuse[NodeId(0)] = [ConnectFailed("there is no package nump", systematic=True)]

    async with rig(provider=hosts(9), desired=2, prepare=refuse) as pool:
        with pytest.raises(ConnectFailed, match="no package nump"):
            await pool.ready()
        assert len(pool.seen.all("nodes_requested")) == 1


def without_python(node: int) -> ConnectFailed:
    failed = ConnectFailed(f"node {node} has no Python", fatal=True)
    failed.kind = "no Python"
    return failed


async def test_machines_that_fail_alike_twice_end_a_pool_that_starts(rig):
    """FLEET-14"""

    def refuse(site):
        site.refuse |= {NodeId(node): [without_python(node)] for node in range(50)}

    async with rig(desired=2, prepare=refuse) as pool:
        with pytest.raises(ConnectFailed, match="has no Python"):
            await pool.ready()
        assert len(pool.seen.all("nodes_requested")) == 2


async def test_hosts_of_ones_own_that_fail_alike_are_passed_over(rig):
    """Each host is tried once, and the next one may have what these lack."""

    def refuse(site):
        site.refuse |= {NodeId(node): [without_python(node)] for node in range(4)}

    async with rig(provider=hosts(6), desired=2, prepare=refuse) as pool:
        await pool.ready()
        assert hosts_of(pool) == ["h4", "h5"]


async def test_a_defect_while_a_node_is_prepared_ends_a_pool_that_starts(rig):
    def refuse(site):
        site.refuse |= {NodeId(node): [TypeError("an argument is missing")] for node in range(50)}

    async with rig(desired=2, prepare=refuse) as pool:
        with pytest.raises(ConnectFailed, match="TypeError: an argument is missing") as caught:
            await pool.ready()
        assert isinstance(caught.value.__cause__, TypeError)
        assert len(pool.seen.all("nodes_requested")) == 1


async def test_more_nodes_than_hosts_is_refused_before_anything_is_connected_to(rig):
    async with rig(provider=hosts(2), desired=3) as pool:
        with pytest.raises(BadRequest, match="needs 3 nodes"):
            await pool.ready()
        assert not pool.site.nodes


async def test_a_lost_host_is_taken_again_when_it_answers(rig):
    async with rig(provider=hosts(2), desired=2) as pool:
        await pool.ready()
        pool.site.refuse[NodeId(2)] = [DOWN]  # its first return
        pool.site.nodes[NodeId(0)].die()
        await pool.until(lambda: NodeId(3) in pool.site.nodes)
        assert pool.site.nodes[NodeId(3)].machine.address.host == "h0"
        assert (await pool.state()).nodes[-1].rank is not None
