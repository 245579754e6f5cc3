"""What becomes of tasks, broadcasts and machines when nodes, connections and the network go."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from outrider.actors import messages as m
from outrider.actors.fleet_controller import ANEW_S, UNFIT_NODES, NodePhase
from outrider.actors.interfaces import (
    AttemptId,
    Finished,
    GaveUp,
    OnLoss,
    PoolSpec,
    PortsFree,
    Reason,
    Settled,
    Unfit,
    Verdict,
)
from outrider.actors.membership import SOURCES_KEPT
from outrider.providers.base import PreemptionNotice
from outrider.testing.fake_provider import Script

pytestmark = pytest.mark.anyio


async def test_a_gone_machine_is_a_loss_at_once_and_its_task_runs_elsewhere(rig, work):
    async with rig(Script(boot_s=(30.0,)), desired=2) as pool:
        await pool.ready()
        jobs = [pool.submit(work(takes_s=5)) for _ in range(3)]
        await anyio.sleep(1)
        lost = next(node for node, order in pool.site.ran if order.task.job == jobs[0])
        pool.fleet.lose(pool.site.nodes[lost].machine.id)
        await pool.until(lambda: pool.seen.all("node_lost"), within_s=0.1)
        await pool.settled(*jobs)
        assert [pool.endings[job].verdict for job in jobs] == [Verdict.RETURNED] * 3
        first = pool.endings[jobs[0]]
        assert (first.number, first.node) == (2, 1 - lost)
        again = [order.task.job for _, order in pool.site.ran]
        assert again.index(jobs[0], 1) < again.index(jobs[2]), "what comes back is first in the queue"
        await pool.until(lambda: len(pool.seen.all("node_ready")) == 3)
        assert pool.provider.terminated == [], "what is gone need not be terminated"


async def test_a_closed_connection_is_tried_again_and_lost_only_after_a_while(rig, work):
    async with rig() as pool:
        await pool.ready()
        pool.site.nodes[1].die()
        await pool.until(lambda: pool.seen.all("node_suspect"), within_s=0.1)
        (at,) = pool.seen.at("node_suspect")
        await pool.until(lambda: pool.seen.all("node_lost"))
        assert pool.seen.at("node_lost") == [pytest.approx(at + 10.0, abs=0.1)]
        await pool.until(lambda: len(pool.seen.all("node_ready")) == 5)
        assert pool.provider.terminated == [pool.site.nodes[1].machine.id]
        assert len(pool.provider.alive) == 4


async def test_a_connection_that_comes_back_loses_nothing_and_runs_nothing_twice(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()
        jobs = [pool.submit(work(takes_s=2)) for _ in range(2)]
        await anyio.sleep(1)
        node = pool.site.nodes[0]
        node.cut = True
        node.drop()
        after = pool.submit(work(takes_s=0.5))
        await anyio.sleep(5)
        assert len(pool.endings) == 2, "a suspect node gets no new work, the other one does"
        node.cut = False
        await pool.settled(*jobs, after)
        assert len(pool.site.ran) == 3
        assert pool.seen.all("node_resumed") == [{"node": 0}]
        assert pool.seen.all("node_lost") == []


async def test_a_node_whose_executor_started_anew_is_lost_at_once(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()
        job = pool.submit(work(takes_s=2))
        await anyio.sleep(1)
        node = pool.site.nodes[pool.site.ran[0][0]]
        node.fresh = True
        node.drop()
        await pool.until(lambda: pool.seen.all("node_lost"), within_s=1)
        assert "started anew" in pool.seen.all("node_lost")[0]["cause"]
        await pool.settled(job)
        assert pool.endings[job].number == 2


async def test_one_silent_node_is_lost_while_the_others_are_heard(rig):
    async with rig() as pool:
        await pool.ready()
        pool.site.nodes[2].die(silent=True)
        await pool.until(lambda: pool.seen.all("node_lost"), within_s=10.5)
        assert pool.seen.all("network_silent") == []


async def test_one_that_was_dropped_early_has_its_whole_time_to_come_back(rig):
    """Its silent connection was let go for a new one, over which it does not answer either."""
    async with rig() as pool:
        await pool.ready()
        node, began = pool.site.nodes[2], anyio.current_time()
        node.stop()
        node.drop(early_s=2.0)
        await pool.until(lambda: pool.seen.all("node_lost"), within_s=15)
        assert anyio.current_time() - began == pytest.approx(2.0 + PoolSpec(1, 1, 1).reconnect_s, abs=0.1)


async def test_a_silent_network_is_waited_for_and_results_are_collected_when_it_is_back(rig, work):
    async with rig() as pool:
        await pool.ready()
        jobs = [pool.submit(work(takes_s=20)) for _ in range(4)]
        broadcast = pool.broadcast(work(takes_s=1))
        await anyio.sleep(1)
        for number, node in enumerate(pool.site.nodes.values()):
            node.cut = True
            await anyio.sleep(number)  # heartbeats are missed one after the other
            node.drop(silent=True)
        await anyio.sleep(60)
        assert pool.seen.all("network_silent") == [{"nodes": 4}]
        assert pool.endings == {}
        for node in pool.site.nodes.values():
            node.cut = False
        await pool.settled(*jobs, broadcast, within_s=20)
        assert pool.seen.all("node_lost") == []
        assert len(pool.site.ran) == 8, "nothing ran twice"


async def test_a_network_that_is_silent_for_longer_than_the_lease_has_lost_its_nodes(rig, work):
    async with rig(desired=2, lease_s=60.0) as pool:
        await pool.ready()
        job = pool.submit(work(takes_s=500, verdict=Verdict.RETURNED), retries=0)
        await anyio.sleep(1)
        for node in pool.site.nodes.values():
            node.die(silent=True)
        await pool.until(lambda: len(pool.seen.all("node_lost")) == 2)
        assert pool.seen.at("node_lost")[0] - pool.seen.at("node_suspect")[0] == pytest.approx(60, abs=0.1)
        assert pool.endings[job].reason is Reason.LOST


async def test_one_silent_node_is_no_silent_network_where_somebody_else_answers(rig, work):
    async def answers(machines):
        assert [machine.id for machine in machines] == [pool.site.nodes[0].machine.id]
        await anyio.sleep(0.2)
        return True

    async with rig(desired=1, probe=answers) as pool:
        await pool.ready()
        job = pool.submit(work(takes_s=30))
        await anyio.sleep(1)
        pool.site.nodes[0].die(silent=True)
        await pool.settled(job, within_s=45)
        [lost], [suspect] = pool.seen.at("node_lost"), pool.seen.at("node_suspect")
        assert lost - suspect == pytest.approx(10.2, abs=0.1)
        assert pool.seen.all("node_lost")[0]["cause"] == "connection closed, and not heard again for 10 s"
        assert (pool.endings[job].verdict, pool.endings[job].number) == (Verdict.RETURNED, 2)


async def test_others_are_asked_again_until_the_network_is_back_and_its_nodes_then_have_time(rig, work):
    asked = []

    async def answers(machines):
        asked.append(anyio.current_time())
        return anyio.current_time() > 60

    async with rig(desired=1, probe=answers) as pool:
        await pool.ready()
        job = pool.submit(work(takes_s=10))
        await anyio.sleep(1)
        node = pool.site.nodes[0]
        node.cut = True
        node.drop(silent=True)
        await anyio.sleep(70)
        assert asked[-1] == pytest.approx(61, abs=1)
        node.cut = False
        await pool.settled(job, within_s=5)
        assert pool.seen.all("node_lost") == []
        assert len(pool.site.ran) == 1, "nothing ran twice"


async def test_nobody_is_asked_once_a_node_is_heard_again(rig):
    asked = []

    async def answers(machines):
        asked.append(anyio.current_time())
        return False

    async with rig(desired=2, probe=answers) as pool:
        await pool.ready()
        for _ in range(2):
            for node in pool.site.nodes.values():
                node.cut = True
                node.drop(silent=True)
            await anyio.sleep(21)
            for node in pool.site.nodes.values():
                node.cut = False
            await anyio.sleep(100)
        assert len(asked) == 2 * len([at for at in asked if at < 100])
        assert pool.seen.all("node_lost") == []


async def test_the_providers_word_counts_even_while_the_network_is_silent(rig):
    async with rig(desired=2) as pool:
        await pool.ready()
        for node in pool.site.nodes.values():
            node.cut = True
            node.drop(silent=True)
        await anyio.sleep(1)
        pool.fleet.lose(pool.site.nodes[0].machine.id, "terminated by the user")
        await pool.until(lambda: pool.seen.all("node_lost"), within_s=0.1)
        assert pool.seen.all("node_lost") == [{"node": 0, "cause": "terminated by the user", "noticed": False}]


async def test_a_notice_brings_the_replacement_before_the_machine_dies(rig, work):
    async with rig(Script(boot_s=(60.0,)), desired=2) as pool:
        await pool.ready()
        running = [pool.submit(work(takes_s=30)) for _ in range(2)]
        await anyio.sleep(1)
        pool.fleet.give_notice(pool.site.nodes[0].machine.id, 120.0)
        queued = pool.submit(work())
        await pool.until(lambda: pool.fleet.requests[1:], within_s=0.1)
        await pool.settled(*running, queued)
        assert pool.endings[queued].node != 0
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await pool.until(lambda: 2 in pool.site.nodes)
        assert pool.seen.all("node_lost")[0]["noticed"] is True
        assert [count for _, count in pool.fleet.requests] == [2, 1]


async def test_a_noticed_node_is_ended_when_it_holds_nothing_and_is_replaced(rig, work):
    async with rig(Script(boot_s=(20.0,)), desired=2) as pool:
        await pool.ready()
        running = [pool.submit(work(takes_s=40)) for _ in range(2)]
        await anyio.sleep(1)
        pool.fleet.give_notice(pool.site.nodes[0].machine.id, 120.0)
        await pool.until(lambda: 2 in pool.site.nodes)
        await anyio.sleep(1)
        assert pool.seen.all("node_dismissed") == [], "it works on"
        await pool.settled(*running)
        await pool.until(lambda: pool.seen.all("node_dismissed"), within_s=0.1)
        assert pool.seen.all("node_dismissed") == [{"node": 0}]
        await pool.until(lambda: len(pool.provider.alive) == 2, within_s=6)


async def test_a_noticed_node_that_holds_nothing_is_kept_until_it_is_replaced(rig):
    """Its notice may be withdrawn."""
    async with rig(Script(boot_s=(20.0,)), desired=2) as pool:
        await pool.ready()
        pool.fleet.give_notice(pool.site.nodes[0].machine.id, 120.0)
        await anyio.sleep(19)
        assert pool.seen.all("node_dismissed") == []
        await pool.until(lambda: pool.seen.all("node_dismissed"), within_s=2)


async def test_a_notice_that_is_withdrawn_as_its_node_is_dismissed_changes_nothing(rig):
    async with rig(desired=1, spare=1) as pool:
        await pool.until(lambda: pool.seen.all("node_standby"))
        node = pool.site.nodes[pool.seen.all("node_standby")[0]["node"]]
        node.say(*(PreemptionNotice(node.machine.id, "file", seconds) for seconds in (30.0, None)))
        await pool.until(lambda: len(pool.seen.all("node_standby")) == 2)
        assert pool.seen.all("node_notice_withdrawn") == []
        assert [each["node"] for each in pool.seen.all("node_dismissed")] == [node.node]


async def test_a_node_may_hear_of_its_end_by_itself(rig):
    async with rig(Script(boot_s=(0.0, 0.0, 20.0)), desired=2) as pool:
        await pool.ready()
        pool.site.nodes[1].notice("file", 30.0)
        await pool.until(lambda: len(pool.fleet.requests) == 2, within_s=1)
        assert pool.seen.all("node_noticed") == [{"node": 1, "source": "file", "seconds": 30.0}]
        state = await pool.state()
        assert [(node.node, node.phase, node.rank) for node in state.nodes][1] == (1, NodePhase.NOTICED, None)


async def test_a_withdrawn_notice_returns_the_node_and_replaces_nothing_twice(rig):
    async with rig(Script(boot_s=(0.0, 0.0, 60.0)), desired=2) as pool:
        await pool.ready()
        pool.fleet.give_notice(pool.site.nodes[0].machine.id)
        await anyio.sleep(5)
        pool.fleet.withdraw_notice(pool.site.nodes[0].machine.id)
        await anyio.sleep(100)
        state = await pool.state()
        assert [(node.node, node.phase) for node in state.nodes] == [(0, NodePhase.READY), (1, NodePhase.READY)]
        assert sorted(node.rank for node in state.nodes) == [0, 1]
        assert len(pool.provider.alive) == 2
        assert len(pool.fleet.requests) == 2


async def test_a_withdrawn_notice_drains_the_replacement_that_was_ready_already(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()
        jobs = [pool.submit(work(takes_s=30)) for _ in range(3)]
        await anyio.sleep(1)
        pool.fleet.give_notice(pool.site.nodes[0].machine.id)
        await pool.until(lambda: 2 in pool.site.nodes)
        await anyio.sleep(1)
        pool.fleet.withdraw_notice(pool.site.nodes[0].machine.id)
        await pool.settled(*jobs)
        await anyio.sleep(1)
        assert {pool.endings[job].number for job in jobs} == {1}, "what it had was finished"
        assert pool.seen.all("node_dismissed") == [{"node": 2}]
        assert len(pool.provider.alive) == 2


@pytest.mark.parametrize("rank", range(4))
async def test_any_lost_rank_of_a_collective_brings_a_new_generation(rig, work, rank):
    async with rig(Script(boot_s=(0.0, 0.0, 0.0, 0.0, 40.0))) as pool:
        await pool.ready()
        job = pool.broadcast(work(takes_s=100))
        await anyio.sleep(1)
        (first,) = pool.seen.all("generation_started")
        pool.fleet.lose(pool.site.nodes[first["nodes"][rank]].machine.id)
        await pool.settled(job)
        endings, generation = pool.all_endings[job]
        assert generation == 2
        assert {ending.verdict for ending in endings} == {Verdict.RETURNED}
        _, second = pool.seen.all("generation_started")
        assert second["nodes"] == tuple(4 if r == rank else node for r, node in enumerate(first["nodes"]))
        assert (second["head_port"] == first["head_port"]) is False
        lost_at, started_at = pool.seen.at("node_lost")[0], pool.seen.at("generation_started")[1]
        assert started_at - lost_at < 43, "boot time and 3 s"


async def test_two_losses_at_once_are_one_new_generation(rig, work):
    async with rig() as pool:
        await pool.ready()
        job = pool.broadcast(work(takes_s=100))
        await anyio.sleep(1)
        for node in (0, 3):
            pool.fleet.lose(pool.site.nodes[node].machine.id)
        await pool.settled(job)
        assert [facts["generation"] for facts in pool.seen.all("generation_started")] == [1, 2]
        assert pool.all_endings[job][1] == 2


async def test_no_generation_begins_before_the_last_one_is_gone(rig, work):
    async with rig() as pool:
        await pool.ready()
        job = pool.broadcast(work(takes_s=100))
        await anyio.sleep(1)
        pool.site.deaf = True  # kills are not answered
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await anyio.sleep(30)
        assert len(pool.seen.all("generation_started")) == 1
        for node in (1, 2, 3):
            pool.site.nodes[node].die()  # nor can it be asked any more: its loss is as good
        await pool.settled(job)
        assert pool.all_endings[job][1] == 2


async def test_an_elastic_pool_goes_on_with_fewer_and_a_fixed_one_says_that_none_came(rig, work):
    for least in (2, 4):
        async with rig(Script(capacity=4), min=least, replace_timeout_s=50.0) as pool:
            await pool.ready()
            job = pool.broadcast(work(takes_s=100))
            await anyio.sleep(1)
            pool.provider.script = Script(capacity=0)
            pool.fleet.lose(pool.site.nodes[0].machine.id)
            await pool.settled(job)
            endings, generation = pool.all_endings[job]
            if least == 2:
                assert (len(endings), generation) == (3, 2)
            else:
                assert {ending.reason for ending in endings} == {Reason.NO_REPLACEMENT}


async def test_a_pool_asks_for_what_it_lost_until_it_comes(rig, work):
    """A drought of ten minutes ends no pool, and leaves none smaller than it is to be."""
    async with rig(Script(capacity=4), replace_timeout_s=1200.0) as pool:
        await pool.ready()
        job = pool.broadcast(work(takes_s=100))
        await anyio.sleep(1)
        pool.provider.script = Script(capacity=0)
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await anyio.sleep(600)
        assert (await pool.state()).error is None
        assert len(pool.fleet.requests) > 10
        waits = [after - at for at, after in pairwise(pool.seen.at("nodes_requested"))]
        assert max(waits[1:]) <= 60.0
        pool.provider.script = Script()
        await pool.settled(job, within_s=200)
        assert pool.all_endings[job][1] == 2
        assert {ending.verdict for ending in pool.all_endings[job][0]} == {Verdict.RETURNED}
        assert len((await pool.state()).nodes) == 4


async def test_tasks_wait_for_a_rank_that_was_lost_as_long_as_a_broadcast_does(rig, work):
    async with rig(Script(capacity=3), desired=3, replace_timeout_s=100.0) as pool:
        await pool.ready()
        pool.provider.script = Script(capacity=0)
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await anyio.sleep(50)
        last, other = pool.submit(on=2), pool.submit(on=1)
        await pool.settled(other, within_s=1)
        await pool.settled(last, within_s=101)
        assert pool.endings[last].reason is Reason.NO_REPLACEMENT
        late = pool.submit(on=2)
        await anyio.sleep(50)
        pool.provider.script = Script()
        await pool.settled(late, within_s=61)
        assert pool.endings[late].verdict is Verdict.RETURNED


async def test_a_broadcast_that_waits_for_its_turn_waits_no_longer_for_lost_nodes(rig, work):
    async with rig(Script(capacity=4), replace_timeout_s=100.0) as pool:
        await pool.ready()
        busy = [pool.submit(work(takes_s=1e5)) for _ in range(4)]
        job = pool.broadcast()
        await anyio.sleep(1000)
        pool.provider.script = Script(capacity=0)
        pool.fleet.lose(pool.site.nodes[0].machine.id)
        await pool.settled(job, within_s=101)
        assert pool.all_endings[job][0][0].reason is Reason.NO_REPLACEMENT
        for task in busy:
            pool.ref.tell(m.Cancel(task))


@pytest.mark.parametrize("first", ["the process ends", "the connection is lost"])
async def test_a_node_that_is_drained_when_its_notice_comes_loses_its_task_to_the_machine(rig, work, first):
    async with rig(desired=2, min=1) as pool:
        await pool.ready()
        jobs = [pool.submit(work(takes_s=20)) for _ in range(2)]
        await anyio.sleep(1)
        pool.ref.tell(m.Resize(1))
        await pool.until(lambda: pool.seen.all("node_draining"))
        (node,) = [pool.site.nodes[facts["node"]] for facts in pool.seen.all("node_draining")]
        (job,) = [order.task.job for order in node.orders]
        pool.fleet.give_notice(node.machine.id, 120.0)
        await anyio.sleep(1)
        if first == "the process ends":
            (attempt,) = node.running
            node.running.pop(attempt).cancel()
            node.say(Finished(attempt, Verdict.TERMINATED, "signal 15", 0.0))
        else:
            pool.fleet.lose(node.machine.id)
            await pool.until(lambda: pool.seen.all("node_lost"))
            assert pool.seen.all("node_lost")[0]["noticed"]
        await pool.settled(*jobs)
        assert pool.endings[job].number == 2
        assert {pool.endings[each].verdict for each in jobs} == {Verdict.RETURNED}


async def test_a_head_without_a_free_port_is_waited_for(rig, work):
    def no_ports(site):
        site.ports_each = 0

    async with rig(prepare=no_ports, desired=2) as pool:
        await pool.ready()
        job = pool.broadcast()
        began = anyio.current_time()
        await anyio.sleep(25)
        assert pool.seen.all("generation_started") == []
        (head,) = [node for node in pool.site.nodes.values() if node.compared]
        assert head.compared == [0, 0, 0], "asked at once, and every 10 s"
        pool.site.ports[head.node]._most = 1
        head.offer_ports()
        await pool.settled(job, within_s=1)
        assert [round(at - began) for at in pool.seen.at("broadcast_waits")] == [10, 20, 25]
        waits = pool.seen.all("broadcast_waits")
        assert {wait["reason"] for wait in waits} == {f"free ports of node {head.node}"}
        assert [wait["ended"] for wait in waits] == [False, False, True]


async def test_broadcast_whose_arguments_do_not_arrive_is_reported(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()
        for node in pool.site.nodes.values():
            node.unsent.add(AttemptId(2))
        job = pool.broadcast(work(takes_s=30))
        await anyio.sleep(15)
        (wait,) = pool.seen.all("broadcast_waits")
        assert wait["reason"].startswith("its arguments to reach 1 of its nodes, node ")
        for node in pool.site.nodes.values():
            node.unsent.clear()
        await pool.settled(job)
        assert [wait["ended"] for wait in pool.seen.all("broadcast_waits")] == [False, True]


async def test_broadcast_that_waits_for_busy_nodes_is_reported(rig, work):
    async with rig(desired=2, slots=1) as pool:
        await pool.ready()
        tasks = [pool.submit(work(takes_s=15)) for _ in range(2)]
        job = pool.broadcast()
        await pool.settled(job, *tasks)
        assert [wait["reason"] for wait in pool.seen.all("broadcast_waits")] == ["a free slot on 2 of 2 nodes"] * 2


async def test_on_loss_fail_and_at_most_once_keep_the_other_outcomes(rig, work):
    for options in ({"on_loss": OnLoss.FAIL}, {"at_most_once": True}):
        async with rig() as pool:
            await pool.ready()
            job = pool.broadcast(work(takes_s=10), collective=False, **options)
            await anyio.sleep(1)
            (started,) = pool.seen.all("generation_started")
            pool.fleet.lose(pool.site.nodes[started["nodes"][1]].machine.id)
            await pool.settled(job)
            endings, _ = pool.all_endings[job]
            assert [type(ending) for ending in endings] == [Settled, GaveUp, Settled, Settled]
            assert endings[1].losses == ((started["nodes"][1], "spot interruption"),)


async def test_a_task_that_kills_every_node_is_quarantined(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()
        job = pool.submit(work(takes_s=1e6), retries=2)
        for _ in range(3):
            sent = len(pool.site.ran)
            await pool.until(lambda sent=sent: len(pool.site.ran) >= max(1, sent))
            await anyio.sleep(1)
            pool.fleet.lose(pool.site.nodes[pool.site.ran[-1][0]].machine.id, "killed by signal 9")
            await anyio.sleep(1)
        await pool.settled(job)
        assert pool.endings[job].reason is Reason.QUARANTINED
        assert len(pool.endings[job].losses) == 3


async def test_a_broadcast_and_the_tasks_around_it_do_not_starve_each_other(rig, work):
    async with rig(slots=2) as pool:
        await pool.ready()
        jobs = [pool.submit(work(takes_s=1 + n % 3)) for n in range(40)]
        first, second = pool.broadcast(work(takes_s=5)), pool.broadcast(work(takes_s=5))
        jobs += [pool.submit(work(takes_s=1)) for n in range(40)]
        await pool.settled(*jobs, first, second)
        starts = pool.seen.at("generation_started")
        assert len(starts) == 2
        assert {e.verdict for job in (first, second) for e in pool.all_endings[job][0]} == {Verdict.RETURNED}


async def test_cancelling_a_broadcast_kills_its_ranks_and_frees_the_nodes(rig, work):
    async with rig() as pool:
        await pool.ready()
        job = pool.broadcast(work(hangs=True))
        await anyio.sleep(1)
        pool.ref.tell(m.Cancel(job))
        after = pool.broadcast()
        await pool.settled(job, after, within_s=1)
        assert {ending.reason for ending in pool.all_endings[job][0]} == {Reason.CANCELLED}
        assert sum(len(node.killed) for node in pool.site.nodes.values()) == 4


async def test_a_notice_stands_while_one_of_its_sources_stands_by_it(rig, work):
    """Found by the simulator: the cloud took its word back, the node's own did not, and work went there again."""
    async with rig(desired=2) as pool:
        await pool.ready()
        running = [pool.submit(work(takes_s=60.0)) for _ in range(2)]
        await anyio.sleep(1)
        node = pool.site.nodes[0]
        pool.fleet.give_notice(node.machine.id, 120.0)
        node.notice("imds", 120.0)
        await anyio.sleep(1)
        pool.fleet.withdraw_notice(node.machine.id)
        await anyio.sleep(1)
        jobs = [pool.submit(work(takes_s=5.0)) for _ in range(2)]
        await pool.settled(*jobs)
        assert 0 not in {pool.endings[job].node for job in jobs}
        assert not any(job in pool.endings for job in running)
        assert pool.seen.all("node_notice_withdrawn") == []
        node.notice("imds", None)
        await pool.until(lambda: pool.seen.all("node_notice_withdrawn"), within_s=1.0)


