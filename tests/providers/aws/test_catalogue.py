"""What is read of EC2's answers. The types and zones are EC2's own, as moto recorded them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.aws import catalogue
from outrider.providers.aws.api import Api
from outrider.providers.aws.catalogue import VENDOR, load, parse
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud import caching
from outrider.providers.cloud.offers import Cooldowns, InstanceType, choose
from outrider.providers.errors import BadRequest, NotAuthorized, ProviderError
from outrider.testing import EC2
from outrider.testing.clouds.aws import prices as cloud_prices

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 2, tzinfo=UTC)


@cache
def recorded(path: str) -> Any:
    return json.loads(gzip.decompress(files("moto.ec2").joinpath("resources", path).read_bytes()))


def type_(name: str) -> InstanceType:
    found = parse(recorded("instance_types.json.gz")[name])
    assert found is not None
    return found


@dataclass
class Recorded:
    """Answers as EC2 does: only what the filters let through."""

    region: str = "us-east-1"
    endpoint_url: str | None = None
    profile: str | None = None
    spot_usd: float = 0.3
    listed: str = ""
    error: ProviderError | None = None
    asked: list[str] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)

    async def call(
        self, operation: str, /, *, service: Literal["ec2", "pricing"] = "ec2", **parameters: Any
    ) -> dict[str, Any]:
        assert (operation, service) == ("get_products", "pricing")
        self.asked.append(operation)
        return {"PriceList": [self.listed]} if self.listed else {}

    async def pages(self, operation: str, key: str, /, **parameters: Any) -> list[dict[str, Any]]:
        self.asked.append(operation)
        self.parameters.append(parameters)
        if self.error is not None:
            raise self.error
        filters = {each["Name"]: each["Values"] for each in parameters.get("Filters", ())}
        assert all(0 < len(values) <= 200 for values in filters.values())
        return list(getattr(self, f"_{operation}")(filters, parameters))

    def _describe_instance_types(self, filters: dict[str, Any], parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
        flags = {"bare-metal": "BareMetal", "burstable-performance-supported": "BurstablePerformanceSupported",
                 "current-generation": "CurrentGeneration"}  # fmt: skip
        here = {each["InstanceType"] for each in self._offerings()}
        for name, data in recorded("instance_types.json.gz").items():
            wanted = any(fnmatchcase(name, pattern) for pattern in filters["instance-type"]) and name in here
            flagged = {each: str(data[flag]).lower() for each, flag in flags.items()}
            vcpus = str(data["VCpuInfo"]["DefaultVCpus"])
            wanted = wanted and vcpus in filters.get("vcpu-info.default-vcpus", [vcpus])
            if wanted and all(flagged[each] in filters.get(each, ["true", "false"]) for each in flags):
                yield data

    def _describe_instance_type_offerings(
        self, filters: dict[str, Any], parameters: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        assert parameters["LocationType"] == "availability-zone"
        yield from (each for each in self._offerings() if each["InstanceType"] in filters["instance-type"])

    def _describe_spot_price_history(
        self, filters: dict[str, Any], parameters: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        for each in self._offerings():
            if each["InstanceType"] in parameters["InstanceTypes"]:
                place = {"InstanceType": each["InstanceType"], "AvailabilityZone": each["Location"]}
                yield {**place, "SpotPrice": f"{self.spot_usd:f}", "Timestamp": START}
                yield {**place, "SpotPrice": "999.000000", "Timestamp": START - timedelta(hours=1)}

    def _offerings(self) -> Any:
        return recorded(f"instance_type_offerings/availability-zone/{self.region}.json.gz")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(caching, "_cache", {})
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))


def calm() -> Cooldowns:
    """Nothing has failed yet."""
    return Cooldowns(VENDOR)


def asking(accelerator: str = "", count: int = 1, **more: Any) -> LaunchRequest:
    device = AcceleratorRequest(accelerator, count) if accelerator else None
    return LaunchRequest(client_key="", nodes=1, accelerator=device, **more)


# --- one type ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "accelerator", "count", "memory_gb"),
    [
        ("p4d.24xlarge", "A100", 8, 40),
        ("p4de.24xlarge", "A100", 8, 80),
        ("p5.48xlarge", "H100", 8, 80),
        ("p5en.48xlarge", "H200", 8, 141),
        ("p6-b200.48xlarge", "B200", 8, 179),
        ("p3dn.24xlarge", "V100", 8, 32),
        ("g4dn.12xlarge", "T4", 4, 16),
        ("g5.48xlarge", "A10G", 8, 22),
        ("g5g.xlarge", "T4G", 1, 16),
        ("g6.xlarge", "L4", 1, 22),
        ("g6e.12xlarge", "L40S", 4, 45),
        ("g7e.2xlarge", "RTXPRO6000", 1, 96),
        ("trn1.32xlarge", "Trainium", 16, 32),
        ("trn2.48xlarge", "Trainium2", 16, 512),
        ("inf2.48xlarge", "Inferentia2", 12, 32),
        ("vt1.3xlarge", "U30", 1, 24),
        ("m7i.large", "", 0, 0),
    ],
)
def test_devices_have_outriders_names(name: str, accelerator: str, count: int, memory_gb: float) -> None:
    found = type_(name)
    assert (found.accelerator, found.accelerators) == (accelerator, count)
    assert found.accelerator_memory_gb == pytest.approx(memory_gb, abs=1)
    assert found.accelerator_share == 1


def test_a_slice_of_a_device_is_told_from_a_device() -> None:
    found = type_("g6f.2xlarge")
    assert (found.accelerator, found.accelerators, found.accelerator_share) == ("L4", 1, 0.25)


def test_all_that_a_launch_needs_is_read() -> None:
    found = type_("p4d.24xlarge")
    assert (found.vcpus, found.memory_gb, found.architecture) == (96, 1152, "x86_64")
    assert (found.network_gbps, found.network_cards, found.interconnect, found.interconnect_cards) == (400, 4, "efa", 4)
    assert (found.spot, found.on_demand, found.cluster, found.bare_metal, found.nvme_gb) == (
        True, True, True, False, 8000,
    )  # fmt: skip
    assert type_("m7g.large").architecture == "arm64"
    assert type_("c1.medium").architecture == "x86_64"  # and i386
    assert type_("m5.metal").bare_metal
    assert not type_("c5.large").current
    assert type_("t3.micro").burstable
    assert type_("m7i-flex.large").burstable


def test_mac_types_are_skipped() -> None:
    assert parse(recorded("instance_types.json.gz")["mac2.metal"]) is None


@pytest.mark.parametrize(
    ("network", "gbps"),
    [
        ({"NetworkPerformance": "25 Gigabit"}, 25),
        ({"NetworkPerformance": "4x 100 Gigabit"}, 400),
        ({"NetworkPerformance": "Up to 10 Gigabit"}, 0),
        ({"NetworkPerformance": "High"}, 0),
        ({}, 0),
        ({"NetworkCards": [{"BaselineBandwidthInGbps": 0.75, "PeakBandwidthInGbps": 12.5}]}, 0.75),
    ],
)
def test_bandwidth_is_what_is_always_there(network: dict[str, Any], gbps: float) -> None:
    said = {"InstanceType": "x1.x", "VCpuInfo": {"DefaultVCpus": 1}, "MemoryInfo": {"SizeInMiB": 1024}}
    found = parse({**said, "ProcessorInfo": {"SupportedArchitectures": ["arm64"]}, "NetworkInfo": network})
    assert found is not None
    assert found.network_gbps == gbps


def test_every_type_that_ec2_has_can_be_read() -> None:
    for name, data in recorded("instance_types.json.gz").items():
        found = parse(data)
        assert found is None or (found.name == name and found.vcpus >= 1 and found.memory_gb > 0)


@given(st.permutations(range(6)))
def test_of_a_history_the_last_price_counts(order: list[int]) -> None:
    history = [
        {"InstanceType": "m7i.large", "AvailabilityZone": f"us-east-1{'ab'[hour % 2]}", "SpotPrice": f"0.{hour}",
         "Timestamp": START + timedelta(hours=hour)}
        for hour in order
    ]  # fmt: skip
    assert catalogue.latest(history) == {("m7i.large", "us-east-1a"): 0.4, ("m7i.large", "us-east-1b"): 0.5}


# --- a region ---------------------------------------------------------------------------------------------------------


async def test_a_request_for_gpus_gets_them_with_zones_and_prices() -> None:
    found = await load(Recorded(), asking("A10G"))
    assert found.zones["g5.xlarge"] >= {"us-east-1a", "us-east-1b"}
    assert found.spot["g5.xlarge", "us-east-1a"] == 0.3
    assert found.on_demand["g5.xlarge"] == 1.006
    first, *_ = choose(asking("A10G"), found, calm(), 0.0)
    assert {(offer.type.name, offer.market) for offer in first} >= {("g5.xlarge", "spot")}


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (asking("A100", 8, allocation="on-demand"), "p4d.24xlarge"),
        (asking("T4", allocation="on-demand"), "g4dn.xlarge"),
        (asking("T4", 4, allocation="on-demand"), "g4dn.12xlarge"),
        (asking("H100", 8, allocation="on-demand", interconnect="efa"), "p5.48xlarge"),
        (asking("L40S", allocation="on-demand", memory_gb=60), "g6e.2xlarge"),
        (asking(vcpus=4, memory_gb=16, architecture="x86_64", allocation="on-demand"), "m5a.xlarge"),
        (asking(vcpus=4, memory_gb=16, allocation="on-demand"), "m6g.xlarge"),
        (asking(memory_gb=1000, allocation="on-demand"), "r6a.32xlarge"),
    ],
)
async def test_the_cheapest_that_does_is_first(request_: LaunchRequest, name: str) -> None:
    rounds = choose(request_, await load(Recorded(), request_), calm(), 0.0)
    assert rounds[0][0].type.name == name


async def test_only_the_named_types_are_asked_about() -> None:
    ec2 = Recorded()
    found = await load(ec2, asking(vcpus=2), instance_types=["t3.large", "m5.metal"])
    assert set(found.types) == set(found.zones) == {"t3.large", "m5.metal"}
    assert ec2.asked.count("describe_instance_types") == 1


@pytest.mark.parametrize(
    ("allocation", "spot", "on_demand"), [("spot", True, False), ("on-demand", False, True), ("cheapest", True, True)]
)
async def test_prices_that_do_not_matter_are_not_asked_for(allocation: Any, spot: bool, on_demand: bool) -> None:
    ec2 = Recorded()
    found = await load(ec2, asking("T4", allocation=allocation))
    assert ("describe_spot_price_history" in ec2.asked, bool(found.on_demand)) == (spot, on_demand)


async def test_aws_own_price_list_is_asked_once_for_many_processes(tmp_path: Path) -> None:
    term = {"priceDimensions": {"x": {"unit": "Hrs", "pricePerUnit": {"USD": "0.5"}}}}
    what = {"instanceType": "g4dn.xlarge", "regionCode": "us-east-1", "tenancy": "Shared"}
    ec2 = Recorded(listed=json.dumps({"product": {"attributes": what}, "terms": {"OnDemand": {"x": term}}}))
    assert (await load(ec2, asking("T4"))).on_demand["g4dn.xlarge"] == 0.5
    assert "get_products" in ec2.asked
    assert [path.name for path in tmp_path.rglob("*.json")] == ["prices-us-east-1.json"]
    caching._cache.clear()
    assert (await load(Recorded(), asking("T4"))).on_demand["g4dn.xlarge"] == 0.5


async def test_answers_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(caching, "monotonic", lambda: now)
    ec2 = Recorded()
    first = await load(ec2, asking("T4"))
    calls = len(ec2.asked)
    assert await load(Recorded(), asking("T4")) == first
    now += catalogue.SPOT_S
    assert (await load(dearer := Recorded(spot_usd=0.4), asking("T4"))).spot["g4dn.xlarge", "us-east-1a"] == 0.4
    assert dearer.asked == ["describe_spot_price_history"]
    now += catalogue.TYPES_S
    await load(again := Recorded(), asking("T4"))
    assert len(again.asked) == calls


async def test_another_region_or_profile_is_another_catalogue() -> None:
    await load(Recorded(), asking("T4"))
    for other in (Recorded(region="eu-west-1"), Recorded(profile="other")):
        await load(other, asking("T4"))
        assert other.asked


async def test_a_cloud_of_ones_own_is_not_mistaken_for_the_one_before_at_its_address() -> None:
    first, second = Recorded(endpoint_url="http://127.0.0.1:1"), Recorded(endpoint_url="http://127.0.0.1:1")
    await load(first, asking("T4"))
    calls = len(first.asked)
    await load(first, asking("T4"))
    assert len(first.asked) == calls
    await load(second, asking("T4"))
    assert len(second.asked) == calls


async def test_error_is_raised_unchanged_and_not_cached() -> None:
    with pytest.raises(NotAuthorized, match="the action is not allowed"):
        await load(Recorded(error=NotAuthorized("the action is not allowed")), asking("T4"))
    assert (await load(Recorded(), asking("T4"))).types


async def test_missing_type_is_an_error_before_prices_are_read() -> None:
    ec2 = Recorded(region="eu-south-1")
    with pytest.raises(BadRequest, match=r"AWS has no H200 in eu-south-1: .*; look in .*us-east-2"):
        await load(ec2, asking("H200"))
    assert set(ec2.asked) == {"describe_instance_types"}


@pytest.mark.parametrize("accelerator", ["T4", ""])
async def test_prices_are_asked_of_no_more_types_than_may_be_chosen(accelerator: str) -> None:
    ec2 = Recorded()
    await load(ec2, asking(accelerator))
    (asked,) = [each["InstanceTypes"] for each in ec2.parameters if "InstanceTypes" in each]
    assert 1 <= len(asked) <= catalogue.TYPES_AT_MOST


@pytest.mark.parametrize(
    ("request_", "largest"),
    [(asking(), 16), (asking(vcpus=8), 64), (asking(memory_gb=64), 64), (asking(vcpus=2, max_hourly_cost=30), 896)],
)
async def test_types_that_are_too_large_are_not_even_read(request_: LaunchRequest, largest: int) -> None:
    found = await load(Recorded(), request_)
    assert max(each.vcpus for each in found.types.values()) == largest
    assert max(offer.type.vcpus for offers in choose(request_, found, calm(), 0.0) for offer in offers) <= largest


async def test_too_large_request_is_an_error_that_names_the_largest_type() -> None:
    with pytest.raises(BadRequest, match="has 896 vCPUs, not 1000"):
        await load(Recorded(), asking(vcpus=1000))


# --- the test cloud ---------------------------------------------------------------------------------------------------


async def test_what_is_offered_can_be_launched_at_that_price(cloud: EC2) -> None:
    request = asking("A10G", allocation="cheapest")
    async with Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        found = await load(api, request)
    behaviour = cloud.behaviour
    rounds = choose(request, found, calm(), 0.0)
    assert {offer.market for offers in rounds for offer in offers} == {"spot", "on-demand"}
    for offer in (offer for offers in rounds for offer in offers):
        if offer.market == "spot":
            assert offer.hourly_usd == cloud_prices.spot(behaviour, cloud.region, offer.zone, offer.type.name)
        else:
            assert offer.hourly_usd == cloud_prices.on_demand(behaviour, cloud.region, offer.type.name)
