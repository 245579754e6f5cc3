"""A channel that leads over a command begins where the bridge does; and a goodbye that is cancelled lets go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.engine.executor.bridge import BEGINS
from outrider.engine.remote.channels import Control
from outrider.engine.remote.connection import NodeConnection
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import encode

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
async def test_what_a_login_shell_prints_before_the_bridge_is_skipped(piece: int) -> None:
    control = Control()
    control.bridged()
    heard = b"Welcome to gpu1!\n\0out" + BEGINS + encode(wire.Refused("no", {})) + encode(wire.Ping(3))
    for at in range(0, len(heard), piece):
        control.data_received(heard[at : at + piece])
    assert await control.first == wire.Refused("no", {})
    assert control.rest == encode(wire.Ping(3))


async def test_a_complaint_on_stderr_is_not_the_bridge() -> None:
    control = Control()
    control.bridged()
    control.data_received(BEGINS, 1)
    control.data_received(encode(wire.Refused("no", {})))
    assert not control.first.done()


async def test_a_close_that_is_cancelled_leaves_no_connection() -> None:
    aborted = []
    connection = NodeConnection.__new__(NodeConnection)
    loop = asyncio.get_running_loop()

    async def retire(_: Any) -> None:
        await asyncio.Event().wait()

    nothing = SimpleNamespace(send=lambda _: None, flush=lambda: None, close=lambda: None, detach=lambda: None)
    for name, value in {
        "_terms": SimpleNamespace(stewards=SimpleNamespace(retire=retire)),
        "_node": 0,
        "_machine": SimpleNamespace(embedded=False),
        "link": nothing,
        "_closed": lambda: None,
        "_ssh": SimpleNamespace(abort=lambda: aborted.append(1)),
        "_lost": loop.create_future(),
        "_beat": None,
        "_control": None,
        "_nudge": None,
        "_renewal": None,
        "_anew": None,
    }.items():
        setattr(connection, name, value)
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert aborted == [1]
