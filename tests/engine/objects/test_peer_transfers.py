"""What a node says of its end of transfers between nodes is heard, also where this program has stood still."""

from __future__ import annotations

import asyncio

import pytest

from outrider.engine.objects.peer_transfers import SERVE_S, PeerEnd
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_port_that_was_told_while_this_program_stood_still_is_no_late_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop finds both at once then: the answer, and that its time is over."""
    loop, sent = asyncio.get_running_loop(), list[m.Message]()
    end, clock = PeerEnd(sent.append, "127.0.0.1"), loop.time
    serving = asyncio.ensure_future(end.serve("ticket", "blob", 9))
    await asyncio.sleep(0)
    assert sent == [m.Serve("ticket", "blob", 9)]

    def stand_still() -> None:
        monkeypatch.setattr(loop, "time", lambda: clock() + SERVE_S)
        loop.call_soon(end.received, m.Serving("ticket", 4711))

    loop.call_soon(stand_still)
    assert await serving == 4711


async def test_a_port_that_is_not_told_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    end, clock = PeerEnd(lambda _: None, "127.0.0.1"), loop.time
    serving = asyncio.ensure_future(end.serve("ticket", "blob", 9))
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "time", lambda: clock() + SERVE_S)
    with pytest.raises(OSError, match="did not say where it listens within 5 s"):
        await serving
