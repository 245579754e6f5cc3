"""Questions for stacks are answered once, whatever the node says, and with what is known of signs of life."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from outrider.actors.interfaces import AttemptId, AttemptSeen
from outrider.engine.node import stack_text
from outrider.engine.transport import diagnostics
from outrider.engine.transport.diagnostics import NodeStacks
from outrider.engine.wire import messages as wire

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Asked:
    def __init__(self, *attempts: int) -> None:
        self.sent: list[wire.Message] = []
        self.answers: list[Mapping[AttemptId, AttemptSeen]] = []
        self.stacks = NodeStacks(dict.fromkeys(attempts, ...), self.sent.append)  # type: ignore[arg-type]

    async def settled(self) -> list[Mapping[AttemptId, AttemptSeen]]:
        await asyncio.sleep(0)
        return self.answers


async def test_an_answer_is_complete_with_its_last_message() -> None:
    asked = Asked(1, 2)
    asked.stacks.ask(asked.answers.append, quiet_s=0.5)
    assert asked.sent == [wire.ShowStacks(1, 500_000)]
    asked.stacks.received(wire.Stacks(1, 1, "here", 2_000_000))
    asked.stacks.received(wire.Stacks(1, 1, "again", 0))
    asked.stacks.received(wire.Stacks(1, 9, "of a task that is over", 0))
    asked.stacks.received(wire.Stacks(7, 2, "never asked for", 0))
    assert await asked.settled() == []
    asked.stacks.received(wire.Stacks(1, None, "", 0))
    asked.stacks.received(wire.Stacks(1, None, "", 0))
    assert await asked.settled() == [{1: AttemptSeen("here", 2.0)}]


async def test_the_newest_sign_of_life_counts() -> None:
    asked = Asked(1, 2)
    asked.stacks.heard(1)
    asked.stacks.heard(9)
    assert {*asked.stacks.signs} == {1}
    asked.stacks.ask(asked.answers.append)
    asked.stacks.received(wire.Stacks(1, 1, "a", 3_600_000_000))
    asked.stacks.received(wire.Stacks(1, 2, "b", 5_000_000))
    asked.stacks.received(wire.Stacks(1, None, "", 0))
    (answer,) = await asked.settled()
    assert answer[AttemptId(1)].quiet_s < 60
    assert answer[AttemptId(2)] == AttemptSeen("b", 5.0)
    asked.stacks.signs.pop(1)
    assert asked.stacks.signs == {}


async def test_a_node_that_does_not_answer_or_is_lost_ends_the_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(diagnostics, "STACKS_WITHIN_S", 0.0)
    asked = Asked(1)
    asked.stacks.ask(asked.answers.append)
    async with asyncio.timeout(60):
        while not asked.answers:
            await asyncio.sleep(0.001)
    monkeypatch.setattr(diagnostics, "STACKS_WITHIN_S", 60.0)
    asked.stacks.ask(asked.answers.append)
    asked.stacks.close()
    asked.stacks.ask(asked.answers.append)
    assert await asked.settled() == [{}, {}, {}]


async def test_a_text_is_made_safe_and_short_whatever_the_node_sends() -> None:
    asked = Asked(1, 2)
    asked.stacks.ask(asked.answers.append)
    asked.stacks.received(wire.Stacks(1, 1, '  File "a.py", line 1 in \x1b[2Jf\x07\r\n' * 100_000, 0))
    asked.stacks.received(wire.Stacks(1, 2, "\x1b]0;title\x07x" + "y" * 10**6, 0))
    asked.stacks.received(wire.Stacks(1, None, "", 0))
    (answer,) = await asked.settled()
    for sight in answer.values():
        assert len(sight.text) <= stack_text.MOST_CHARS
        assert sight.text.replace("\n", "").isprintable()
    assert answer[AttemptId(1)].text.startswith('  File "a.py", line 1 in f\n  File')
    assert answer[AttemptId(1)].text.endswith("more lines")
    assert answer[AttemptId(2)].text.startswith("xyyy")
