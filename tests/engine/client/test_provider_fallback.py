"""Several specs as one provider: who is asked first, who next, and that a pool's machines can reach each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from outrider import Spec
from outrider.engine.api.settings import Selection
from outrider.engine.client.provider_fallback import FallbackFleet, ProviderFallback
from outrider.providers.base import EntryPoints, LaunchRequest, MachineGone, MachineId
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from outrider.testing.fake_provider import Fake, FakeFleet, Script
from outrider.testing.provider_contract import CHECKS, Check, Subject

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
NOWHERE = EntryPoints()


class Shop(Fake):
    """A fake with a name and prices by vCPUs, which says what it has been asked."""

    def __init__(
        self, name: str, script: Script | None = None, *, prices: dict[int, float | None] | None = None
    ) -> None:
        super().__init__(script)
        self.name = name
        self.prices = prices or {}

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[FakeFleet]:
        async with super().open(pool, entry_points) as fleet:
            yield ShopFleet(self, fleet) if self.prices else fleet  # type: ignore[misc]

    @property
    def asked(self) -> list[int]:
        return [request.vcpus for fleet in self.fleets for request, _ in fleet.requests]


class ShopFleet:
    """A fleet that knows its prices."""

    def __init__(self, shop: Shop, fleet: FakeFleet) -> None:
        self._shop, self._fleet = shop, fleet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    async def quote(self, request: LaunchRequest) -> float | None:
        return self._shop.prices.get(request.vcpus)


@asynccontextmanager
async def opened(*specs: Spec, selection: Selection = "first") -> AsyncIterator[FallbackFleet]:
    async with ProviderFallback(specs, selection).open("p", NOWHERE) as fleet:
        yield fleet


def without(*failures: ProviderError) -> Script:
    return Script(failures=(*failures, None))


NONE = NoCapacity("sold out", retry_after_s=5.0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_is_a_provider(check: Check) -> None:
    one, other = Fake(Script(capacity=0)), Fake()

    async def alive() -> int:
        return len(one.alive) + len(other.alive)

    async def kill(machine: Any) -> None:
        next(fleet for fleet in other.fleets if machine.id in fleet.machines).lose(machine.id)

    specs = (Spec(provider=one), Spec(provider=other))
    await check(Subject(provider=ProviderFallback(specs, "first"), request=REQUEST, alive=alive, kill=kill))


async def test_the_first_is_asked_first() -> None:
    east, west = Shop("east"), Shop("west")
    async with opened(Spec(provider=east, vcpus=4), Spec(provider=west, vcpus=2)) as fleet:
        machines = await fleet.launch(REQUEST, 2)
        assert (east.asked, west.asked) == ([4], [])
        assert [fleet.spec_of(machine.id) for machine in machines] == [Spec(provider=east, vcpus=4)] * 2


@pytest.mark.parametrize("error", [NONE, QuotaExceeded("8 vCPUs")])
async def test_the_next_is_asked_at_once(error: ProviderError) -> None:
    east, west = Shop("east", without(error)), Shop("west")
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        with anyio.fail_after(60):
            assert len(await fleet.launch(REQUEST, 2)) == 2
        assert (len(east.alive), len(west.alive)) == (0, 2)


@pytest.mark.parametrize("error", [BadRequest("no such type"), NotAuthorized("expired")])
async def test_what_the_user_must_mend_is_not_passed_over(error: ProviderError) -> None:
    east, west = Shop("east", without(error)), Shop("west")
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        with pytest.raises(type(error)):
            await fleet.launch(REQUEST, 2)
        assert west.asked == []


async def test_when_none_has_any_each_says_why() -> None:
    east, west = Shop("east", without(QuotaExceeded("8 vCPUs"))), Shop("west", without(NONE))
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        with pytest.raises(NoCapacity, match="east: 8 vCPUs; west: sold out") as refused:
            await fleet.launch(REQUEST, 2)
        assert refused.value.retry_after_s == 5.0
    east, west = (Shop(name, without(QuotaExceeded("8 vCPUs"))) for name in ("east", "west"))
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        with pytest.raises(QuotaExceeded) as quota:
            await fleet.launch(REQUEST, 2)
        assert quota.value.retry_after_s is None


async def test_the_cheapest_is_asked_first() -> None:
    east, west = Shop("east", prices={4: 1.0, 8: 0.2}), Shop("west", prices={4: 0.5, 2: None})
    specs = [Spec(provider=east, vcpus=4), Spec(provider=west, vcpus=4), Spec(provider=east, vcpus=8)]
    async with opened(*specs, Spec(provider=west, vcpus=2), selection="cheapest") as fleet:
        await fleet.launch(REQUEST, 1)
        assert (east.asked, west.asked) == ([8], [])


async def test_what_cannot_be_quoted_for_the_users_fault_is_raised_as_itself() -> None:
    east, west = Shop("east", prices={4: 1.0}), Shop("west", prices=Refusing())
    async with opened(Spec(provider=east, vcpus=4), Spec(provider=west, vcpus=4), selection="cheapest") as fleet:
        with pytest.raises(NotAuthorized):
            await fleet.launch(REQUEST, 1)
        assert east.asked == []


class Refusing(dict[int, float | None]):
    """Prices that one may not read."""

    def get(self, key: int, default: Any = None) -> Any:
        raise NotAuthorized("expired")

    def __bool__(self) -> bool:
        return True


async def test_an_end_that_fails_is_raised_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends machines tries again what a provider says."""
    east, west = Shop("east"), Shop("west")
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        ids = [machine.id for machine in await fleet.launch(REQUEST, 2)]

        async def fails(fleet: FakeFleet, ids: Sequence[MachineId]) -> None:
            raise ProviderError("throttled")

        with monkeypatch.context() as patched, pytest.raises(ProviderError, match="throttled"):
            patched.setattr(FakeFleet, "terminate", fails)
            await fleet.terminate(ids)
        await fleet.terminate(ids)
        assert east.alive == {}


