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
    for boot_s in (1, 4, 16):  # on a busy computer not even a local machine may be there after the first
        with pytest.raises(ConnectionLost, match=f"not ready within {boot_s} s: ") as caught:
            async with Pool(
                provider=Local(), nodes=2, boot_timeout=boot_s, replace_timeout=2 * boot_s, console="silent"
            ):
                pass
        told = [str(caught.value), *caught.value.__notes__]
        expected = [
            f"Of 2 nodes, after their boot_timeout of {boot_s} s, 2 were waiting for an answer.",
            f"Only 0 of the 2 nodes that the pool needs were ready within {3 * boot_s} s.",
        ]
        if "no route to host" in told[0] and told[1:] == expected:
            break
    assert "no route to host" in told[0]
    assert told[1:] == expected