async def test_a_machine_that_is_noticed_while_it_boots_is_let_go_of_and_replaced(rig):
    async with rig(Script(boot_s=(60.0, 0.0)), desired=1) as pool:
        await anyio.sleep(1)
        pool.fleet.give_notice(next(iter(pool.fleet.machines)))
        await pool.ready()
        assert pool.seen.all("node_dismissed") == [{"node": 0}]
        assert len(pool.provider.alive) == 1


# --- nodes that stand by ----------------------------------------------------------------------------------------------


async def test_a_spare_node_takes_the_place_of_a_lost_one_at_once(rig, work):
    async with rig(Script(boot_s=(0.0, 0.0, 0.0, 300.0)), desired=2, spare=1) as pool:
        await pool.ready()
        await pool.until(lambda: len(pool.site.nodes) == 3)
        await anyio.sleep(1)
        assert len(pool.seen.all("node_standby")) == 1
        spare = pool.seen.all("node_standby")[0]["node"]
        jobs = [pool.submit(work(takes_s=5.0)) for _ in range(6)]
        await pool.settled(*jobs)
        broadcast = pool.broadcast(work(takes_s=100.0))
        assert spare not in {pool.endings[job].node for job in jobs}, "it stands by"
        await anyio.sleep(1)
        (first,) = pool.seen.all("generation_started")
        pool.fleet.lose(pool.site.nodes[first["nodes"][0]].machine.id)
        began = anyio.current_time()
        await pool.until(lambda: len(pool.seen.all("generation_started")) == 2, within_s=1)
        second = pool.seen.all("generation_started")[1]
        assert second["nodes"] == (spare, first["nodes"][1]), "it has the lost one's rank"
        await pool.settled(broadcast)
        assert anyio.current_time() - began < 102
        await pool.until(lambda: len(pool.seen.all("node_standby")) == 2)
        assert len(pool.provider.alive) == 3


