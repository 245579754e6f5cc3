"""Whatever breaks, and in whatever order: everything settles once, rightly, and nothing is left."""

from __future__ import annotations

import random

import anyio
import pytest

from outrider.actors import messages as m
from outrider.actors.fleet_controller import NodePhase
from outrider.actors.interfaces import GaveUp, OnLoss, Reason, Settled, Verdict
from outrider.providers.errors import NoCapacity
from outrider.testing.fake_provider import Script

pytestmark = pytest.mark.anyio
SEEDS = 20


class Chaos:
    """Breaks one thing after the other, by the dice."""

    def __init__(self, pool, dice, work):
        self.pool, self.dice, self.work = pool, dice, work
        self.tasks, self.broadcasts, self.cancelled, self.once = [], [], set(), set()
        self.noticed = []

    async def run(self, steps):
        deeds = (
            [self.submit] * 6
            + [self.broadcast] * 2
            + [self.lose, self.die, self.drop, self.give_notice, self.withdraw_notice]
        )
        deeds += [self.cut_network, self.cancel, self.resize, self.wait, self.wait]
        for _ in range(steps):
            await self.dice.choice(deeds)()

    async def submit(self):
        for _ in range(self.dice.choice([1, 3, 20])):
            takes_s = self.dice.choice([0.0001, 0.01, 0.5, 8.0])
            once = self.dice.random() < 0.2
            options = {"function": str(takes_s).encode(), "at_most_once": once, "retries": 0 if once else 50}
            if self.dice.random() < 0.1:
                options["on"] = 0
            job = self.pool.submit(self.work(takes_s=takes_s), **options)
            self.tasks.append(job)
            if once:
                self.once.add(job)

    async def broadcast(self):
        on_loss = self.dice.choice([OnLoss.RESTART, OnLoss.RESTART, OnLoss.RESEND])
        job = self.pool.broadcast(
            self.work(takes_s=self.dice.choice([0.001, 2.0, 15.0])),
            on_loss=on_loss,
            collective=on_loss is OnLoss.RESTART,
            restarts=1000,
        )
        self.broadcasts.append(job)

    def node(self):
        return self.dice.choice(sorted(self.pool.site.nodes.items()))[1] if self.pool.site.nodes else None

    async def lose(self):
        node = self.node()
        if node is not None and node.machine.id in self.pool.fleet.machines:
            node.stop()
            self.pool.fleet.lose(node.machine.id)

    async def die(self):
        node = self.node()
        if node is not None and not node.dead:
            node.die(silent=self.dice.random() < 0.5)

    async def drop(self):
        node = self.node()
        if node is not None and not node.dead:
            node.fresh = self.dice.random() < 0.2
            node.drop(cause="reset")

    async def give_notice(self):
        node = self.node()
        if node is not None:
            self.noticed.append(node.machine.id)
            self.pool.fleet.give_notice(node.machine.id)

    async def withdraw_notice(self):
        if self.noticed:
            self.pool.fleet.withdraw_notice(self.noticed.pop())

    async def cut_network(self):
        nodes = [node for node in self.pool.site.nodes.values() if not node.dead and not node.closed]
        for node in nodes:
            node.cut = True
            node.drop(silent=True)
        await anyio.sleep(self.dice.choice([1.0, 30.0]))
        for node in nodes:
            node.cut = False

    async def cancel(self):
        jobs = [*self.tasks, *self.broadcasts]
        if jobs:
            job = self.dice.choice(jobs)
            if job not in self.pool.endings and job not in self.pool.all_endings:
                self.cancelled.add(job)
            self.pool.ref.tell(m.Cancel(job))

    async def resize(self):
        self.pool.ref.tell(m.Resize(self.dice.randint(2, 6)))

    async def wait(self):
        await anyio.sleep(self.dice.choice([0.0, 0.02, 1.0, 12.0]))


async def ride(rig, work, seed):
    dice = random.Random(seed)
    script = Script(
        launch_s=tuple(dice.choice([0.0, 1.0, 5.0]) for _ in range(5)),
        boot_s=tuple(dice.choice([0.0, 2.0, 40.0]) for _ in range(20)),
        failures=(None, *(dice.choice([None, None, NoCapacity("none", retry_after_s=1.0)]) for _ in range(10)), None),
    )
    spec = {"desired": 4, "min": dice.choice([2, 4]), "slots": dice.choice([1, 2]), "launch_retries": 100}
    async with rig(script, **spec) as pool:
        await pool.ready()
        chaos = Chaos(pool, dice, work)
        await chaos.run(60)
        for machine in chaos.noticed:
            pool.fleet.lose(machine)
        pool.ref.tell(m.Resize(4))
        await pool.settled(*chaos.tasks, *chaos.broadcasts)
        await pool.until(lambda: all(node.closed for node in pool.site.nodes.values() if node.dead))
        await anyio.sleep(200)
        state = await pool.state()
        assert (state.queued, state.leased, state.broadcasts) == (0, 0, 0)
        assert len(pool.provider.alive) == len(state.nodes) == 4
        assert {(node.phase, node.away) for node in state.nodes} == {(NodePhase.READY, False)}
        assert {node.load for node in state.nodes} == {0}
        check_tasks(pool, chaos)
        check_broadcasts(pool, chaos)
    assert pool.provider.alive == {}


def check_tasks(pool, chaos):
    for job in chaos.tasks:
        ending = pool.endings[job]
        if isinstance(ending, Settled):
            assert ending.verdict is Verdict.RETURNED
            assert ending.outcome.startswith(f"{job}@"), "another task's result"
        elif ending.reason is Reason.LOST:
            assert job in chaos.once
        else:
            assert ending.reason is Reason.CANCELLED
            assert job in chaos.cancelled
    dispatched = [order.task.job for _, order in pool.site.ran if order.world is None]
    returned = {job for job in chaos.once if dispatched.count(job) > 1}
    assert all(dispatched.count(job) - 1 <= 3 for job in returned), "given back, or run twice"


def check_broadcasts(pool, chaos):
    for job in chaos.broadcasts:
        endings, generation = pool.all_endings[job]
        if isinstance(endings[0], GaveUp):
            assert endings[0].reason is Reason.CANCELLED
            assert job in chaos.cancelled
            continue
        orders = [order for _, order in pool.site.ran if order.task.job == job and order.world.generation == generation]
        for rank, ending in enumerate(endings):
            assert ending.rank == rank
        if len(orders) == orders[0].world.size:
            assert {order.world for order in orders} == {orders[0].world}
            assert sorted(order.rank for order in orders) == list(range(len(endings)))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_everything_settles_rightly_and_nothing_is_left(rig, work, seed):
    await ride(rig, work, seed)
