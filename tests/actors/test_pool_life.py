"""A pool's beginning and end: launching, giving up, resizing, crashing, closing, and being cancelled half way."""

from __future__ import annotations

import anyio
import pytest
import trio

from outrider.actors import interfaces, machines
from outrider.actors import messages as m
from outrider.actors.interfaces import ConnectFailed, Dependencies, PoolSpec, Reason, Verdict
from outrider.actors.kernel import ActorFailed
from outrider.actors.membership import SMALL
from outrider.actors.pool import supervise
from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.providers.errors import NoCapacity, NotAuthorized, ProviderError
from outrider.testing.fake_provider import Fake, FakeFleet, Script
from outrider.testing.provider_contract import cancel_at_every_step

pytestmark = pytest.mark.anyio


async def test_an_elastic_pool_is_ready_at_its_minimum_and_grows(rig):
    async with rig(Script(boot_s=(1.0, 1.0, 50.0)), desired=4, min=2) as pool:
        await pool.ready()
        assert anyio.current_time() < 2
        assert pool.seen.all("pool_ready") == [{"ready": 2, "wanted": 4, "took_s": 0.0}]
        await pool.until(lambda: len(pool.seen.all("node_ready")) == 4)
        ranks = [facts["rank"] for facts in pool.seen.all("node_ready")]
        assert sorted(ranks) == [0, 1, 2, 3]


async def test_a_machine_is_connected_to_as_soon_as_it_is_reachable(rig):
    async with rig(Script(launch_s=(3.0,), boot_s=(20.0,))) as pool:
        await pool.ready()
        assert anyio.current_time() == pytest.approx(20.01, abs=0.1)


async def test_refused_connections_are_tried_again(rig):
    def refuse(site):
        site.refuse[0] = [ConnectFailed("refused")] * 5
        site.connect_s = 0.1

    async with rig(prepare=lambda site: setattr(site, "refuse", {0: [ConnectFailed("refused")]}), desired=2) as pool:
        await pool.until(lambda: 1 in pool.site.nodes)
        await anyio.sleep(5)
        pool.site.refuse.clear()
        await pool.ready()
        assert pool.seen.all("node_failed") == []


async def test_launching_is_tried_again_with_back_off_and_given_up_with_the_last_error(rig):
    failures = tuple(NoCapacity(f"none {n}", retry_after_s=0.0) for n in range(4))
    async with rig(Script(failures=failures), launch_retries=3) as pool:
        with pytest.raises(NoCapacity, match="none 3"):
            await pool.ready()
        retries = [facts["retry_in_s"] for facts in pool.seen.all("launch_failed")]
        assert retries[-1] is None
        assert retries[0] < retries[1] < retries[2]
        waits = [
            b - a for a, b in zip(pool.seen.at("nodes_requested"), pool.seen.at("nodes_requested")[1:], strict=False)
        ]
        assert waits == pytest.approx(retries[:3])
        with pytest.raises(NoCapacity):
            await pool.ready()


async def test_a_start_does_not_wait_for_what_is_long_in_coming_and_a_pool_that_is_open_does(rig):
    async with rig(Script(failures=(NoCapacity("not here", retry_after_s=90.0),)), desired=1) as pool:
        with pytest.raises(NoCapacity, match="not here"):
            await pool.ready()
        assert len(pool.fleet.requests) == 1
    failures = (None, NoCapacity("not now", retry_after_s=90.0), None)
    async with rig(Script(failures=failures), desired=1) as pool:
        await pool.ready()
        pool.ref.tell(m.Resize(2))
        await pool.until(lambda: len(pool.site.nodes) == 2, within_s=100)
        assert len(pool.fleet.requests) == 3


async def test_what_cannot_go_better_is_not_tried_again(rig):
    async with rig(Script(failures=(NotAuthorized("no credentials"),))) as pool:
        with pytest.raises(NotAuthorized):
            await pool.ready()
        assert len(pool.fleet.requests) == 1


async def test_a_part_of_the_machines_is_used_and_the_rest_asked_for_again(rig):
    async with rig(Script(capacity=2), desired=4, min=2) as pool:
        await pool.ready()
        pool.provider.script = Script()
        await pool.until(lambda: len(pool.site.nodes) == 4)
        assert [count for _, count in pool.fleet.requests] == [4, 2]


