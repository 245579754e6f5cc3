"""A pool whose machines are there, and never answer."""

from __future__ import annotations

from typing import Any, Never

import pytest

from outrider import ConnectionLost, Local, Pool
from outrider.actors.interfaces import ConnectFailed
from outrider.engine.transport.connection import Connector

pytestmark = pytest.mark.anyio


async def test_a_pool_that_is_not_ready_in_time_says_what_kept_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: Any) -> Never:
        raise ConnectFailed("no route to host")

    monkeypatch.setattr(Connector, "__call__", unreachable)
    with pytest.raises(ConnectionLost, match="not ready within 1 s: no route to host") as caught:
        async with Pool(provider=Local(), nodes=2, boot_timeout=1, replace_timeout=2, console="silent"):
            pass
    assert caught.value.__notes__ == [
        "Of 2 nodes, after their boot_timeout of 1 s, 2 were waiting for an answer.",
        "Only 0 of the 2 nodes that the pool needs were ready within 3 s.",
    ]
