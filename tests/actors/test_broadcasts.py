"""What the pool's actor learns of its broadcasts; what these decide is `gang`'s, and tested there."""

from __future__ import annotations

from itertools import count
from typing import Any

from outrider.actors.broadcasts import Broadcasts
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
    Verdict,
)
from outrider.actors.ledger import Ledger
from outrider.actors.membership import Membership
from outrider.providers.base import Address, Machine, MachineId

FACTS = NodeFacts(hostname="h", address="a", ports=(1,), accelerators=())


class Link:
    def __init__(self) -> None:
        self.attempts: list[AttemptId] = []

    def run(self, order: Order) -> None:
        self.attempts.append(order.attempt)

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
        member.ports.append(1)
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
    assert broadcasts.wake_at() == 602.0