async def test_what_has_no_prices_costs_nothing() -> None:
    priced, free = Shop("priced", prices={0: 0.01}), Shop("free")
    async with opened(Spec(provider=priced), Spec(provider=free), selection="cheapest") as fleet:
        await fleet.launch(REQUEST, 1)
        assert (priced.asked, free.asked) == ([], [0])


async def test_a_pool_stays_where_its_machines_are() -> None:
    """FALLBACK-1"""
    east, west = Shop("east", Script(capacity=1)), Shop("west")
    specs = Spec(provider=east, vcpus=4), Spec(provider=west), Spec(provider=east, vcpus=2)
    async with opened(*specs) as fleet:
        (first,) = await fleet.launch(REQUEST, 1)
        with pytest.raises(NoCapacity):
            await fleet.launch(REQUEST, 1)
        assert east.asked == [4, 4, 2]  # another spec there would do
        assert west.asked == []
        await fleet.terminate([first.id])
        east.script = Script(capacity=0)
        await fleet.launch(REQUEST, 1)
        assert len(west.alive) == 1


async def test_a_machine_that_is_gone_binds_nobody() -> None:
    east, west = Shop("east", Script(capacity=1)), Shop("west")
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet, aclosing(fleet.events()) as events:
        (first,) = await fleet.launch(REQUEST, 1)
        east.fleets[0].lose(first.id)
        with anyio.fail_after(60):
            assert await anext(events) == MachineGone(first.id, "spot interruption")
        east.script = Script(capacity=0)
        await fleet.launch(REQUEST, 1)
        assert len(west.alive) == 1


async def test_fewer_than_the_pool_needs_are_given_back_for_enough_elsewhere() -> None:
    """FALLBACK-1"""
    needs = LaunchRequest("key", 4, least=3)
    east, west = Shop("east", Script(capacity=2)), Shop("west", Script(capacity=3))
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        assert len(await fleet.launch(needs, 4)) == 3
        assert (len(east.alive), len(west.alive)) == (0, 3)
    east, west = Shop("east", Script(capacity=2)), Shop("west", Script(capacity=1))
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        assert len(await fleet.launch(needs, 4)) == 1  # the last one's answer
        assert (len(east.alive), len(west.alive)) == (0, 1)


async def test_equal_providers_share_a_fleet_and_others_have_pools_of_their_own() -> None:
    east, west = Shop("east"), Shop("west")
    async with opened(Spec(provider=east), Spec(provider=west), Spec(provider=east, vcpus=4)):
        assert [fleet.pool for fleet in east.fleets] == ["p"]
        assert [fleet.pool for fleet in west.fleets] == ["p-2"]


async def test_ends_are_told_to_whom_they_belong() -> None:
    east, west = Shop("east"), Shop("west")
    async with opened(Spec(provider=east), Spec(provider=west)) as fleet:
        machines: Sequence[Any] = await fleet.launch(REQUEST, 2)
        fleet.unusable(machines[0].id, "no disk")
        fleet.unusable(MachineId("nobody's"), "no disk")
        await fleet.terminate([MachineId("nobody's"), *(machine.id for machine in machines)])
        assert sorted(east.terminated) == sorted(machine.id for machine in machines)
        assert west.terminated == []


@pytest.mark.parametrize(
    "held_by",
    [test_a_pool_stays_where_its_machines_are, test_fewer_than_the_pool_needs_are_given_back_for_enough_elsewhere],
)
async def test_the_invariant_falls_without_its_guard(held_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FALLBACK-1"""
    in_order, launch = FallbackFleet._in_order, FallbackFleet.launch

    async def anywhere(fleet: FallbackFleet, request: LaunchRequest, bound: object, failed: Any) -> Any:
        return await in_order(fleet, request, None, failed)

    async def with_fewer(fleet: FallbackFleet, request: LaunchRequest, count: int) -> Any:
        return await launch(fleet, replace(request, least=0), count)

    monkeypatch.setattr(FallbackFleet, "_in_order", anywhere)
    monkeypatch.setattr(FallbackFleet, "launch", with_fewer)
    with pytest.raises(BaseExceptionGroup) as caught:
        await held_by()
    assert caught.group_contains((AssertionError, pytest.fail.Exception))
