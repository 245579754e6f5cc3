"""Several clouds as one provider: the cheapest by the prices of this moment, and what is said where none has room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider import Spec
from outrider.engine.client import provider_fallback
from outrider.engine.client.provider_fallback import FallbackFleet, ProviderFallback
from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.providers.cloud.fleet import CloudFleet
from outrider.providers.errors import NoCapacity, NotAuthorized, ProviderError

from ...providers.cloud.sky import Clouded, Sky

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # journals are written in its threads


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))


@dataclass
class Skies:
    """Three clouds, by their names: A, B and C."""

    a: Sky
    b: Sky
    c: Sky

    @property
    def machines(self) -> list[int]:
        return [len(sky.alive) for sky in (self.a, self.b, self.c)]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[FallbackFleet]:
        clouds = [Clouded(sky, name) for name, sky in (("A", self.a), ("B", self.b), ("C", self.c))]
        specs = tuple(Spec(provider=cloud, allocation="on-demand") for cloud in clouds)
        async with ProviderFallback(specs, "cheapest").open("p", EntryPoints()) as fleet:
            yield fleet


@pytest.fixture
def skies() -> Skies:
    return Skies(Sky(hourly_usd=3.0), Sky(hourly_usd=1.0), Sky(hourly_usd=2.0))


async def test_the_cheapest_is_taken_by_the_prices_of_this_moment(skies: Skies) -> None:
    async with skies.opened() as fleet:
        first = await fleet.launch(REQUEST, 2)
        assert skies.machines == [0, 2, 0]
        await fleet.terminate([machine.id for machine in first])
        skies.b.hourly_usd, skies.a.hourly_usd = 4.0, 0.1
        await fleet.launch(REQUEST, 2)
        assert skies.machines == [2, 0, 0]
    assert skies.machines == [0, 0, 0]


async def test_the_next_dearer_has_what_the_cheapest_has_not(skies: Skies) -> None:
    skies.b.room = 0
    async with skies.opened() as fleet:
        machines = await fleet.launch(REQUEST, 1)
        assert skies.machines == [0, 0, 1]
        assert [machine.hourly_cost for machine in machines] == [2.0]


async def test_where_none_has_room_each_says_so_in_its_own_words(skies: Skies) -> None:
    for sky in (skies.a, skies.b, skies.c):
        sky.room = 0
    async with skies.opened() as fleet:
        with pytest.raises(NoCapacity) as refused:
            await fleet.launch(REQUEST, 1)
    assert str(refused.value) == "B: the sky is full; C: the sky is full; A: the sky is full"
    assert refused.value.retry_after_s is not None
    assert "add one of another type, region or provider" in refused.value.advice


def quoting(monkeypatch: pytest.MonkeyPatch, sky: Sky, answer: Any) -> None:
    """Give that cloud another answer to the question for its price."""
    quote = CloudFleet.quote

    async def answers(fleet: CloudFleet[Any, Any], request: LaunchRequest) -> float | None:
        return await (answer() if getattr(fleet._launcher, "sky", None) is sky else quote(fleet, request))

    monkeypatch.setattr(CloudFleet, "quote", answers)


@pytest.mark.parametrize("hangs", [False, True])
async def test_one_that_does_not_say_its_price_holds_up_no_other(
    skies: Skies, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    async def silent() -> float:
        if hangs:
            await anyio.sleep_forever()
        raise ProviderError("no answer", retry_after_s=1.0)

    quoting(monkeypatch, skies.b, silent)
    monkeypatch.setattr(provider_fallback, "QUOTE_S", 3.0 if hangs else 60.0)
    async with skies.opened() as fleet:
        await fleet.launch(REQUEST, 1)
        assert skies.machines == [0, 0, 1]
    skies.a.room = skies.c.room = 0
    async with skies.opened() as fleet:
        with pytest.raises(
            NoCapacity, match=r"B: (no answer|it has not said its price within 3 s); C: the sky is full"
        ):
            await fleet.launch(REQUEST, 1)


async def test_where_the_key_of_one_is_missing_it_is_not_passed_over(
    skies: Skies, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses() -> float:
        raise NotAuthorized("there is no key: set B_KEY")

    quoting(monkeypatch, skies.b, refuses)
    async with skies.opened() as fleet:
        with pytest.raises(NotAuthorized, match="B_KEY"):
            await fleet.launch(REQUEST, 1)
    assert skies.machines == [0, 0, 0]
