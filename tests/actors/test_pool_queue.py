"""Machines that wait in their provider's queue: no time-out of the pool's counts that, and its own limit ends it."""

from __future__ import annotations

import anyio
import pytest

from outrider.actors import messages as m
from outrider.actors.interfaces import GaveUp, QueuedTooLong, Reason
from outrider.actors.stragglers import GRACE_S
from outrider.providers.base import MachineReachable
from outrider.providers.errors import BadRequest, NoCapacity
from outrider.testing.fake_provider import Script

pytestmark = pytest.mark.anyio
NEVER_S = 1e6


@pytest.mark.parametrize("queue_s", [60.0, 900.0])
async def test_a_job_that_waits_for_longer_than_a_boot_may_take_opens(rig, queue_s):
    script = Script(queue_s=(queue_s,), boot_s=(5.0,))
    async with rig(script, desired=4, boot_timeout_s=20.0, replace_timeout_s=30.0) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(queue_s + 5.0, abs=0.1)
        assert len(pool.provider.launched) == 4
        assert [each["node"] for each in pool.seen.all("node_queued")] == [0, 1, 2, 3]
        started = sorted(pool.seen.all("node_started"), key=lambda each: each["node"])
        assert started == [{"node": node, "waited_s": pytest.approx(queue_s, abs=0.1)} for node in range(4)]
        assert pool.seen.all("node_failed") == pool.seen.all("node_late") == []


async def test_the_time_to_boot_begins_when_the_machine_runs(rig):
    script = Script(queue_s=(60.0,), boot_s=(NEVER_S,))
    async with rig(script, desired=1, boot_timeout_s=20.0, launch_retries=0) as pool:
        with pytest.raises(Exception, match="not ready within 20 s"):
            await pool.ready()
        assert anyio.current_time() == pytest.approx(80.0, abs=0.1)


async def test_an_address_is_a_start_too(rig):
    async with rig(Script(boot_s=(NEVER_S,)), desired=1, boot_timeout_s=20.0) as pool:
        await anyio.sleep(1)
        (machine,) = pool.fleet.machines
        pool.fleet.queue(machine)
        await anyio.sleep(100)
        pool.fleet._address(machine)
        pool.fleet._say(MachineReachable(pool.fleet.machines[machine]))
        await pool.ready()
        assert [each["node"] for each in pool.seen.all("node_started")] == [0]
        pool.fleet.queue(machine)  # of a machine that is there it means nothing
        await anyio.sleep(1)
        assert len(pool.seen.all("node_queued")) == 1


async def test_what_it_waits_for_is_told_when_it_changes(rig):
    async with rig(Script(queue_s=(60.0,)), desired=1) as pool:
        await anyio.sleep(1)
        (machine,) = pool.fleet.machines
        for reason, starts_at in [
            ("pending: Priority", None),
            ("pending: Resources", None),
            ("pending: Resources", 9.0),
        ]:
            pool.fleet.queue(machine, reason, starts_at)
            pool.fleet.queue(machine, reason, starts_at)
        await pool.ready()
        told = [(each["reason"], each["starts_at"]) for each in pool.seen.all("node_queued")]
        assert told == [("pending: Priority", None), ("pending: Resources", None), ("pending: Resources", 9.0)]


async def test_one_that_waits_for_too_long_fails_the_pool_with_its_reason(rig):
    async with rig(Script(queue_s=(NEVER_S,)), desired=2, start_timeout_s=300.0) as pool:
        with pytest.raises(QueuedTooLong, match="pending: Priority") as caught:
            await pool.ready()
        assert anyio.current_time() == pytest.approx(300.0, abs=0.1)
        assert caught.value.limit_s == 300.0
        await anyio.sleep(1)
        assert pool.provider.alive == {}, "the job was given back"
        assert len(pool.provider.launched) == 2, "and not asked for again"


async def test_one_that_will_never_run_fails_the_pool_at_once(rig):
    async with rig(Script(queue_s=(NEVER_S,)), desired=2) as pool:
        await anyio.sleep(1)
        for machine in list(pool.fleet.machines):
            pool.fleet.refuse(machine, BadRequest("the partition allows one hour", code="PartitionTimeLimit"))
        with pytest.raises(BadRequest, match="one hour"):
            await pool.ready()
        assert anyio.current_time() == pytest.approx(1.0, abs=0.1)
        assert len(pool.provider.launched) == 2
        (failed,) = {each["cause"] for each in pool.seen.all("node_failed")}
        assert failed == "the partition allows one hour"