@pytest.mark.parametrize("noticed", [False, True])
async def test_queued_tasks_do_not_take_the_place_that_a_generation_waits_for(rig, work, noticed):
    async with rig(Script(boot_s=(0.0, 0.0, 0.0, 300.0)), desired=2, spare=1) as pool:
        await pool.ready()
        await pool.until(lambda: pool.seen.all("node_standby"))
        broadcast = pool.broadcast(work(takes_s=50.0))
        await anyio.sleep(1)
        tasks = [pool.submit(work(takes_s=1000.0)) for _ in range(5)]
        (first,) = pool.seen.all("generation_started")
        lost = pool.site.nodes[first["nodes"][1]].machine.id
        if noticed:
            pool.fleet.give_notice(lost, 30.0)
            await anyio.sleep(20)
        pool.fleet.lose(lost)
        await pool.until(lambda: len(pool.seen.all("generation_started")) == 2, within_s=5)
        await pool.settled(broadcast)
        assert {ending.verdict for ending in pool.all_endings[broadcast][0]} == {Verdict.RETURNED}
        assert not any(task in pool.endings for task in tasks)
        for task in tasks:
            pool.ref.tell(m.Cancel(task))


async def test_a_notice_promotes_the_spare_and_asks_for_the_next(rig, work):
    async with rig(Script(boot_s=(0.0, 0.0, 0.0, 60.0)), desired=2, spare=1) as pool:
        await pool.ready()
        await pool.until(lambda: len(pool.site.nodes) == 3)
        await anyio.sleep(1)
        running = [pool.submit(work(takes_s=100.0)) for _ in range(2)]
        await anyio.sleep(1)
        noticed = next(node for node, order in pool.site.ran if order.task.job == running[0])
        pool.fleet.give_notice(pool.site.nodes[noticed].machine.id, 120.0)
        after = pool.submit(work(takes_s=1.0))
        await pool.settled(after, within_s=3)
        assert pool.endings[after].node == pool.seen.all("node_standby")[0]["node"]
        assert [count for _, count in pool.fleet.requests] == [3, 1]
        pool.fleet.withdraw_notice(pool.site.nodes[noticed].machine.id)
        await anyio.sleep(1)
        phases = [node.phase for node in (await pool.state()).nodes]
        assert phases == [NodePhase.READY, NodePhase.READY, NodePhase.SPARE]  # the newest stands by
        await anyio.sleep(100)
        assert len(pool.provider.alive) == 3


