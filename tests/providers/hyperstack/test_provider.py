"""What users write, offers, and how many requests there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider import Hyperstack
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud.http import HttpApi, Key
from outrider.providers.errors import BadRequest, UnknownOption
from outrider.providers.hyperstack.api import SERVICE, accelerator_of, listed
from outrider.providers.hyperstack.cloud import newest
from outrider.testing import HyperstackCloud

from ..cloud.suite import on_a_mock_clock
from .conftest import KEY

pytestmark = pytest.mark.anyio


def wanted(**options: Any) -> LaunchRequest:
    return LaunchRequest("ssh-ed25519 CLIENT", 1, **options)


async def test_offers_are_those_of_all_environments_spot_first(provider: Callable[..., Hyperstack]) -> None:
    offers = await provider().offers(wanted(accelerator=AcceleratorRequest("RTXA6000")))
    assert [(each.kind, each.place, each.region, each.market) for each in offers] == [
        ("n3-RTX-A6000x1-spot", "default-CANADA-1", "CANADA-1", "spot"),
        ("n3-RTX-A6000x1", "default-CANADA-1", "CANADA-1", "on-demand"),
        ("n3-RTX-A6000x1", "default-NORWAY-1", "NORWAY-1", "on-demand"),
    ]
    assert [each.hourly_usd for each in offers] == pytest.approx([0.4067, 0.5067, 0.5067])
    eight = await provider().offers(wanted(accelerator=AcceleratorRequest("A100", 8, 80), allocation="on-demand"))
    assert [(each.kind, each.accelerators) for each in eight] == [("n3-A100x8", 8)]
    (small, *_) = await provider(environments=["default-NORWAY-1"]).offers(wanted())
    assert (small.kind, small.place) == ("n1-cpu-small", "default-NORWAY-1")


@pytest.mark.parametrize(
    ("options", "request_", "told"),
    [
        ({"environments": ["mine"]}, {}, "no environment mine: it has default-CANADA-1, default-NORWAY-1"),
        ({}, {"disk_gb": 5000}, "no machine with a disk of 5000 GB in default-CANADA-1"),
        ({}, {"accelerator": AcceleratorRequest("B200")}, "no B200"),
        ({"instance_types": ["n3-L40x1"]}, {"allocation": "spot"}, "not sold as spot"),
    ],
)
async def test_what_there_is_not_is_said_with_what_there_is(
    options: dict[str, Any], request_: dict[str, Any], told: str, provider: Callable[..., Hyperstack]
) -> None:
    with pytest.raises(BadRequest, match=told):
        await provider(**options).offers(wanted(**request_))


def test_options_are_checked() -> None:
    with pytest.raises(UnknownOption, match="'environments'"):
        Hyperstack(environment="default-CANADA-1")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="takes a list"):
        Hyperstack(environments="default-CANADA-1")
    with pytest.raises(ValueError, match="ssh_from"):
        Hyperstack(ssh_from="here")


@pytest.mark.parametrize(
    ("gpu", "name", "gb"),
    [
        ("H100-80G-PCIe-NVLink", "H100", 80),
        ("H200-141G-SXM5", "H200", 141),
        ("RTX-PRO6000-SE-spot", "RTXPRO6000", 96),
        ("RTX-A6000", "RTXA6000", 48),
        ("L40-spot", "L40", 48),
        ("B200-SXM", "B200", 180),
        ("", "", 0),
    ],
)
def test_accelerators_have_the_names_that_users_write(gpu: str, name: str, gb: float) -> None:
    assert accelerator_of(gpu) == (name, gb)


def test_the_newest_image_with_a_driver_is_taken() -> None:
    new = "Ubuntu Server 24.04 LTS R570 CUDA 12.8"
    assert newest(["Ubuntu Server 22.04 LTS R535 CUDA 12.2", new, "Ubuntu Server 24.04 LTS"], "CANADA-1") == new
    with pytest.raises(BadRequest, match="image="):
        newest(["Debian 12"], "CANADA-1")


async def test_a_list_is_read_to_its_end_however_short_its_pages_are(cloud: HyperstackCloud) -> None:
    cloud.page_size = 2
    cloud.key_pairs = {number: {"id": number, "name": f"key-{number}"} for number in range(5)}
    async with HttpApi.open(_at(cloud.endpoint_url), Key(KEY, scheme="")) as api:
        assert [each["id"] for each in await listed(api, "/core/keypairs", "keypairs")] == [0, 1, 2, 3, 4]


def _at(url: str) -> Any:
    from dataclasses import replace

    return replace(SERVICE, base_url=url)


def test_no_more_requests_are_made_than_hyperstack_takes_in_a_minute() -> None:
    async def calls(api: HttpApi) -> None:
        for _ in range(540):
            await api.call("GET", "/pricebook")

    (at,) = on_a_mock_clock(SERVICE, calls).values()
    assert at[-1] - at[0] >= 60.0 - 1 / 8