async def test_a_machine_that_does_not_boot_in_time_is_replaced(rig):
    async with rig(Script(boot_s=(1e6, 0.0)), desired=1, boot_timeout_s=30.0) as pool:
        await pool.ready()
        (failed,) = pool.seen.all("node_failed")
        assert "not ready within 30 s: its address is still unknown" in failed["cause"]
        await anyio.sleep(1)
        assert len(pool.provider.alive) == 1


async def test_a_wrong_host_key_is_refused_for_good(rig):
    def refuse(site):
        site.refuse[-1] = [ConnectFailed("the host key is not the pinned one", systematic=True)]

    async with rig(prepare=refuse) as pool:
        with pytest.raises(ConnectFailed, match="pinned"):
            await pool.ready()


async def test_a_machine_that_is_gone_before_it_was_ready_counts_as_a_failed_launch(rig):
    async with rig(Script(boot_s=(50.0,)), desired=1) as pool:
        await anyio.sleep(1)
        pool.fleet.lose(next(iter(pool.fleet.machines)))
        await pool.ready()
        assert len(pool.seen.all("node_failed")) == 1
        assert len(pool.seen.all("launch_failed")) == 1


async def test_words_about_a_machine_whose_launch_call_has_not_returned_are_kept(rig):
    async with rig(Script(launch_s=(10.0, 0.0)), desired=2) as pool:
        await anyio.sleep(1)
        first = next(iter(pool.fleet.machines))
        pool.fleet._say(machines.MachineGone(first, "failed its status check"))
        await pool.ready()
        assert "status check" in pool.seen.all("node_failed")[0]["cause"]
        assert first not in [node.machine.id for node in (await pool.state()).nodes]


async def test_tasks_end_when_no_node_is_left_and_none_comes_in_time(rig, work):
    async with rig(desired=1, replace_timeout_s=100.0) as pool:
        await pool.ready()
        pool.provider.script = Script(capacity=0)
        running = pool.submit(work(hangs=True))
        queued = pool.submit()
        await anyio.sleep(1)
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await anyio.sleep(99)
        assert not pool.endings
        await pool.settled(running, queued, within_s=2)
        assert pool.endings[queued].reason is Reason.NO_REPLACEMENT
        assert pool.endings[running].losses == ((0, "spot interruption"),)
        late, broadcast = pool.submit(), pool.broadcast()
        await pool.settled(late, broadcast, within_s=101)
        assert pool.endings[late].reason is Reason.NO_REPLACEMENT
        assert pool.all_endings[broadcast][0][0].reason is Reason.NO_REPLACEMENT
        again = pool.submit()
        await anyio.sleep(10)
        pool.provider.script = Script()
        await pool.settled(again, within_s=61)
        assert pool.endings[again].verdict is Verdict.RETURNED


async def test_tasks_end_at_once_when_no_node_is_left_and_none_can_come(rig, work):
    async with rig(Script(failures=(None, NotAuthorized("expired"), None)), desired=1) as pool:
        await pool.ready()
        queued, pinned = [pool.submit(work(hangs=True)) for _ in range(2)], pool.submit(on=0)
        await anyio.sleep(1)
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await pool.settled(*queued, pinned, within_s=1)
        assert {pool.endings[job].reason for job in [*queued, pinned]} == {Reason.NO_REPLACEMENT}
        late, broadcast = pool.submit(), pool.broadcast()
        await pool.settled(late, broadcast, within_s=1)
        assert pool.endings[late].reason is Reason.NO_REPLACEMENT
        pool.ref.tell(m.Resize(1))
        again = pool.submit()
        await pool.settled(again)
        assert pool.endings[again].verdict is Verdict.RETURNED


async def test_a_smaller_pool_ends_the_tasks_for_ranks_that_it_has_no_more(rig, work):
    async with rig(desired=4, min=1) as pool:
        await pool.ready()
        running = [pool.submit(work(takes_s=60), on=rank) for rank in range(4)]
        queued = [pool.submit(on=rank) for rank in range(4)]
        await anyio.sleep(1)
        pool.ref.tell(m.Resize(2))
        await pool.settled(*queued[2:], within_s=1)
        assert {pool.endings[job].reason for job in queued[2:]} == {Reason.NO_SUCH_RANK}
        late = pool.submit(on=3)
        await pool.settled(late, within_s=1)
        await pool.settled(*running, *queued)
        assert {pool.endings[job].verdict for job in [*running, *queued[:2]]} == {Verdict.RETURNED}