async def test_a_withdrawn_notice_leaves_nothing_that_was_reserved(rig, work):
    """Found by the simulator: what was wanted for the generation after the loss was still wanted after the end."""
    async with rig(desired=2, spare=1) as pool:
        await pool.ready()
        await pool.until(lambda: pool.seen.all("node_standby"))
        first = pool.broadcast(work(takes_s=30.0))
        await anyio.sleep(1)
        noticed = pool.site.nodes[pool.seen.all("generation_started")[0]["nodes"][0]].machine.id
        for _ in range(3):
            pool.fleet.give_notice(noticed, 120.0)
            await anyio.sleep(1)
            pool.fleet.withdraw_notice(noticed)
            await anyio.sleep(1)
        second = pool.broadcast(work(takes_s=1.0))
        await pool.settled(first, second, within_s=60)
        await anyio.sleep(10)
        assert {node.load for node in (await pool.state()).nodes} == {0}


async def test_a_node_that_stays_after_all_is_told_as_ready_with_its_rank(rig):
    async with rig(Script(boot_s=(0.0, 0.0, 100.0)), desired=2) as pool:
        await pool.ready()
        pool.fleet.give_notice(pool.site.nodes[0].machine.id, 120.0)
        await anyio.sleep(1)
        pool.fleet.withdraw_notice(pool.site.nodes[0].machine.id)
        await anyio.sleep(1)
        told = pool.seen.all("node_ready")[2]
        assert (told["node"], told["ready"]) == (0, 2)
        assert told["rank"] == next(node.rank for node in (await pool.state()).nodes if node.node == 0)


