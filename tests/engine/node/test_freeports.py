"""Ports that are kept free take a share of the descriptors, and leave the rest to tasks."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import msgpack
import pytest

from outrider.engine.node.freeports import KEPT, FreePorts


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


def test_ports_are_made_up_for_before_the_last_is_taken(ports: FreePorts) -> None:
    kept = list(ports.open())
    for _ in range(100):
        kept += ports.release_for(msgpack.packb({"head_port": kept.pop(0)}))
        assert kept


def test_more_are_told_when_half_of_them_are_left(ports: FreePorts) -> None:
    told = [len(ports.release_for(msgpack.packb({"head_port": port}))) for port in ports.open()[:4]]
    assert told == [0, 0, 0, 4]
