"""What Lambda's list of types says of machines, prices and room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud.offers import SOLD_OUT, Cooldowns, choose
from outrider.providers.errors import BadRequest, NoCapacity
from outrider.providers.lambda_labs.api import NOWHERE, REGIONS, VENDOR, catalogue

REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 1)


def sold(name: str, gpu: str, gpus: int, cents: int, *regions: str, **more: object) -> dict[str, Any]:
    specs = {"vcpus": 30, "memory_gib": 200, "storage_gib": 1024, "gpus": gpus}
    what = {"name": name, "gpu_description": gpu, "price_cents_per_hour": cents, "specs": specs, **more}
    there = [{"name": each, "description": ""} for each in regions]
    return {name: {"instance_type": what, "regions_with_capacity_available": there}}


LISTED = {
    **sold("cpu_4x_general", "N/A", 0, 8, "us-east-1", "us-west-1"),
    **sold("gpu_1x_a10", "A10 (24 GB PCIe)", 1, 129, "us-east-1"),
    **sold("gpu_8x_a100", "A100 (40 GB SXM4)", 8, 1032),
    **sold("gpu_1x_gh200", "GH200 (96 GB)", 1, 229, "us-east-3"),
    **sold("gpu_1x_b200", "B200 (180 GB SXM6)", 1, 499, "us-south-1", architecture="x86_64"),
    **sold("gpu_1x_rtx6000", "RTX 6000 (24 GB)", 1, 69, "us-west-1"),
    **sold("gpu_1x_a6000", "A6000 (48 GB)", 1, 80, "us-west-1"),
}


def offers(request: LaunchRequest, regions: Sequence[str] | None = None) -> list[tuple[str, str, float]]:
    there = catalogue(LISTED, request, regions)
    rounds = choose(request, there, Cooldowns(VENDOR), 0.0, zones=regions)
    return [(each.type.name, each.zone, each.hourly_usd) for chosen in rounds for each in chosen]


def test_types_have_names_memory_price_and_room() -> None:
    there = catalogue(LISTED, REQUEST, None)
    a100, gh200 = there.types["gpu_8x_a100"], there.types["gpu_1x_gh200"]
    assert (a100.accelerator, a100.accelerators, a100.accelerator_memory_gb) == ("A100", 8, 40)
    assert (gh200.architecture, there.types["gpu_1x_b200"].architecture) == ("arm64", "x86_64")
    assert [there.types[each].accelerator for each in ("gpu_1x_rtx6000", "gpu_1x_a6000")] == ["RTX6000", "RTXA6000"]
    assert there.types["cpu_4x_general"].accelerator == ""
    assert there.on_demand["gpu_1x_a10"] == 1.29
    assert there.stock["gpu_8x_a100", NOWHERE] == SOLD_OUT


def test_the_offers_are_those_with_room() -> None:
    assert offers(LaunchRequest("k", 1, accelerator=AcceleratorRequest("A10"))) == [("gpu_1x_a10", "us-east-1", 1.29)]
    assert {zone for _, zone, _ in offers(REQUEST)} == {"us-east-1", "us-west-1"}
    assert offers(REQUEST, ["us-west-1"]) == [("cpu_4x_general", "us-west-1", 0.08)]


def test_what_is_sold_out_is_told_as_such() -> None:
    with pytest.raises(NoCapacity, match="says that it has no gpu_8x_a100 left"):
        offers(LaunchRequest("k", 1, accelerator=AcceleratorRequest("A100", count=8)))
    with pytest.raises(NoCapacity, match="says that it has no gpu_1x_a10 left"):
        offers(LaunchRequest("k", 1, accelerator=AcceleratorRequest("A10")), ["us-west-3"])


@pytest.mark.parametrize(
    ("request_", "regions", "said"),
    [
        (LaunchRequest("k", 1, allocation="spot"), None, "sells no spot machines"),
        (LaunchRequest("k", 1, disk_gb=5000), None, "disk_gb=5000 is more than any type of Lambda has: 1024"),
        (REQUEST, ["us-wst-1"], "no region 'us-wst-1': did you mean 'us-west-1'?"),
        (REQUEST, ["mars"], "no region 'mars': it has asia-northeast-1"),
        (LaunchRequest("k", 1, accelerator=AcceleratorRequest("H100")), None, "Lambda has no H100 in its regions"),
        (LaunchRequest("k", 1, interconnect="efa"), None, "has no EFA"),
        (LaunchRequest("k", 1, max_hourly_cost=0.01), None, "the cheapest in its regions is cpu_4x_general"),
    ],
)
def test_what_can_never_be_had_is_told_in_words(request_: LaunchRequest, regions: list[str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        offers(request_, regions)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.tuples(st.integers(1, 900), st.sets(st.sampled_from(REGIONS))), min_size=1
    ),
    st.none() | st.sets(st.sampled_from(REGIONS), min_size=1),
)
def test_no_offer_is_where_lambda_has_no_room(types: dict[str, tuple[int, set[str]]], regions: set[str] | None) -> None:
    listed: dict[str, Any] = {}
    for name, (cents, room) in types.items():
        listed |= sold(name, "N/A", 0, cents, *room)
    there = catalogue(listed, REQUEST, regions)
    open_to = {(name, zone) for name, (_, room) in types.items() for zone in room if regions is None or zone in regions}
    try:
        rounds = choose(REQUEST, there, Cooldowns(VENDOR), 0.0, zones=regions)
    except NoCapacity:
        cheapest = min(cents for cents, _ in types.values())
        assert not {each for each in open_to if types[each[0]][0] <= cheapest}
        return
    found = [each for chosen in rounds for each in chosen]
    assert found
    assert {(each.type.name, each.zone) for each in found} <= open_to
