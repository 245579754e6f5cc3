"""Ports that are kept free take a share of the descriptors, and leave the rest to tasks."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import msgpack
import pytest

from outrider.engine.node.freeports import KEPT, FreePorts
from outrider.engine.wire.messages import Ports, PortsTaken, Run, RunFlag, Value


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        ports = FreePorts()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield ports
    ports.close()


def test_a_process_that_may_have_few_descriptors_keeps_few_ports(ports: FreePorts) -> None:
    assert len(ports.open()) == 8 < KEPT


def run(attempt: int, world: object, flags: RunFlag = RunFlag.LISTENS) -> Run:
    return Run(attempt, b"f", Value(b""), 1, 1, None, int(flags), msgpack.packb(world))


def test_others_are_offered_when_half_of_them_are_left(ports: FreePorts) -> None:
    offers = list[Ports | None]()
    for attempt, port in enumerate(ports.open()[:4]):
        ports.named(run(attempt, {"head_port": port}))
        offers.append(ports.offer())
    assert offers[:3] == [None, None, None]
    assert offers[3] is not None
    assert (offers[3].first, len(offers[3].ports)) == (4, 8)
    assert ports.offer() is None


def test_comparison_is_answered_with_all_that_are_offered(ports: FreePorts) -> None:
    first = ports.open()
    ports.compare(PortsTaken(2, ()))
    assert ports.offer() == Ports(2, (*first[2:], *ports.open()[-2:]))


def test_port_of_a_task_that_does_not_listen_stays_offered(ports: FreePorts) -> None:
    kept = ports.open()
    ports.named(run(1, {"head_port": kept[0]}, RunFlag(0)))
    for world in ({"rank": 1, "peers": [{"port": kept[0]}, {"port": 0}]}, {"rank": 0, "peers": []}, {}, {"peers": 3}):
        ports.named(run(2, world))
    ports.named(run(3, {"head_port": "http"}))
    assert ports.open() == kept