async def test_a_spare_whose_connection_is_away_is_not_promoted_before_it_is_back(rig):
    async with rig(Script(boot_s=(0.0, 0.0, 0.0, 300.0)), desired=2, spare=1) as pool:
        await pool.ready()
        await pool.until(lambda: pool.seen.all("node_standby"))
        spare = pool.site.nodes[pool.seen.all("node_standby")[0]["node"]]
        spare.cut = True
        spare.drop()
        await anyio.sleep(1)
        lost = next(node for node in pool.site.nodes if node != spare.node)
        pool.fleet.lose(pool.site.nodes[lost].machine.id)
        await anyio.sleep(2)
        assert [node.rank for node in (await pool.state()).nodes if node.node == spare.node] == [None]
        spare.cut = False
        await pool.until(lambda: len(pool.seen.all("node_ready")) == 3, within_s=5)
        assert pool.seen.all("node_ready")[2]["node"] == spare.node


async def test_a_task_that_takes_its_nodes_down_is_quarantined_however_many_retries_it_has(rig, work):
    async with rig(desired=2) as pool:
        await pool.ready()

        def poison(order):
            node = next(node for node, ran in reversed(pool.site.ran) if ran is order)
            pool.site.start(kill, pool.site.nodes[node])
            return work(hangs=True)

        async def kill(node):
            await anyio.sleep(0.1)
            node.stop()
            pool.fleet.lose(node.machine.id, "kernel panic")

        job = pool.submit(poison, retries=50)
        await pool.settled(job)
        ending = pool.endings[job]
        assert (ending.reason, len(ending.losses)) == (Reason.QUARANTINED, 4)


