"""How a pool ends whose machines cannot be confirmed to be gone: its results stand, and it is said what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from outrider import AuthError, BudgetExceeded, CapacityError, CleanupError, Local, Pool, PoolClosed, Spec, compute
from outrider.actors.events import ProviderWarned
from outrider.engine.client import budget
from outrider.providers.base import EntryPoints, MachineEvent, Warned
from outrider.providers.errors import NotAuthorized, NotGone, ProviderError

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Sticky:
    """Local machines whose end ``trouble`` says is not confirmed, in a task group as clouds have one."""

    trouble: Exception | None
    says: tuple[str, ...] = ()
    name: str = "sticky"
    local: bool = True
    ended: list[str] = field(default_factory=list, compare=False)

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Any]:
        async with Local().open(pool, entry_points) as fleet, anyio.create_task_group() as tasks:
            sticky = StickyFleet(fleet)
            try:
                yield sticky
            finally:
                with anyio.CancelScope(shield=True):
                    sticky.closing.extend(map(Warned, self.says))
                    while sticky.closing:
                        await asyncio.sleep(0)
                tasks.cancel_scope.cancel()
                self.ended.append(pool)
                if self.trouble is not None:
                    raise self.trouble


class StickyFleet:
    def __init__(self, fleet: Any) -> None:
        self._fleet = fleet
        self.closing: list[MachineEvent] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    async def events(self) -> AsyncIterator[MachineEvent]:
        if not self.closing:
            async for event in self._fleet.events():
                yield event
        while self.closing:
            yield self.closing.pop(0)


@compute
def double(number: int) -> int:
    return 2 * number


@compute
def forever() -> None:
    time.sleep(600)


def not_gone(**facts: Any) -> NotGone:
    return NotGone("AWS did not answer", **{"machines": ("i-1", "i-2"), "by": 1e9, **facts})


async def watched(pool: Pool, told: list[str]) -> None:
    told += [event.text async for event in pool.events() if isinstance(event, ProviderWarned)]


async def test_a_finished_job_whose_clean_up_failed_is_no_lack_of_machines() -> None:
    with pytest.raises(CleanupError) as caught:
        async with Pool(provider=Sticky(not_gone(left=("launch template a",))), console="silent") as pool:
            assert await pool.run(double(21)) == 42
    error = caught.value
    assert not isinstance(error, CapacityError)
    assert (error.machines, error.left, error.by) == (("i-1", "i-2"), ("launch template a",), 1e9)
    at = time.strftime("%H:%M", time.localtime(1e9 + 59))
    assert f"i-1, i-2 may still be running. They end themselves by {at} at the latest" in str(error)
    assert "outrider gc --apply" in str(error)
    assert "try again" not in str(error)
    assert str(error).startswith("The pool has ended, and what it returned is whole; but ")


@pytest.mark.parametrize("several", [False, True])
async def test_what_costs_nothing_is_a_warning(several: bool) -> None:
    provider = Sticky(not_gone(machines=(), left=("security group sg-1",)))
    given: Any = (
        {"specs": [Spec(provider=provider), Spec(provider=Sticky(None, name="b"))]}
        if several
        else {"provider": provider}
    )
    told: list[str] = []
    async with Pool(*given.get("specs", ()), console="silent", **({} if several else given)) as pool:
        watching = asyncio.ensure_future(watched(pool, told))
        assert await pool.run(double(1)) == 2
    await watching
    (left,) = told
    assert left.startswith("left at no cost: security group sg-1 (AWS did not answer)")


async def test_credentials_that_expired_are_the_cause_of_the_same_error() -> None:
    trouble = not_gone()
    trouble.__cause__ = NotAuthorized("the AWS credentials have expired")
    with pytest.raises(CleanupError) as caught:
        async with Pool(provider=Sticky(trouble), console="silent"):
            pass
    assert isinstance(caught.value.__cause__, AuthError)


async def test_whatever_a_provider_fails_with_at_the_end_is_a_clean_up() -> None:
    with pytest.raises(CleanupError, match="machines of which nobody was told may still be running") as caught:
        async with Pool(provider=Sticky(ProviderError("the cloud is away")), console="silent"):
            pass
    assert "the cloud is away" in str(caught.value)


async def test_the_blocks_own_error_is_raised_with_the_clean_ups() -> None:
    with pytest.raises(KeyError, match="mine") as caught:
        async with Pool(provider=Sticky(not_gone()), console="silent"):
            raise KeyError("mine")
    error: Any = caught.value
    assert isinstance(error.cleanup, CleanupError)
    assert str(error.cleanup).startswith("The pool has ended, and it is not confirmed that its machines have ended (")
    assert "i-1, i-2 may still be running" in error.__notes__[0]


def test_so_it_is_in_a_block_without_await() -> None:
    with pytest.raises(KeyError, match="mine") as caught, Pool(provider=Sticky(not_gone()), console="silent"):
        raise KeyError("mine")
    assert caught.value.cleanup.machines == ("i-1", "i-2")  # type: ignore[attr-defined]
    assert "whole" not in str(caught.value.cleanup)  # type: ignore[attr-defined]


async def test_a_limit_says_no_more_than_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0  # which stands while a pool opens: its limit is not reached before it has a provider
    monkeypatch.setattr(budget, "clock", lambda: now)
    with pytest.raises(BudgetExceeded, match="it was ended") as caught:
        async with asyncio.timeout(60), Pool(provider=Sticky(not_gone()), max_lifetime=1.0, console="silent") as pool:
            now = 1.0
            with pytest.raises(PoolClosed):
                await pool.run(forever())
    error = caught.value
    assert "with its machines" not in str(error)
    assert error.cleanup is not None
    assert error.cleanup.machines == ("i-1", "i-2")
    (note,) = error.__notes__
    assert "may still be running" in note
    assert "whole" not in note

    with pytest.raises(BudgetExceeded, match="it was ended") as caught:
        async with asyncio.timeout(60), Pool(provider=Sticky(None), max_lifetime=1.0, console="silent") as pool:
            now = 2.0
            with pytest.raises(PoolClosed):
                await pool.run(forever())
    assert caught.value.cleanup is None
    assert caught.value.__notes__ == ["Its machines are gone, as their provider confirms."]


async def test_a_defect_says_no_more_than_is_known() -> None:
    with pytest.raises(PoolClosed, match=r"defect of Outrider's own \(KeyError") as caught:
        async with asyncio.timeout(60), Pool(provider=Sticky(not_gone()), console="silent") as pool:
            assert pool._core is not None
            assert pool._core._ref is not None
            from outrider.actors.messages import Happened  # by something that no actor survives

            pool._core._ref.tell(Happened({}.__getitem__))
            with pytest.raises(PoolClosed):
                await pool.run(forever())
    error = caught.value
    assert "are gone" not in str(error)
    assert error.cleanup is not None
    assert "i-1" in error.__notes__[0]


async def test_a_start_that_fails_says_what_it_left() -> None:
    @dataclass(frozen=True)
    class Barren(Sticky):
        @asynccontextmanager
        async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Any]:
            async with Sticky.open(self, pool, entry_points) as fleet:

                async def launch(request: Any, count: int) -> Any:
                    raise NotAuthorized("no such key")

                fleet.launch = launch
                yield fleet

    with pytest.raises(AuthError) as caught:
        async with Pool(provider=Barren(not_gone()), console="silent"):
            pytest.fail("opened")
    assert str(caught.value.cleanup).startswith("The pool did not start, and it is not confirmed that the machines ")

    provider = Barren(not_gone())
    starting = asyncio.ensure_future(Pool(provider=provider, console="silent").__aenter__())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises((asyncio.CancelledError, AuthError)):
        await starting


async def test_what_a_provider_says_while_it_is_left_is_heard() -> None:
    told: list[str] = []
    async with Pool(provider=Sticky(None, says=("EC2 does not answer", "it answers")), console="silent") as pool:
        watching = asyncio.ensure_future(watched(pool, told))
        await asyncio.sleep(0)
    await watching
    assert told == ["EC2 does not answer", "it answers"]


async def test_several_providers_are_left_though_one_of_them_fails() -> None:
    first, second = Sticky(not_gone(machines=("i-1",), by=1e9)), Sticky(not_gone(machines=("i-2",), by=2e9), name="b")
    with pytest.raises(CleanupError) as caught:
        async with Pool(Spec(provider=first), Spec(provider=second), console="silent") as pool:
            assert await pool.run(double(1)) == 2
    assert len(first.ended) == len(second.ended) == 1
    assert set(caught.value.machines) == {"i-1", "i-2"}
    assert caught.value.by == 2e9


@dataclass(frozen=True)
class Defective(Sticky):
    """A provider whose launch raises what no provider should raise."""

    trouble: Exception | None = None

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Any]:
        async with Local().open(pool, entry_points) as fleet:
            defective = StickyFleet(fleet)
            defective.launch = self.launch  # type: ignore[attr-defined]
            yield defective

    async def launch(self, *_: Any) -> Any:
        raise KeyError("InstanceId")


async def test_a_launch_that_raises_an_untyped_error_is_the_providers_failure() -> None:
    with pytest.raises(CapacityError, match=r"launch raised KeyError: 'InstanceId'") as caught:
        async with asyncio.timeout(60), Pool(provider=Defective(), console="silent"):
            pass
    causes = [caught.value.__cause__]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__)
    assert any(isinstance(each, KeyError) for each in causes)