async def test_growing_launches_and_shrinking_lets_tasks_finish(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()
        pool.ref.tell(m.Resize(4))
        await pool.until(lambda: len(pool.site.nodes) == 4)
        await anyio.sleep(1)
        jobs = [pool.submit(work(takes_s=30)) for _ in range(4)]
        await anyio.sleep(1)
        pool.ref.tell(m.Resize(1))
        await anyio.sleep(1)
        assert len(pool.seen.all("node_draining")) == 3
        assert len(pool.provider.alive) == 4
        await pool.settled(*jobs)
        await anyio.sleep(1)
        assert {pool.endings[job].verdict for job in jobs} == {Verdict.RETURNED}
        assert len(pool.provider.alive) == 1
        assert len(pool.seen.all("node_dismissed")) == 3
        assert len((await pool.state()).nodes) == 1
        after = pool.broadcast()
        await pool.settled(after)
        assert len(pool.all_endings[after][0]) == 1


async def at_deadline(pool, job):
    """End a job as its deadline does; return the text that says where it was."""
    pool.ref.tell(m.Cancel(job, Reason.DEADLINE, 30.0))
    await pool.settled(job)
    endings = pool.all_endings[job][0] if job in pool.all_endings else [pool.endings[job]]
    assert {(each.reason, each.limit_s) for each in endings} == {(Reason.DEADLINE, 30.0)}
    return endings[0].why


async def test_deadline_ends_a_task_wherever_it_is(rig, work):
    async with rig(desired=1, slots=1) as pool:
        await pool.ready()
        (node,) = pool.site.nodes.values()
        running, next_one = (pool.submit(work(takes_s=100), has_deadline=True) for _ in range(2))
        await anyio.sleep(1)
        queued = pool.submit()
        assert await at_deadline(pool, queued) == "it was queued"
        assert await at_deadline(pool, next_one) in {"it was queued", "it was queued on node 0"}
        node.unsent.add(node.orders[0].attempt)
        assert await at_deadline(pool, running) == "it was being sent to node 0"
        node.unsent.clear()
        running = pool.submit(work(takes_s=100), has_deadline=True)
        await anyio.sleep(1)
        assert await at_deadline(pool, running) == "it was running on node 0"
        assert len(node.killed) >= 2
        await anyio.sleep(1)
        assert not node.running


async def test_deadline_ends_a_broadcast_wherever_it_is(rig, work):
    async with rig(desired=2, slots=1) as pool:
        await pool.ready()
        task = pool.submit(work(takes_s=20), on=0)
        job = pool.broadcast(work(takes_s=100))
        await anyio.sleep(1)
        assert await at_deadline(pool, job) == "it was waiting for a free slot on 2 of 2 nodes"
        await pool.settled(task)
        job = pool.broadcast(work(takes_s=100))
        await anyio.sleep(1)
        where = await at_deadline(pool, job)
        assert where.startswith("rank 0 on node ")
        assert where.endswith(" had not ended")
        await anyio.sleep(1)
        assert not any(node.running for node in pool.site.nodes.values())
        assert (await pool.state()).broadcasts == 0


async def test_a_queue_timeout_ends_what_has_not_begun(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        running = pool.submit(work(takes_s=100), queue_timeout_s=10.0)
        queued = pool.submit(queue_timeout_s=10.0)
        await pool.settled(queued)
        assert pool.endings[queued].reason is Reason.QUEUE_TIMEOUT
        broadcast = pool.broadcast(queue_timeout_s=5.0)
        await pool.settled(broadcast)
        assert pool.all_endings[broadcast][0][0].reason is Reason.QUEUE_TIMEOUT
        await pool.settled(running)
        assert pool.endings[running].verdict is Verdict.RETURNED


async def test_every_node_hears_who_is_there_before_its_first_task(rig):
    async with rig(Script(boot_s=(0.0, 0.0, 5.0)), desired=3) as pool:
        await pool.ready()
        assert all(len(node.views[-1]) == 3 for node in pool.site.nodes.values())
        job = pool.submit()
        await pool.settled(job)
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await anyio.sleep(1)
        assert [node for node, _ in pool.site.nodes[1].views[-1]] == [1, 2]


async def test_a_large_pool_gathers_changes_before_it_tells_everybody(rig):
    async with rig(Script(boot_s=tuple(0.1 * n for n in range(1, 101))), desired=100, min=1) as pool:
        await pool.until(lambda: len(pool.site.nodes) == 100)
        await anyio.sleep(15)
        assert all(len(node.views[-1]) == 100 for node in pool.site.nodes.values())
        assert sum(len(node.views) for node in pool.site.nodes.values()) < 100 * 60
        job = pool.broadcast()
        await pool.settled(job)
        assert len(pool.all_endings[job][0]) == 100


async def test_a_large_pool_that_starts_whole_tells_each_node_once(rig):
    async with rig(desired=100) as pool:
        await pool.ready()
        await anyio.sleep(15)
        told = [node.views for node in pool.site.nodes.values()]
        assert all(len(views[-1]) == 100 for views in told)
        assert [len(views) for views in told[SMALL + 1 :]] == [1] * (100 - SMALL - 1)


async def test_a_node_that_joins_a_large_pool_hears_before_its_first_task_and_not_sooner(rig, work):
    async with rig(Script(boot_s=(*[0.0] * 50, 30.0, 30.0)), desired=52, min=50) as pool:
        await pool.ready()
        for _ in range(51):
            pool.submit(work(takes_s=100))
        await pool.until(lambda: len(pool.site.nodes) == 52)
        late = [pool.site.nodes[number] for number in (50, 51)]
        await pool.until(lambda: any(node.orders for node in late))
        assert sorted(len(node.views) for node in late) == [0, 1]
        await anyio.sleep(5)
        assert all(len(node.views[-1]) == 52 for node in late)


async def test_a_thousand_nodes_boot_work_and_go(rig, work):
    async with rig(desired=1000) as pool:
        pool.seen.tasks = False
        await pool.ready()
        jobs = [pool.submit() for _ in range(3000)]
        await pool.settled(*jobs)
        assert len({pool.endings[job].node for job in jobs}) == 1000


async def test_connected_nodes_have_no_tasks_of_their_own(rig):
    living = []
    for nodes in (2, 20):
        async with rig(desired=nodes) as pool:
            await pool.ready()
            await anyio.sleep(1)
            living.append(trio.lowlevel.current_statistics().tasks_living)
    assert living[0] == living[1]


async def test_the_bodys_own_error_is_raised_as_it_is(rig):
    provider = Fake()
    async with provider.open("p", EntryPoints()) as fleet:
        with pytest.raises(KeyError, match="mine"):
            request, spec = LaunchRequest("k", 1), PoolSpec(1, 1, 1)
            dependencies = Dependencies(fleet, request, spec, None, lambda *a, **k: None, anyio.current_time)
            async with supervise(dependencies):
                raise KeyError("mine")


async def test_a_crash_of_the_pool_is_loud_and_settles_everything(rig, work):
    endings = []
    with pytest.raises(BaseExceptionGroup) as caught:
        async with rig(desired=2) as pool:
            await pool.ready()
            jobs = [pool.submit(work(hangs=True)) for _ in range(4)]
            broadcast = pool.broadcast()
            await anyio.sleep(1)
            pool.ref.tell(m.Happened({}.__getitem__))  # no actor survives it
            pool.submit()
            endings = pool.endings
            nodes = pool.site.nodes
            await anyio.sleep_forever()
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ActorFailed)
    assert isinstance(error.__cause__, KeyError)
    assert [ending.reason for ending in endings.values()] == [Reason.CLOSED] * 5
    assert pool.all_endings[broadcast][0][0].reason is Reason.CLOSED
    assert all(node.closed for node in nodes.values())
    assert pool.provider.alive == {}
    assert len(jobs) == 4


async def test_a_caller_that_raises_ends_the_pool_and_the_others_are_settled_still(rig, work):
    with pytest.raises(BaseExceptionGroup):
        async with rig(desired=2) as pool:
            await pool.ready()

            def raises(ending):
                raise ValueError("in settle")

            hanging = [pool.submit(work(hangs=True)) for _ in range(2)]
            pool.ref.tell(m.Submit(interfaces.Task(1000, 1000, b"f", work()), raises))
            last = pool.submit()
            await anyio.sleep(1)
            pool.ref.tell(m.Cancel(1000))
            await anyio.sleep_forever()
    assert {pool.endings[job].reason for job in [*hanging, last]} == {Reason.CLOSED}


async def test_closing_is_bounded_when_connections_do_not_close(rig, work):
    async with rig(prepare=lambda site: setattr(site, "close_s", 1e6)) as pool:
        await pool.ready()
        job = pool.submit(work(hangs=True))
        await anyio.sleep(1)
        began = anyio.current_time()
    assert anyio.current_time() - began <= 10.1
    assert pool.endings[job].reason is Reason.CLOSED
    assert pool.provider.alive == {}


async def test_what_comes_after_the_close_is_settled_as_closed(rig):
    async with rig() as pool:
        await pool.ready()
        await pool.ref.ask(m.Close(), within_s=60)
        job, broadcast = pool.submit(), pool.broadcast()
        await pool.settled(job, broadcast, within_s=1)
        assert pool.endings[job].reason is Reason.CLOSED
        assert pool.all_endings[broadcast][0][0].reason is Reason.CLOSED
        await pool.ref.ask(m.Close(), within_s=60)


async def test_leaving_while_machines_are_being_launched_waits_for_nothing(rig):
    async with rig(Script(launch_s=(1e6,))) as pool:
        await anyio.sleep(1)
        began = anyio.current_time()
    assert anyio.current_time() - began < 1
    assert pool.provider.alive == {}


async def test_a_providers_stream_that_fails_is_read_again(rig, monkeypatch):
    fails = iter([True, True, False])
    events = FakeFleet.events

    class Broken:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise ProviderError("throttled")

    monkeypatch.setattr(FakeFleet, "events", lambda self: Broken() if next(fails) else events(self))
    async with rig(Script(boot_s=(30.0,))) as pool:
        await pool.ready()


async def test_a_stream_of_events_that_always_fails_ends_no_pool(rig, monkeypatch):
    class Broken:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise KeyError("State")

    events = FakeFleet.events
    async with rig(desired=2) as pool:
        await pool.ready()
        with monkeypatch.context() as patched:
            patched.setattr(FakeFleet, "__anext__", Broken.__anext__)
            pool.provider.fleets[0].give_notice(
                pool.site.nodes[0].machine.id
            )  # who reads hears of it, and then of nothing
            await anyio.sleep(3600)
            job = pool.submit()
            await pool.settled(job)
        told = [facts["text"] for facts in pool.seen.all("provider_warned")]
        assert [("by a defect" in text, "nothing has been seen" in text) for text in told] == [
            (True, False),
            (False, True),
        ]
        pool.provider.fleets[0].lose(pool.site.nodes[1].machine.id)
        await pool.until(lambda: pool.seen.all("node_lost"), within_s=60.0)
        assert pool.seen.all("provider_warned")[2]["text"].startswith("the machines are seen again")
    assert events is FakeFleet.events


async def test_a_machine_that_cannot_be_terminated_is_told_and_tried_again_until_it_is(rig, monkeypatch):
    async def fail(self, ids):
        raise ProviderError("api down", retry_after_s=1.0)

    async with rig(desired=2) as pool:
        await pool.ready()
        with monkeypatch.context() as patched:
            patched.setattr(FakeFleet, "terminate", fail)
            pool.site.nodes[0].fresh = True
            pool.site.nodes[0].drop()
            await pool.until(lambda: pool.seen.all("terminate_failed"))
            await anyio.sleep(600)
        assert len(pool.seen.all("terminate_failed")) == 1
        assert len(pool.provider.alive) == 3
        await pool.until(lambda: len(pool.provider.alive) == 2, within_s=60.0)
    assert pool.provider.alive == {}


async def test_a_cancelled_start_leaves_no_machine_at_whatever_await():
    provider = Fake(Script(launch_s=(1.0,), boot_s=(2.0,), terminate_s=0.5))

    async def connect(node, machine, reports, answered):
        await anyio.sleep(0.5)
        raise ConnectFailed("not yet")

    async def start():
        spec = PoolSpec(2, 2, 1, boot_timeout_s=5.0, launch_retries=0)
        async with (
            provider.open("p", EntryPoints()) as fleet,
            supervise(
                Dependencies(fleet, LaunchRequest("k", 2), spec, connect, lambda *a, **k: None, anyio.current_time)
            ) as ref,
        ):
            with pytest.raises(ConnectFailed):
                await ref.ask(m.WhenReady())

    async def nothing_is_left(step):
        assert provider.alive == {}, f"cancelled at await {step}"

    steps = await cancel_at_every_step(start, nothing_is_left)
    assert steps > 3
    assert provider.launched


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 3.5, 4.0, 10.0])
async def test_a_start_cancelled_at_any_moment_leaves_no_machine_and_no_connection(rig, after_s):
    script = Script(launch_s=(1.0,), boot_s=(2.0, 3.0), terminate_s=0.5)
    with anyio.move_on_after(after_s):
        async with rig(script, prepare=lambda site: setattr(site, "connect_s", 0.5)) as pool:
            await pool.ready()
            await anyio.sleep_forever()
    assert pool.provider.alive == {}
    assert all(node.closed for node in pool.site.nodes.values())
