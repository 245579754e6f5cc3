"""What a pool keeps for each of its nodes. Python's collector goes through it, and a pool may have a thousand nodes."""

from __future__ import annotations

import gc
from unittest.mock import Mock

import pytest

from outrider.actors.interfaces import NodeId
from outrider.engine.transport.connection import NodeConnection
from outrider.providers.base import Address, Machine, MachineId

from .any_settings import settings

pytestmark = pytest.mark.anyio
MOST = 24  # objects of a node that nothing has happened to; whoever adds one adds it to each node


async def test_a_connection_is_few_objects_to_pythons_collector() -> None:
    machine = Machine(MachineId("pool/m"), Address(path="/nowhere"), "", "/nowhere", ssh=False)
    shared, owner = settings(), Mock()
    made: list[NodeConnection] = []

    def more(count: int) -> int:
        made.extend(NodeConnection(NodeId(0), machine, shared, print, owner=owner) for _ in range(count))
        gc.collect()
        return len(gc.get_objects())

    for _ in range(5):  # a thread that another test has left may make some meanwhile
        before = more(10)  # the first ones also make what all have in common
        if (each := (more(100) - before) / 100) <= MOST:
            break
    assert each <= MOST
