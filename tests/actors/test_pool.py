"""The whole pool on a fake cloud: what its users are promised."""

from __future__ import annotations

import anyio
import pytest

from outrider.actors import messages as m
from outrider.actors.interfaces import GaveUp, Reason, Settled, Verdict
from outrider.actors.machines import Machines
from outrider.testing.fake_provider import Script

pytestmark = pytest.mark.anyio


async def test_tasks_run_on_the_nodes_and_settle_with_their_outcome(rig):
    async with rig() as pool:
        await pool.ready()
        jobs = [pool.submit() for _ in range(8)]
        await pool.settled(*jobs)
        assert [type(pool.endings[job]) for job in jobs] == [Settled] * 8
        assert {pool.endings[job].verdict for job in jobs} == {Verdict.RETURNED}
        assert len({pool.endings[job].node for job in jobs}) == 4


async def test_a_broadcast_runs_one_rank_on_every_node(rig):
    async with rig() as pool:
        await pool.ready()
        job = pool.broadcast()
        await pool.settled(job)
        endings, generation = pool.all_endings[job]
        assert generation == 1
        (started,) = pool.seen.all("generation_started")
        assert [(ending.rank, ending.node) for ending in endings] == list(enumerate(started["nodes"]))
        assert sorted(started["nodes"]) == [0, 1, 2, 3]


async def test_leaving_settles_everything_and_closes_every_connection(rig, work):
    async with rig() as pool:
        await pool.ready()
        running, queued = [pool.submit(work(hangs=True)) for _ in range(4)], [pool.submit() for _ in range(4)]
        job = pool.broadcast()
        await anyio.sleep(1)
    assert {pool.endings[j].reason for j in running + queued} == {Reason.CLOSED}
    assert pool.all_endings[job] == ((GaveUp(Reason.CLOSED),), 0)
    assert all(node.closed for node in pool.site.nodes.values())
    assert pool.provider.alive == {}


async def test_a_cancelled_task_settles_at_once_and_frees_its_slot_when_its_processes_are_gone(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        job = pool.submit(work(hangs=True))
        await anyio.sleep(1)
        pool.ref.tell(m.Cancel(job))
        after = pool.submit()
        await pool.settled(job, after, within_s=1)
        assert pool.endings[job] == GaveUp(Reason.CANCELLED)
        assert len(pool.site.nodes[0].killed) == 1


async def test_a_burst_of_ten_thousand_submits_before_the_actor_runs_is_taken(rig):
    async with rig(Script(boot_s=(5.0,))) as pool:
        jobs = [pool.submit() for _ in range(10_000)]
        await pool.settled(*jobs)
        assert len(pool.endings) == 10_000


async def test_cancelling_tasks_looks_at_no_machine_as_ten_thousand_may_be_cancelled_at_once(rig, work, monkeypatch):
    async with rig(desired=1) as pool:
        await pool.ready()
        running, queued = pool.submit(work(hangs=True)), [pool.submit() for _ in range(100)]
        await anyio.sleep(1)
        looks: list[float] = []
        look = Machines.carry_out
        monkeypatch.setattr(Machines, "carry_out", lambda machines, now: (looks.append(now), look(machines, now))[1])
        for job in queued:
            pool.ref.tell(m.Cancel(job))
        await pool.settled(*queued, within_s=1)
        assert {pool.endings[job] for job in queued} == {GaveUp(Reason.CANCELLED)}
        assert len(looks) < 10
        pool.ref.tell(m.Cancel(running))
        await pool.settled(running, within_s=1)