async def test_one_that_is_refused_for_now_is_asked_for_again(rig):
    async with rig(Script(queue_s=(NEVER_S, 0.0)), desired=1) as pool:
        await anyio.sleep(1)
        (machine,) = pool.fleet.machines
        pool.fleet.refuse(machine, NoCapacity("no node left", retry_after_s=7.0))
        await pool.ready()
        assert anyio.current_time() == pytest.approx(8.0, abs=0.2)


async def test_the_boot_of_others_says_nothing_of_one_that_waits(rig):
    """Three of four run at once; the fourth is late only when it runs and does not answer."""
    script = Script(queue_s=(0.0, 0.0, 0.0, 100.0, 0.0), boot_s=(1.0, 1.0, 1.0, NEVER_S, 1.0))
    async with rig(script) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(100.0 + 1.0 + GRACE_S + 1.0, abs=0.2)
        (late,) = pool.seen.all("node_late")
        assert (late["node"], late["waited_s"]) == (3, pytest.approx(11.0, abs=0.2))


async def test_a_long_wait_is_no_measure_for_those_that_boot(rig):
    script = Script(queue_s=(0.0, 0.0, 1000.0, 1000.0, 0.0), boot_s=(1.0, 1.0, 1.0, 1.0, NEVER_S, 1.0))
    async with rig(script) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(1001.0, abs=0.2)
        pool.fleet.lose(next(iter(pool.fleet.machines)))  # in whose place comes one that never boots
        await pool.until(lambda: pool.seen.all("node_late"))
        assert anyio.current_time() == pytest.approx(1001.0 + 1.0 + GRACE_S, abs=1.5)


async def test_what_waits_for_a_replacement_waits_on_while_it_is_queued(rig, work):
    script = Script(queue_s=(0.0, 0.0, 500.0))
    async with rig(script, desired=2, replace_timeout_s=30.0, boot_timeout_s=20.0) as pool:
        await pool.ready()
        pool.fleet.lose(list(pool.fleet.machines)[1])
        await anyio.sleep(1)
        task, broadcast = pool.submit(on=1), pool.broadcast(work(takes_s=1.0))
        await pool.settled(task, broadcast)
        assert anyio.current_time() == pytest.approx(502.0, abs=2.0)
        assert not isinstance(pool.endings[task], GaveUp)
        assert len(pool.all_endings[broadcast][0]) == 2
        assert not any(isinstance(each, GaveUp) for each in pool.all_endings[broadcast][0])


async def test_the_time_for_a_replacement_begins_when_it_runs(rig):
    script = Script(queue_s=(0.0, 0.0, 500.0, 0.0), boot_s=(0.0, 0.0, 100.0, NEVER_S))
    async with rig(script, desired=2, replace_timeout_s=30.0) as pool:
        await pool.ready()
        pool.fleet.lose(list(pool.fleet.machines)[1])
        await anyio.sleep(1)
        task = pool.submit(on=1)
        await pool.settled(task)
        assert anyio.current_time() == pytest.approx(530.0, abs=2.0)
        assert pool.endings[task] == GaveUp(Reason.NO_REPLACEMENT)


async def test_a_pool_that_shrinks_gives_those_in_the_queue_back_first(rig):
    async with rig(Script(queue_s=(0.0, 0.0, NEVER_S)), desired=3, min=2) as pool:
        await pool.ready()
        pool.ref.tell(m.Resize(2))
        await anyio.sleep(1)
        assert len(pool.provider.alive) == 2
        state = await pool.state()
        assert state.queued_ago_s == pytest.approx(1.0, abs=0.1)
        assert len(state.nodes) == 2


async def test_and_those_that_run_stay(rig):
    script = Script(queue_s=(0.0, 0.0, NEVER_S, 0.0), boot_s=(1.0, 1.0, 1.0, 8.0))
    async with rig(script, desired=4, min=2) as pool:
        await pool.ready()
        pool.ref.tell(m.Resize(3))
        await anyio.sleep(8)
        assert sorted(each["node"] for each in pool.seen.all("node_ready")) == [0, 1, 3]  # two are ready at once
        assert [each["node"] for each in pool.seen.all("node_dismissed")] == [2]
