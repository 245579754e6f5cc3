"""What a task costs the client in mailbox, ledger and settling: ``python tests/actors/hot_path.py [tasks] [nodes]``."""

from __future__ import annotations

import sys
import time

import anyio

from outrider.actors import messages as m
from outrider.actors.interfaces import (
    Dependencies,
    Finished,
    JobId,
    NodeFacts,
    PoolSpec,
    Returned,
    Task,
    TaskId,
    Verdict,
)
from outrider.actors.pool import supervise
from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.testing.fake_provider import Fake

BATCH = 16  # reports per read of a link


class Stub:
    """A node that finishes everything when it is asked to."""

    def __init__(self, reports):
        self.reports, self.facts, self.sent = reports, NodeFacts("host", "10.0.0.1", (1,)), []
        self.in_use = 0

    @property
    def link(self):
        return self

    def run(self, order):
        self.sent.append(order)

    def recall(self, attempts):
        self.reports([Returned(())])

    def view(self, members):
        pass

    def place(self, rank, facts, *, nodes, accelerators):
        pass

    def finish(self):
        sent, self.sent = self.sent, []
        for first in range(0, len(sent), BATCH):
            orders = sent[first : first + BATCH]
            self.reports([Finished(order.attempt, Verdict.RETURNED, None, 1e-4) for order in orders])

    def watch(self, lost):
        pass

    async def close(self):
        pass


class Unseen:
    tasks = False

    def __call__(self, event, /, **facts):
        pass

    def wants(self, job):
        return False


async def main(tasks, nodes):
    stubs = []

    async def connect(node, machine, reports, answered):
        stubs.append(Stub(reports))
        return stubs[-1]

    spec = PoolSpec(nodes, nodes, 1)
    async with (
        Fake().open("p", EntryPoints()) as fleet,
        supervise(
            Dependencies(fleet, LaunchRequest("key", nodes), spec, connect, Unseen(), anyio.current_time)
        ) as pool,
    ):
        await pool.ask(m.WhenReady())
        for _ in range(5):
            endings = []
            work = [Task(TaskId(n), JobId(n), b"f", None) for n in range(tasks)]
            began = time.perf_counter()
            for task in work:
                pool.tell(m.Submit(task, endings.append))
            while len(endings) < tasks:
                for stub in stubs:
                    stub.finish()
                await anyio.lowlevel.checkpoint()
            print(f"{(time.perf_counter() - began) / tasks * 1e6:.2f} us a task")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    anyio.run(main, *given, *(20_000, 4)[len(given) :])
