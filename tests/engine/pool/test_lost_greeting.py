"""A connection that breaks while the node greets: it knows the session already, and the client comes back with it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from outrider import Local, Pool, compute
from outrider.engine.remote.connection import NodeConnection

pytestmark = pytest.mark.anyio


@compute
def where() -> int:
    return os.getppid()


async def test_a_welcome_that_is_lost_costs_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator: the next try came with another session, and the node refused it for good."""
    accepted, lost = NodeConnection._accepted, list[object]()

    def lose_the_first(self: NodeConnection, answer: Any) -> Any:
        if len(lost) < 2:
            lost.append(answer)
            raise ConnectionResetError("the connection broke")
        return accepted(self, answer)

    monkeypatch.setattr(NodeConnection, "_accepted", lose_the_first)
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        assert len(set(await pool.broadcast(where()))) == 2
        nodes = [node.node for node in pool.snapshot().nodes]
    assert len(lost) == 2
    assert nodes == [0, 1]