async def test_a_node_whose_connections_end_as_soon_as_they_are_there_keeps_nobody_busy(rig, work):
    """Each is had again in 0.05 s: without a pause that were 20 a second, for ever."""
    async with rig(desired=2) as pool:
        await pool.ready()
        node, began = pool.site.nodes[0], anyio.current_time()

        async def flap():
            resumed = len(pool.seen.all("node_resumed"))
            node.drop()
            await pool.until(lambda: len(pool.seen.all("node_resumed")) > resumed)

        while anyio.current_time() < began + 60:
            await flap()
        assert 25 < len(pool.seen.all("node_resumed")) < 45
        assert not pool.seen.all("node_lost")
        await anyio.sleep(11)
        before = anyio.current_time()
        node.drop()  # one that held is had again at once
        await pool.until(lambda: pool.seen.at("node_resumed")[-1] > before, within_s=0.1)


async def test_what_a_node_says_of_itself_is_kept_within_bounds(rig):
    async with rig(desired=2) as pool:
        await pool.ready()
        said = pool.site.nodes[0]
        for first in range(1, 60_000, 1000):
            said.say(PortsFree(first, (first, first, *range(first, first + 1000))))
            said.say(PortsFree(first, tuple(range(first, first + 1000))))
        for number in range(1000):
            said.notice(f"source {number}", 30.0)
        await anyio.sleep(1)
        assert len({told["source"] for told in pool.seen.all("node_noticed")}) <= SOURCES_KEPT


