"""What goes wrong while a provider's context is left is kept apart from what went wrong before: CLEANUP-1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from outrider.engine.client import cleanup
from outrider.engine.client.cleanup import collecting_failures, uncancelled_exits
from outrider.providers.errors import NotGone, ProviderError

pytestmark = pytest.mark.anyio
LEFT = NotGone("EC2 does not answer", machines=["i-1"])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def provider(leaving: Exception | None, *, in_a_group: bool) -> AsyncIterator[Any]:
    """As one with a task group does, it raises whatever the block raised together with its own, or its own alone."""
    raised: list[Exception] = []
    try:
        yield "a fleet"
    except Exception as error:  # noqa: BLE001
        raised.append(error)
    if leaving is not None:
        raised.append(leaving)
    if in_a_group and raised:
        raise ExceptionGroup("unhandled errors in a TaskGroup", raised)
    if raised:
        raise raised[-1]


CASES = [
    (block, leaving, in_a_group)
    for block in (None, ValueError("mine"), ProviderError("launch"))
    for leaving in (None, LEFT)
    for in_a_group in (False, True)
]


@pytest.mark.parametrize(("block", "leaving", "in_a_group"), CASES)
async def test_neither_the_blocks_error_nor_the_clean_ups_is_lost(
    block: Exception | None, leaving: Exception | None, in_a_group: bool
) -> None:
    trouble: list[NotGone] = []
    caught: BaseException | None = None
    try:
        async with collecting_failures(provider(leaving, in_a_group=in_a_group), trouble):
            if block is not None:
                raise block
    except Exception as error:  # noqa: BLE001
        caught = error
    while isinstance(caught, ExceptionGroup) and len(caught.exceptions) == 1:
        caught = caught.exceptions[0]
    found = {*(caught.exceptions if isinstance(caught, ExceptionGroup) else [caught]), *trouble} - {None}
    assert found == {block, leaving} - {None}
    assert leaving is None or leaving in trouble or leaving in getattr(caught, "exceptions", ())
    assert block is None or leaving is not None or caught is block


async def test_a_provider_that_fails_as_it_is_left_has_perhaps_not_ended_its_machines() -> None:
    trouble: list[NotGone] = []
    async with collecting_failures(provider(ProviderError("no answer"), in_a_group=True), trouble):
        pass
    (left,) = trouble
    assert left.unsure
    assert isinstance(left.__cause__, ProviderError)


async def test_the_invariant_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLEANUP-1"""
    monkeypatch.setattr(cleanup, "_not_gone", lambda error: NotGone("something"))
    with pytest.raises(AssertionError):
        await test_neither_the_blocks_error_nor_the_clean_ups_is_lost(None, LEFT, in_a_group=True)


async def test_a_cancelled_block_is_cancelled_whatever_its_exits_do() -> None:
    """A task group that is left behind the shield may take the block's cancellation for its own."""
    ended: list[str] = []

    @asynccontextmanager
    async def takes_it() -> AsyncIterator[None]:
        with suppress(asyncio.CancelledError):
            yield

    with anyio.CancelScope() as scope:
        async with uncancelled_exits() as stack:
            stack.callback(ended.append, "last")
            await stack.enter_async_context(takes_it())
            scope.cancel()
            await anyio.sleep_forever()
        ended.append("not reached")
    assert ended == ["last"]
    assert scope.cancelled_caught
