"""Three clouds as one provider, each behind its own interface: the cheapest by their prices of this moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import Hyperstack, Lambda, Spec, Vast
from outrider.engine.client.provider_fallback import FallbackFleet, ProviderFallback
from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.providers.errors import NoCapacity
from outrider.providers.hyperstack import api as of_hyperstack
from outrider.providers.lambda_labs import api as of_lambda
from outrider.providers.vast import api as of_vast
from outrider.testing import HyperstackCloud, LambdaCloud, Times, VastCloud, cloud_faults
from outrider.testing.clouds.shared.front import CloudFront

from .suite import anyio_backend, surroundings

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 1, allocation="on-demand")
QUICK = Times(boot_s=0.01, stop_s=0.01)


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Mapping[str, CloudFront]]:
    surroundings(monkeypatch, tmp_path, of_lambda.KEY, "any", of_lambda)
    surroundings(monkeypatch, tmp_path, of_vast.KEY, "any", of_vast)
    surroundings(monkeypatch, tmp_path, of_hyperstack.KEY, "any")
    with ExitStack() as opened:
        fronts = (LambdaCloud(QUICK), VastCloud(QUICK), HyperstackCloud(QUICK))
        yield {each.name: opened.enter_context(each) for each in fronts}


@asynccontextmanager
async def cheapest(clouds: Mapping[str, CloudFront]) -> AsyncIterator[FallbackFleet]:
    at = {name: each.endpoint_url for name, each in clouds.items()}
    providers = (
        Lambda(endpoint_url=at["lambda"], instance_types=["gpu_1x_a10"]),  # 1.29 USD an hour
        Vast(endpoint_url=at["vast"]),  # 0.41, with the disk
        Hyperstack(endpoint_url=at["hyperstack"], instance_types=["n3-RTX-A6000x1"]),  # 0.51, with the address
    )
    specs = tuple(Spec(provider=each, allocation="on-demand") for each in providers)
    async with ProviderFallback(specs, "cheapest").open("p", EntryPoints()) as fleet:
        yield fleet


async def taken(clouds: Mapping[str, CloudFront]) -> str:
    """The cloud that a machine was taken from, when it has ended again."""
    async with cheapest(clouds) as fleet:
        await fleet.launch(REQUEST, 1)
        (name,) = [name for name, each in clouds.items() if each.machines("pending", "running")]
    assert [each.machines("pending", "running", "stopped") for each in clouds.values()] == [[], [], []]
    return name


async def test_the_cheapest_is_taken_and_prices_are_those_of_this_moment(clouds: Mapping[str, CloudFront]) -> None:
    assert await taken(clouds) == "vast"
    vast = clouds["vast"]
    assert isinstance(vast, VastCloud)
    vast.offered = {name: replace(each, usd=20 * each.usd) for name, each in vast.offered.items()}
    assert await taken(clouds) == "hyperstack"


async def test_where_none_has_room_each_says_so_in_its_own_words(clouds: Mapping[str, CloudFront]) -> None:
    for each in clouds.values():
        each.faults.add(cloud_faults.NoCapacity())
    async with cheapest(clouds) as fleet:
        with pytest.raises(NoCapacity) as refused:
            await fleet.launch(REQUEST, 1)
    told = str(refused.value)
    assert "vast: somebody else has rented that machine of Vast.ai's meanwhile (no_such_ask" in told
    assert "hyperstack: Hyperstack has no such machine now (no_stock" in told
    assert "lambda: Lambda has no such machine left there now (instance-operations" in told
