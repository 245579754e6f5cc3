"""Pools whose number of nodes changes: what makes them grow, and what a node that leaves is waited for."""

from __future__ import annotations

import anyio
import pytest

from outrider.actors import messages as m
from outrider.actors.interfaces import ScaleByLoad, Verdict
from outrider.actors.node_lives import LOOK_S
from outrider.testing.fake_provider import Script

pytestmark = pytest.mark.anyio


async def test_short_tasks_that_wait_on_a_node_behind_a_long_one_make_the_pool_grow(rig, work):
    """They are of one function, which is known to be short by then: so the node holds them all in advance."""
    async with rig(Script(boot_s=(1.0,)), desired=0, min=0, scale=ScaleByLoad(8, 60.0)) as pool:
        first = pool.submit(work(takes_s=0.0001))
        await pool.settled(first)
        long = pool.submit(work(takes_s=3000.0))
        short = [pool.submit(work(takes_s=0.0001)) for _ in range(20)]
        await pool.settled(*short, within_s=30)
        assert long not in pool.endings
        assert [facts["wanted"] for facts in pool.seen.all("pool_scaled")] == [1, 2]  # they are worth no third
        assert len(pool.provider.launched) == 2


async def test_nothing_is_lost_however_often_a_pool_grows_to_eight_and_comes_back_to_none(rig, work):
    async with rig(Script(boot_s=(30.0,)), desired=0, min=0, scale=ScaleByLoad(8, 60.0)) as pool:
        for _ in range(3):
            jobs = [pool.submit(work(takes_s=20.0)) for _ in range(64)]
            await pool.until(lambda: len(pool.provider.alive) == 8, within_s=60)
            await pool.settled(*jobs)
            await pool.until(lambda: not pool.provider.alive, within_s=200)
            assert {pool.endings[job].verdict for job in jobs} == {Verdict.RETURNED}
        assert len(pool.provider.launched) == 3 * 8
        assert len(pool.seen.all("task_submitted")) == len(pool.site.ran), "and nothing ran twice"


async def test_a_drained_node_stays_until_the_files_that_come_from_it_are_here(rig):
    async with rig(desired=2, min=1) as pool:
        await pool.ready()
        used = pool.site.nodes[1]
        used.in_use = 1
        pool.ref.tell(m.Resize(1))
        await anyio.sleep(300)
        assert len(pool.seen.all("node_draining")) == 1
        assert len(pool.provider.alive) == 2
        used.in_use = 0
        await anyio.sleep(LOOK_S + 0.1)
        assert len(pool.provider.alive) == 1
        assert [facts["node"] for facts in pool.seen.all("node_dismissed")] == [1]


async def test_a_node_that_will_be_preempted_is_ended_after_the_files_that_come_from_it_and_no_earlier(rig):
    async with rig(desired=2) as pool:
        await pool.ready()
        used = pool.site.nodes[1]
        used.in_use = 1
        used.notice("imds", 120.0)
        await pool.until(lambda: len(pool.site.nodes) == 3)  # it is replaced, and holds no task
        await anyio.sleep(60)
        assert pool.seen.all("node_dismissed") == []
        used.in_use = 0
        await anyio.sleep(LOOK_S + 0.1)
        assert [facts["node"] for facts in pool.seen.all("node_dismissed")] == [1]