async def lose_as_unfit(pool, *, has_run):
    """Its executor ends by itself; what nodes there are then."""
    node = max(pool.site.nodes)
    pool.site.nodes[node].say(Unfit("its fork server has ended", has_run))
    pool.fleet.lose(pool.site.nodes[node].machine.id)
    await pool.until(lambda: len(pool.seen.all("node_lost")) == node + 1)


async def test_nodes_that_have_run_something_are_replaced_however_many_executors_end_in_a_row(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        for lost in range(1, UNFIT_NODES + 2):
            await lose_as_unfit(pool, has_run=True)
            await pool.until(lambda lost=lost: len(pool.seen.all("node_ready")) == 1 + lost, within_s=5)
        assert not pool.seen.all("launch_failed")
        job = pool.submit(work())
        await pool.settled(job)
        assert pool.endings[job].verdict is Verdict.RETURNED


async def test_those_that_have_run_nothing_are_not_and_calls_fail_until_one_more_is_asked_for(rig, work):
    async with rig(desired=1) as pool:
        await pool.ready()
        for lost in range(1, UNFIT_NODES + 1):
            await pool.until(lambda lost=lost: len(pool.seen.all("node_ready")) == lost)
            await lose_as_unfit(pool, has_run=False)
        jobs = [pool.submit(work()), pool.broadcast(work())]
        await pool.settled(*jobs, within_s=1)
        endings = [pool.endings[jobs[0]], *pool.all_endings[jobs[1]][0]]
        assert [ending.reason for ending in endings] == [Reason.NO_REPLACEMENT] * 2
        assert {str(ending.failure) for ending in endings} == {"its fork server has ended"}
        await pool.until(lambda: len(pool.seen.all("node_ready")) == UNFIT_NODES + 1, within_s=ANEW_S + 5)
        job = pool.submit(work())
        await pool.settled(job)
        assert pool.endings[job].verdict is Verdict.RETURNED
