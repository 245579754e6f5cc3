"""What RunPod's catalogue says of GPUs, CPU flavors, prices and stock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import accelerators
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud.offers import SOLD_OUT, Cooldowns, choose
from outrider.providers.cloud.provider import check_known
from outrider.providers.errors import BadRequest, NoCapacity
from outrider.providers.runpod.api import ANYWHERE, NOWHERE, VENDOR, catalogue, model_of

CENTERS = ("EU-RO-1", "US-KS-2", "US-TX-3")


def gpu(id: str, name: str, memory: int, secure: float, community: float, **stock: str) -> dict[str, Any]:  # noqa: A002
    """``stock``: levels by data center, whose dashes are underscores."""
    there = [{"id": each.replace("_", "-"), "name": each, "availability": level} for each, level in stock.items()]
    overall = max((level for level in stock.values()), key=["NONE", "LOW", "MEDIUM", "HIGH"].index, default="NONE")
    return {
        "id": id,
        "name": name,
        "pool": None,
        "manufacturer": "AMD" if id.startswith("AMD") else "UNKNOWN" if id == "unknown" else "NVIDIA",
        "memory": memory,
        "secure": secure > 0,
        "community": community > 0,
        "price": {"secure": secure, "community": community or 0.5},
        "maxCount": {"secure": 8, "community": 4},
        "availability": overall,
    } | ({"dataCenters": there} if there else {})


def cpu(id: str, usd: float, ram: float, most: int = 32) -> dict[str, Any]:  # noqa: A002
    there = [{"id": "EU-RO-1", "name": "x", "availability": "MEDIUM"}]
    price = {"securePerVcpu": usd, "serverlessPerVcpu": usd}
    what = {"id": id, "name": id, "group": "Gen 3", "vcpu": {"min": 2, "max": most}, "ramGbPerVcpu": ram}
    return what | {"price": price, "availability": "MEDIUM", "dataCenters": there}


GPUS = [
    gpu("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, 0.34, EU_RO_1="HIGH", US_KS_2="LOW", US_TX_3="NONE"),
    gpu("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 1.49, 0.0),
    gpu("NVIDIA L4", "L4", 24, 0.0, 0.44, EU_RO_1="LOW"),
    gpu("unknown", "unknown", 0, 0.0, 0.0, EU_RO_1="HIGH"),
]
CPUS = [cpu("cpu3c", 0.03, 2.0), cpu("cpu3m", 0.055, 8.0, most=16)]


def offers(
    request: LaunchRequest, cloud: str = "SECURE", wanted: Collection[str] | None = None, **more: Any
) -> list[tuple[str, str, float, str]]:
    there = catalogue(GPUS, () if request.accelerator else CPUS, request, cloud, data_centers=wanted, **more)
    rounds = choose(request, there, Cooldowns(VENDOR), 0.0, zones=wanted)
    return [(each.type.name, each.zone, each.hourly_usd, each.stock) for chosen in rounds for each in chosen]


def asking(name: str, count: int = 1, **more: Any) -> LaunchRequest:
    return LaunchRequest("k", 1, accelerator=AcceleratorRequest(name, count=count), **more)


def test_gpus_have_prices_by_their_number_and_stock_by_data_center() -> None:
    assert offers(asking("RTX4090", 2)) == [
        ("NVIDIA GeForce RTX 4090", "EU-RO-1", 1.38, "high"),
        ("NVIDIA GeForce RTX 4090", "US-KS-2", 1.38, "low"),
    ]
    assert [each[2] for each in offers(asking("RTX4090"), "COMMUNITY")] == [0.34, 0.34]
    assert offers(asking("RTX4090"), wanted=["US-KS-2"]) == [("NVIDIA GeForce RTX 4090", "US-KS-2", 0.69, "low")]
    assert {each[1] for each in offers(asking("RTX4090"), among=["US-KS-2", "US-TX-3"])} == {"US-KS-2"}


def test_a_cloud_has_only_what_it_says_that_it_has_whatever_the_price() -> None:
    request = asking("A100")
    assert "NVIDIA A100-SXM4-80GB" not in catalogue(GPUS, (), request, "COMMUNITY").types
    assert {*catalogue(GPUS, (), request, "SECURE").types} == {"NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB"}


def test_a_gpu_with_stock_and_no_data_centers_may_be_anywhere() -> None:
    listed = [gpu("NVIDIA L4", "L4", 24, 0.0, 0.44) | {"availability": "LOW"}]
    there = catalogue(listed, (), asking("L4"), "COMMUNITY")
    assert there.stock == {("NVIDIA L4", ANYWHERE): "low"}
    assert catalogue(listed, (), asking("L4"), "COMMUNITY", data_centers=["EU-RO-1"]).stock == {
        ("NVIDIA L4", "EU-RO-1"): SOLD_OUT
    }


def test_what_is_sold_out_is_told_as_such() -> None:
    assert catalogue(GPUS, (), asking("A100"), "SECURE").stock["NVIDIA A100-SXM4-80GB", NOWHERE] == SOLD_OUT
    with pytest.raises(NoCapacity, match="says that it has no NVIDIA A100-SXM4-80GB left in its data centers now"):
        offers(asking("A100"))
    with pytest.raises(NoCapacity, match="says that it has no NVIDIA GeForce RTX 4090 left"):
        offers(asking("RTX4090"), wanted=["US-TX-3"])


@pytest.mark.parametrize(
    ("vcpus", "memory_gb", "found"),
    [
        (0, 0.0, {"cpu3c": (2, 4.0), "cpu3m": (2, 16.0)}),
        (3, 0.0, {"cpu3c": (4, 8.0), "cpu3m": (4, 32.0)}),
        (2, 30.0, {"cpu3c": (16, 32.0), "cpu3m": (4, 32.0)}),
        (32, 0.0, {"cpu3c": (32, 64.0), "cpu3m": (16, 128.0)}),
    ],
)
def test_a_cpu_flavor_has_a_power_of_two_of_vcpus_and_memory_with_them(
    vcpus: int, memory_gb: float, found: dict[str, tuple[int, float]]
) -> None:
    there = catalogue((), CPUS, LaunchRequest("k", 1, vcpus=vcpus, memory_gb=memory_gb), "SECURE")
    assert {name: (each.vcpus, each.memory_gb) for name, each in there.types.items()} == found
    assert there.on_demand["cpu3c"] == pytest.approx(0.03 * found["cpu3c"][0])


@pytest.mark.parametrize(
    ("request_", "cloud", "said"),
    [
        (asking("H100"), "SECURE", "RunPod has no H100 in its data centers: "),
        (asking("RTX4090", 16), "SECURE", "has 8 RTX4090, not 16"),
        (asking("RTX4090", 8), "COMMUNITY", "has 4 RTX4090, not 8"),
        (LaunchRequest("k", 1, vcpus=64), "SECURE", "has 32 vCPUs, not 64"),
        (asking("RTX4090", max_hourly_cost=0.1), "SECURE", "the cheapest in its data centers is"),
        (LaunchRequest("k", 1, interconnect="efa"), "SECURE", "has no EFA"),
        (LaunchRequest("k", 1, architecture="arm64"), "SECURE", "is x86_64, not arm64"),
    ],
)
def test_what_can_never_be_had_is_told_in_words(request_: LaunchRequest, cloud: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        offers(request_, cloud)


def test_a_data_center_that_there_is_not_names_the_one_that_was_meant() -> None:
    with pytest.raises(BadRequest, match="no data center 'US-KS-3': did you mean 'US-KS-2'"):
        check_known("RunPod", "data center", ["EU-RO-1", "US-KS-3"], CENTERS)
    with pytest.raises(BadRequest, match="no data center 'mars': it has EU-RO-1, US-KS-2, US-TX-3"):
        check_known("RunPod", "data center", ["mars"], CENTERS)
    check_known("RunPod", "data center", ["EU-RO-1"], CENTERS)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("RTX 4090", "RTX4090"),
        ("A100 PCIe", "A100"),
        ("A100 SXM", "A100"),
        ("H100 NVL", "H100"),
        ("H200 SXM", "H200"),
        ("RTX A6000", "RTXA6000"),
        ("RTX 6000 Ada", "RTX6000Ada"),
        ("RTX 4000 Ada SFF", "RTX4000Ada"),
        ("RTX PRO 6000", "RTXPRO6000"),
        ("RTX PRO 6000 WK", "RTXPRO6000"),
        ("Tesla V100", "V100"),
        ("L40S", "L40S"),
        ("B200", "B200"),
        ("MI300X", "MI300X"),
    ],
)
def test_names_of_gpus_are_those_of_accelerators(name: str, model: str) -> None:
    assert model_of(name) == model
    assert getattr(accelerators, model).type == model


@given(
    st.dictionaries(st.sampled_from(CENTERS), st.sampled_from(["NONE", "LOW", "MEDIUM", "HIGH"])),
    st.none() | st.sets(st.sampled_from(CENTERS), min_size=1),
)
def test_no_offer_is_where_runpod_has_no_stock(stock: dict[str, str], wanted: set[str] | None) -> None:
    listed = gpu("NVIDIA L4", "L4", 24, 0.44, 0.0, **{each.replace("-", "_"): level for each, level in stock.items()})
    there = catalogue([listed], (), asking("L4"), "SECURE", data_centers=wanted)
    open_to = {each for each, level in stock.items() if level != "NONE" and (wanted is None or each in wanted)}
    try:
        rounds = choose(asking("L4"), there, Cooldowns(VENDOR), 0.0, zones=wanted)
    except NoCapacity:
        assert not open_to
    else:
        assert {each.zone for chosen in rounds for each in chosen} == open_to
