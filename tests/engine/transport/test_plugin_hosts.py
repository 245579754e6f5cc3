"""What a plugin's half has not read yet is bounded for each node, and nothing of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from outrider.actors.interfaces import NodeId
from outrider.engine.api.plugin import Heard, Left
from outrider.engine.transport import plugin_hosts
from outrider.engine.transport.plugin_hosts import AHEAD, AHEAD_BYTES, PluginInbox

pytestmark = pytest.mark.anyio
ONE, OTHER = NodeId(1), NodeId(2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def as_far_as_it_goes(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """It never waits for anything but room."""
    task = asyncio.ensure_future(work)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def say(box: PluginInbox, node: NodeId, count: int, size_bytes: int) -> None:
    for number in range(count):
        await box.put_message(node, number, size_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "held"), [(1, AHEAD), (AHEAD_BYTES // 4, 4), (AHEAD_BYTES // 4 + 1, 4), (AHEAD_BYTES * 9, 1)]
)
async def test_a_node_whose_messages_nobody_reads_waits_and_loses_none(size_bytes: int, held: int) -> None:
    """INBOX-1"""
    box = PluginInbox()
    saying = await as_far_as_it_goes(say(box, ONE, 1000, size_bytes))
    assert box._news.qsize() == held
    for number in range(1000):
        assert await box.read() == Heard(ONE, number)
        await asyncio.sleep(0)
        assert box._news.qsize() <= held
    await saying
    assert not box._unread


async def test_others_do_not_wait_with_it() -> None:
    box = PluginInbox()
    saying = await as_far_as_it_goes(say(box, ONE, AHEAD + 1, 1))
    await box.put_message(OTHER, "other", 1)
    box.put(Left(ONE))
    assert box._news.qsize() == AHEAD + 2
    saying.cancel()  # as when its node is lost
    assert [await box.read() for _ in range(AHEAD + 2)][AHEAD:] == [Heard(OTHER, "other"), Left(ONE)]
    assert not box._unread


async def test_when_nobody_reads_any_more_nobody_waits() -> None:
    box = PluginInbox()
    saying = await as_far_as_it_goes(say(box, ONE, 1000, 1))
    box.close()
    await saying
    assert box._news.qsize() == AHEAD


@pytest.mark.parametrize(("name", "size_bytes", "held"), [("AHEAD", 1, AHEAD), ("AHEAD_BYTES", AHEAD_BYTES * 9, 1)])
async def test_the_invariant_falls_without_its_guard(
    name: str, size_bytes: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INBOX-1"""
    monkeypatch.setattr(plugin_hosts, name, 1 << 40)
    with pytest.raises(AssertionError):
        await test_a_node_whose_messages_nobody_reads_waits_and_loses_none(size_bytes, held)
