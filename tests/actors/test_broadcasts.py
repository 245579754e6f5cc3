"""What the pool's actor learns of its broadcasts; what these decide is `gang`'s, and tested there."""

from __future__ import annotations

from itertools import count
from typing import Any

from outrider.actors.broadcasts import LONG_S, Broadcasts
from outrider.actors.interfaces import (
    AttemptId,
    BroadcastSpec,
    Finished,
    JobId,
    NodeFacts,
    NodeId,
    OnLoss,
    Order,
    PoolSpec,
    Task,
    TaskId,
    Verdict,
)
from outrider.actors.ledger import Ledger
from outrider.actors.membership import Membership
from outrider.providers.base import Address, Machine, MachineId

REPLACE_S = 60.0
FACTS = NodeFacts(hostname="h", address="a", ports=(1,), accelerators=())


class Link:
    def __init__(self) -> None:
        self.attempts: list[AttemptId] = []
        self.jobs: list[int] = []

    def run(self, order: Order) -> None:
        self.attempts.append(order.attempt)
        self.jobs.append(order.task.job)

    def is_sent(self, attempt: AttemptId) -> bool:
        return True

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


def test_a_wait_that_begins_when_a_rank_returns_has_its_alarm() -> None:
    """The other rank of its node is lost by then: this one was what the replacement still had to wait for."""
    nodes, attempts = Membership(), count(1)
    ledger = Ledger(nodes.roster, slots=2, attempts=attempts)
    broadcasts = Broadcasts(PoolSpec(1, 1, 1), ledger, nodes, lambda *_, **__: None, attempts)  # type: ignore[arg-type]
    links = [Link(), Link()]
    for number, link in enumerate(links):
        member = nodes.add(Machine(MachineId(f"m{number}"), Address("h"), ""))
        member.facts, member.link = FACTS, link
        member.ports.offer(0, (1,))
        nodes.links[member.id] = link
        nodes.joined(member)
        ledger.node_ready(member.id, 0.0)
    spec = BroadcastSpec(
        job=JobId(1), function=b"f", content=None, on_loss=OnLoss.RESEND, collective=False, ranks_per_node=lambda _: 2
    )
    broadcasts.start(spec, lambda *_: None, 0.0, minimum=2, wanted=2)
    for job, granted in ledger.decisions.seats:
        broadcasts.seated(job, granted, 0.0)
    lost, last = links[1].attempts
    broadcasts.leaving(NodeId(1), 1.0, noticed=True)
    assert broadcasts.finished(NodeId(1), Finished(lost, Verdict.TERMINATED, None, 0.0), 1.0)
    assert broadcasts.wake_at() is None  # the other rank of this world's node may still end
    assert broadcasts.finished(NodeId(1), Finished(last, Verdict.RETURNED, None, 0.0), 2.0)
    (gang,) = broadcasts._gangs.values()
    assert gang.wake_at() == 602.0
    assert broadcasts.wake_at() == 2.0 + LONG_S


class Pool:
    """Two nodes at least, of one slot each. It carries out what the ledger decides."""

    def __init__(self) -> None:
        self.nodes, attempts = Membership(), count(1)
        self.ledger = Ledger(self.nodes.roster, slots=1, attempts=attempts)
        spec = PoolSpec(4, 2, 1, replace_timeout_s=REPLACE_S)
        self.broadcasts = Broadcasts(spec, self.ledger, self.nodes, lambda *_, **__: None, attempts)  # type: ignore[arg-type]
        self.links: list[Link] = []
        self.now = 0.0

    def join(self, *, ports: int = 1) -> None:
        member = self.nodes.add(Machine(MachineId(f"m{len(self.links)}"), Address("h"), ""))
        self.links.append(link := Link())
        member.facts, member.link = FACTS, link
        member.ports.offer(0, range(ports))
        self.nodes.links[member.id] = link
        self.nodes.joined(member)
        self.ledger.node_ready(member.id, self.now)
        self.settle()

    def broadcast(self, job: int) -> None:
        spec = BroadcastSpec(JobId(job), b"f", None, OnLoss.RESTART, collective=True, ranks_per_node=lambda _: 1)
        self.broadcasts.start(spec, lambda *_: None, self.now, minimum=2, wanted=4)
        self.settle()

    def drop(self, node: int) -> None:
        """The connection of a node is lost, and is being tried again."""
        self.ledger.node_closed(NodeId(node), self.now, recall=False)
        self.settle()

    def lose(self, node: int) -> None:
        self.nodes.left(self.nodes.members[NodeId(node)])
        self.ledger.node_lost(NodeId(node), "lost", self.now)
        self.broadcasts.lost(NodeId(node), "lost", self.now)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.broadcasts.tick(self.now)
        self.settle()

    def settle(self) -> None:
        self.broadcasts.ready(self.now)
        while self.ledger.decisions.seats:
            seats, self.ledger.decisions.seats = self.ledger.decisions.seats, []
            for job, granted in seats:
                self.broadcasts.seated(job, granted, self.now)


def test_seats_of_a_broadcast_that_has_not_begun_do_not_hold_up_one_that_has_for_ever() -> None:
    """Found by reading: one waited, first in line, for a node that the other held, and that one for its turn."""
    pool = Pool()
    pool.join()
    pool.join()
    pool.broadcast(2)
    assert [link.jobs for link in pool.links] == [[2], [2]]
    pool.drop(0)
    pool.drop(1)
    pool.join(ports=0)
    pool.join()
    pool.broadcast(1)  # it has the new nodes, and waits for a port
    pool.join()
    task = Task(TaskId(3), JobId(3), b"f", None)
    pool.ledger.submit(task, lambda _: None, pool.now)
    ((node, order),) = pool.ledger.decisions.runs
    assert node == 4
    pool.lose(0)
    pool.lose(1)
    pool.lose(2)
    pool.pass_time(REPLACE_S)
    pool.ledger.received(NodeId(4), [Finished(order.attempt, Verdict.RETURNED, None, 0.0)], pool.now)
    for _ in range(3):
        pool.pass_time(REPLACE_S)
    assert [pool.links[node].jobs for node in (3, 4)] == [[2], [2]]
