"""Which machines are asked for, in which order: the rules, and properties over whatever there may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.providers.aws.catalogue import VENDOR
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud.offers import (
    CLOSE,
    FIRST_WAIT_S,
    INTERRUPTED_S,
    LONGEST_WAIT_S,
    ROUND_AT_MOST,
    SPAN,
    Catalogue,
    Cooldowns,
    InstanceType,
    Market,
    Offer,
    choose,
    in_one_place,
    of_one_type,
)
from outrider.providers.errors import BadRequest, NoCapacity, QuotaExceeded

NONE_LEFT = NoCapacity("AWS has none left", retry_after_s=10.0, code="InsufficientInstanceCapacity")
QUOTA = QuotaExceeded("the quota is used up", code="MaxSpotInstanceCountExceeded")
MARKETS: tuple[Market, ...] = ("spot", "on-demand")
REGION = "us-east-1"
ZONES = [REGION + letter for letter in "abc"]
LOCAL = "us-east-1-bos-1a"


def machine(name: str, vcpus: int = 4, memory_gb: float = 16.0, **more: Any) -> InstanceType:
    return InstanceType(**{
        "name": name, "vcpus": vcpus, "memory_gb": memory_gb, "architecture": "x86_64", "spot": True,
        "on_demand": True, "cluster": True, **more,
    })  # fmt: skip


def gpus(name: str, accelerator: str, count: int, memory_gb: float, **more: Any) -> InstanceType:
    device = {"accelerator": accelerator, "accelerators": count, "accelerator_memory_gb": memory_gb}
    return machine(name, 8 * count, 64.0 * count, **device, **more)


M5 = machine("m5.xlarge")
M7 = machine("m7g.xlarge", architecture="arm64")
I4 = machine("i4i.xlarge")
T3 = machine("t3.xlarge", burstable=True)
METAL = machine("m5.metal", 96, 384, bare_metal=True)
HUGE = machine("m5.24xlarge", 96, 384)
T4 = gpus("g4dn.2xlarge", "T4", 1, 16)
L4 = gpus("g6.2xlarge", "L4", 1, 22.35)
L40S = gpus("g6e.2xlarge", "L40S", 1, 44.7)
SLICE = gpus("g6f.2xlarge", "L4", 1, 5.6, accelerator_share=0.25)
A100 = gpus("p4d.24xlarge", "A100", 8, 40, interconnect="efa", interconnect_cards=4)
A100_80 = gpus("p4de.24xlarge", "A100", 8, 80, interconnect="efa", interconnect_cards=4)
TYPES = (M5, M7, I4, T3, METAL, HUGE, T4, L4, L40S, SLICE, A100, A100_80)
PRICES = dict(zip(TYPES, (0.192, 0.163, 0.15, 0.05, 4.6, 4.608, 0.75, 0.98, 2.2, 0.2, 21.96, 27.45), strict=True))


def there_is(*types: InstanceType, zones: Sequence[str] = ZONES, spot: float = 0.4) -> Catalogue:
    """These types in all zones, at list prices; as spot for that part of it."""
    return Catalogue(
        vendor=VENDOR,
        region=REGION,
        types={each.name: each for each in types},
        zones={each.name: frozenset(zones) for each in types},
        spot={(each.name, zone): PRICES.get(each, 1.0) * spot for each in types for zone in zones},
        on_demand={each.name: PRICES.get(each, 1.0) for each in types},
    )


ALL = there_is(*TYPES)


def calm() -> Cooldowns:
    """Nothing has failed yet."""
    return Cooldowns(VENDOR)


def asking(accelerator: str = "", count: int = 1, device_gb: float = 0.0, **more: Any) -> LaunchRequest:
    device = AcceleratorRequest(accelerator, count, device_gb) if accelerator else None
    return LaunchRequest(client_key="", nodes=2, accelerator=device, **more)


def names(rounds: list[list[Offer]]) -> list[set[str]]:
    return [{offer.type.name for offer in offers} for offers in rounds]


def markets(rounds: list[list[Offer]]) -> list[str]:
    return [offers[0].market for offers in rounds]


# --- which types ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "found"), [("T4", T4), ("L4", L4), ("L40S", L40S), ("l4", L4)])
def test_an_accelerator_is_found_by_its_name_and_by_no_part_of_one(wanted: str, found: InstanceType) -> None:
    assert set.union(*names(choose(asking(wanted), ALL, calm(), 0.0))) == {found.name}


def test_an_accelerator_may_have_a_tenth_less_memory_than_it_is_sold_with() -> None:
    assert names(choose(asking("L40S", device_gb=48), ALL, calm(), 0.0))[0] == {L40S.name}
    assert names(choose(asking("A100", device_gb=80), ALL, calm(), 0.0))[0] == {A100_80.name}
    assert names(choose(asking("A100", device_gb=40), ALL, calm(), 0.0))[0] == {A100.name, A100_80.name}


def test_without_an_accelerator_it_is_a_general_purpose_machine() -> None:
    found = set.union(*names(choose(asking(vcpus=4), ALL, calm(), 0.0)))
    assert found == {M5.name, M7.name}


def test_what_is_special_is_offered_when_nothing_else_has_what_is_asked_for() -> None:
    assert names(choose(asking(vcpus=4), there_is(I4, T4), calm(), 0.0))[0] == {I4.name}


@pytest.mark.parametrize("odd", [T3, METAL, SLICE], ids=lambda each: each.name)
def test_bare_metal_and_burstable_types_must_be_named(odd: InstanceType) -> None:
    accelerator = odd.accelerator
    with pytest.raises(BadRequest):
        choose(asking(accelerator), there_is(odd), calm(), 0.0)
    (_, *_), *_ = choose(asking(accelerator), there_is(odd), calm(), 0.0, instance_types=[odd.name])


def test_named_types_are_the_only_ones_and_still_have_to_do() -> None:
    named = choose(asking(vcpus=4), ALL, calm(), 0.0, instance_types=[T4.name, T3.name])
    assert set.union(*names(named)) == {T4.name, T3.name}
    with pytest.raises(BadRequest, match=r"t3\.xlarge, has 4 vCPUs, not 5"):
        choose(asking(vcpus=5), ALL, calm(), 0.0, instance_types=[T3.name])


def test_what_may_be_paid_is_for_the_machine_with_its_disk() -> None:
    catalogue, extras = there_is(M5, M7, spot=10), {"x86_64": 0.05, "arm64": 0.01}
    request = asking(allocation="on-demand", max_hourly_cost=0.2)
    assert names(choose(request, catalogue, calm(), 0.0)) == [{M7.name}, {M5.name}]
    assert names(choose(request, catalogue, calm(), 0.0, extras_usd=extras)) == [{M7.name}]
    with pytest.raises(BadRequest, match=r"m7g\.xlarge .* at \$0\.173 an hour, its disk included"):
        choose(replace(request, max_hourly_cost=0.17), catalogue, calm(), 0.0, extras_usd=extras)


def test_what_the_cloud_has_none_of_is_not_asked_for() -> None:
    catalogue = replace(there_is(M5, M7), stock={(M7.name, zone): "none" for zone in ZONES} | {(M5.name, "a"): "low"})
    assert names(choose(asking(allocation="on-demand"), catalogue, calm(), 0.0)) == [{M5.name}]
    with pytest.raises(NoCapacity, match=r"AWS says that it has no m7g\.xlarge left in us-east-1 now") as refused:
        choose(asking(architecture="arm64"), catalogue, calm(), 0.0)
    assert refused.value.retry_after_s == 30.0
    (first, *_), *_ = choose(asking(), replace(catalogue, stock={(M7.name, ZONES[0]): "3"}), calm(), 0.0)
    assert first.stock == "3"


def test_small_request_gets_no_giant_machine() -> None:
    assert HUGE.name not in set.union(*names(choose(asking(vcpus=2), ALL, calm(), 0.0)))
    assert HUGE.name in set.union(*names(choose(asking(vcpus=2, max_hourly_cost=5), ALL, calm(), 0.0)))


def test_request_without_sizes_has_room_for_python() -> None:
    tiny = machine("c7g.medium", 1, 2)
    catalogue = replace(there_is(M5), types={"c7g.medium": tiny, M5.name: M5})
    assert names(choose(asking(), catalogue, calm(), 0.0))[0] == {M5.name}


def test_efa_and_clusters_are_asked_of_the_type() -> None:
    plain = gpus("p4x.24xlarge", "A100", 8, 40, cluster=False)
    catalogue = there_is(plain, A100)
    assert set.union(*names(choose(asking("A100", interconnect="efa"), catalogue, calm(), 0.0))) == {A100.name}
    assert set.union(*names(choose(asking("A100"), catalogue, calm(), 0.0, together=True))) == {A100.name}


# --- which zones and markets ------------------------------------------------------------------------------------------


def test_a_round_is_spread_over_the_zones() -> None:
    (first, *_) = choose(asking(vcpus=4, architecture="x86_64"), ALL, calm(), 0.0)
    assert sorted(offer.zone for offer in first) == ZONES


def test_together_means_one_zone_in_each_round() -> None:
    rounds = choose(asking("A100", 8, allocation="spot"), ALL, calm(), 0.0, together=True)
    assert len(rounds) == len(ZONES)
    assert all(len({offer.zone for offer in offers}) == 1 for offers in rounds)


def test_local_zones_must_be_named() -> None:
    catalogue = there_is(M5, zones=[ZONES[0], LOCAL])
    assert {offer.zone for offers in choose(asking(), catalogue, calm(), 0.0) for offer in offers} == {ZONES[0]}
    named = choose(asking(), catalogue, calm(), 0.0, zones=[LOCAL])
    assert {offer.zone for offers in named for offer in offers} == {LOCAL}


@pytest.mark.parametrize(
    ("allocation", "spot", "order"),
    [
        ("spot", 0.4, ["spot"]),
        ("on-demand", 0.4, ["on-demand"]),
        ("spot-if-available", 0.4, ["spot", "on-demand"]),
        ("spot-if-available", 1.2, ["spot", "on-demand"]),
        ("cheapest", 0.4, ["spot", "on-demand"]),
        ("cheapest", 1.2, ["on-demand", "spot"]),
    ],
)
def test_the_allocation_says_which_market_comes_first(allocation: Any, spot: float, order: list[str]) -> None:
    rounds = choose(asking(allocation=allocation), there_is(M5, spot=spot), calm(), 0.0)
    assert markets(rounds) == order


def test_a_round_has_one_architecture() -> None:
    rounds = choose(asking(), there_is(M5, M7), calm(), 0.0)
    assert names(rounds)[:2] == [{M7.name}, {M5.name}]


# --- what is told to people -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "catalogue", "words"),
    [
        (asking("H200"), ALL, "AWS has no H200 in us-east-1: .*; look in us-east-2, us-west-2"),
        (
            asking("A10G"),
            there_is(T4, L4),
            "has no A10G in us-east-1: it has L4, T4; look in us-east-2, us-w",
        ),
        (asking("A10"), there_is(replace(L4, accelerator="A10G")), "the closest it has is A10G"),
        (asking("A100", 16), ALL, r"closest, p4d\.24xlarge, has 8 A100, not 16"),
        (asking("T4", device_gb=24), ALL, r"closest, g4dn\.2xlarge, has 16 GB on each T4, not 24"),
        (asking("T4", architecture="arm64"), ALL, "is x86_64, not arm64"),
        (asking("T4", interconnect="efa"), ALL, "has no EFA"),
        (asking(vcpus=128, memory_gb=500), ALL, r"m5\.24xlarge, has 96 vCPUs, not 128 and has 384 GB"),
        (
            asking("T4", max_hourly_cost=0.1),
            ALL,
            r"cheapest in us-east-1 is g4dn\.2xlarge \(spot, .*1a\) at \$0\.3 ",
        ),
        (asking("T4", allocation="spot"), replace(there_is(T4), spot={}), r"no g4dn\.2xlarge as spot in us-east-1"),
        (asking("T4"), replace(there_is(T4), spot={}, on_demand={}), "allow pricing:GetProducts"),
        (asking("T4"), replace(there_is(T4), zones={}), "no zone of us-east-1"),
        (asking("T4"), there_is(), "no instance type at all|nor any other"),
    ],
)
def test_missing_type_is_an_error_that_names_the_closest(
    request_: LaunchRequest, catalogue: Catalogue, words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        choose(request_, catalogue, calm(), 0.0)


def test_zones_that_do_not_have_it_are_told_from_those_that_do() -> None:
    with pytest.raises(BadRequest, match=r"us-east-1f has no g4dn\.2xlarge: us-east-1a or us-east-1b has"):
        choose(asking("T4"), there_is(T4, zones=ZONES[:2]), calm(), 0.0, zones=["us-east-1f"])


def test_types_that_are_not_in_the_region_are_named() -> None:
    with pytest.raises(BadRequest, match=r"no p9\.large in us-east-1"):
        choose(asking(), ALL, calm(), 0.0, instance_types=["p9.large"])


# --- what failed lately -----------------------------------------------------------------------------------------------


def test_offer_without_capacity_is_left_out_during_its_cooldown() -> None:
    cooldowns, catalogue = calm(), there_is(M5, zones=ZONES[:1])
    spot, on_demand = choose(asking(), catalogue, cooldowns, 0.0)
    cooldowns.failed(spot[0], NONE_LEFT, 0.0)
    assert choose(asking(), catalogue, cooldowns, 1.0) == [on_demand]
    assert choose(asking(), catalogue, cooldowns, FIRST_WAIT_S) == [spot, on_demand]


def test_back_off_doubles_to_its_limit_and_is_forgotten_with_success() -> None:
    cooldowns, now, waits = calm(), 0.0, []
    offer = Offer(M5, ZONES[0], "spot", 0.1)
    for _ in range(9):
        cooldowns.failed(offer, NONE_LEFT, now)
        cooldowns.failed(offer, NONE_LEFT, now)  # of another call at the same time
        waits.append(cooldowns.refused_until(offer) - now)
        now = cooldowns.refused_until(offer)
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-2:] == [LONGEST_WAIT_S, LONGEST_WAIT_S]
    cooldowns.worked(offer)
    assert cooldowns.refused_until(offer) < 0
    cooldowns.failed(offer, NONE_LEFT, now)
    assert cooldowns.refused_until(offer) - now == FIRST_WAIT_S


def test_a_quota_counts_in_all_zones_of_its_market() -> None:
    cooldowns, catalogue = calm(), there_is(M5)
    spot, on_demand = choose(asking(), catalogue, cooldowns, 0.0)
    cooldowns.failed(spot[0], QUOTA, 0.0)
    assert choose(asking(), catalogue, cooldowns, 1.0) == [on_demand]


def test_when_all_failed_the_error_is_ec2s_and_the_first_that_may_be_tried_again_says_when() -> None:
    cooldowns, catalogue = calm(), there_is(M5)
    for number, offer in enumerate(offer for offers in choose(asking(), catalogue, cooldowns, 0.0) for offer in offers):
        cooldowns.failed(offer, NONE_LEFT, float(number))
    with pytest.raises(NoCapacity, match="AWS has none left") as caught:
        choose(asking(), catalogue, cooldowns, 6.0)
    assert (caught.value.code, caught.value.retry_after_s) == (NONE_LEFT.code, FIRST_WAIT_S - 6)


def test_a_quota_is_not_taken_for_missing_capacity_when_all_failed() -> None:
    cooldowns, catalogue = calm(), there_is(M5, zones=ZONES[:1])
    spot, on_demand = choose(asking(), catalogue, cooldowns, 0.0)
    quota = QuotaExceeded("the quota is used up", code="VcpuLimitExceeded")
    cooldowns.failed(on_demand[0], quota, 0.0)
    with pytest.raises(QuotaExceeded) as caught:
        choose(asking(allocation="on-demand"), catalogue, cooldowns, 1.0)
    assert caught.value.retry_after_s is None  # by waiting it is not lifted
    cooldowns.failed(spot[0], NONE_LEFT, 1.0)
    with pytest.raises(QuotaExceeded, match="the quota is used up; also: AWS has none left") as caught:
        choose(asking(), catalogue, cooldowns, 2.0)
    assert (caught.value.code, caught.value.retry_after_s) == (quota.code, FIRST_WAIT_S - 2)


def test_a_replacement_goes_elsewhere_than_where_one_was_just_taken() -> None:
    cooldowns, catalogue = calm(), there_is(M5)
    cooldowns.interrupted(M5.name, ZONES[0], 0.0)
    spot, on_demand, last = choose(asking(), catalogue, cooldowns, 1.0)
    assert {offer.zone for offer in spot} == set(ZONES[1:])
    assert {offer.market for offer in on_demand} == {"on-demand"}
    assert [(offer.market, offer.zone) for offer in last] == [("spot", ZONES[0])]
    assert len(choose(asking(), catalogue, cooldowns, 1.0 + INTERRUPTED_S)) == 2


def test_where_all_were_taken_the_longest_ago_comes_first() -> None:
    cooldowns = calm()
    for number, zone in enumerate(reversed(ZONES)):
        cooldowns.interrupted(M5.name, zone, float(number))
    rounds = choose(asking(allocation="spot"), there_is(M5), cooldowns, 3.0)
    assert [[offer.zone for offer in offers] for offers in rounds] == [[zone] for zone in reversed(ZONES)]


# --- in one place -----------------------------------------------------------------------------------------------------


def offer(name: str = "m7i.large", zone: str = "a") -> Offer:
    return Offer(machine(name), f"us-east-1{zone}", "spot", 0.1)


def test_those_that_are_side_by_side_are_of_one_type_in_one_zone() -> None:
    rounds = [[offer(zone="a"), offer("c7i.large", "a")], [offer(zone="b")]]
    assert in_one_place(rounds, ()) == [[offer(zone="a")], [offer("c7i.large", "a")], [offer(zone="b")]]


def test_others_join_those_that_are_there() -> None:
    rounds = [[offer(zone="a"), offer("c7i.large", "b")], [offer(zone="b")]]
    living = {("m7i.large", "us-east-1b")}
    assert in_one_place(rounds, living) == [[offer(zone="b")], [offer("c7i.large", "b")]]
    with pytest.raises(NoCapacity, match="us-east-1c") as told:
        in_one_place(rounds, {("m7i.large", "us-east-1c")})
    assert told.value.retry_after_s is not None


def test_a_call_for_one_type_gets_its_zones_in_the_order_of_the_rounds() -> None:
    rounds = [[offer(zone="a"), offer("c7i.large", "a"), offer(zone="b")], [offer(zone="c")]]
    assert of_one_type(rounds) == [[offer(zone="a"), offer(zone="b")], [offer("c7i.large", "a")], [offer(zone="c")]]


# --- properties -------------------------------------------------------------------------------------------------------

devices = st.sampled_from([("", 0, 0.0), ("T4", 1, 16.0), ("T4", 4, 16.0), ("L4", 1, 22.35), ("A100", 8, 40.0)])


@st.composite
def types(draw: st.DrawFn) -> InstanceType:
    accelerator, count, memory_gb = draw(devices)
    return InstanceType(
        name=draw(st.from_regex(r"[mcrgpx][1-9]\.(large|8xlarge)", fullmatch=True)),
        vcpus=draw(st.sampled_from([1, 2, 4, 96])),
        memory_gb=draw(st.sampled_from([2.0, 8.0, 64.0])),
        architecture=draw(st.sampled_from(["x86_64", "arm64"])),
        accelerator=accelerator,
        accelerators=count,
        accelerator_memory_gb=memory_gb,
        accelerator_share=draw(st.sampled_from([1.0, 1.0, 0.5])),
        interconnect=draw(st.sampled_from(["", "efa"])),
        cluster=draw(st.booleans()),
        spot=draw(st.booleans()),
        on_demand=draw(st.booleans()),
        bare_metal=draw(st.booleans()),
        burstable=draw(st.booleans()),
    )


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    found = {each.name: each for each in draw(st.lists(types(), min_size=1, max_size=7))}
    zones = {name: draw(st.frozensets(st.sampled_from([*ZONES, LOCAL]))) for name in found}
    prices = st.sampled_from([1.0, 1.01, 1.2, 1.4, 2.0, 3.9, 4.1, 30.0])
    places = [(name, zone) for name in found for zone in sorted(zones[name])]
    spot = {place: draw(prices) for place in places if draw(st.booleans())}
    return Catalogue(VENDOR, REGION, found, zones, spot, {name: draw(prices) for name in found if draw(st.booleans())})


requests = st.builds(
    LaunchRequest,
    client_key=st.just(""),
    nodes=st.integers(1, 8),
    accelerator=st.none()
    | st.builds(
        AcceleratorRequest,
        st.sampled_from(["T4", "L4", "A100"]),
        st.sampled_from([1, 4]),
        st.sampled_from([0.0, 16.0, 24.0]),
    ),
    vcpus=st.sampled_from([0, 2, 4]),
    memory_gb=st.sampled_from([0.0, 8.0]),
    architecture=st.sampled_from([None, "x86_64", "arm64"]),
    max_hourly_cost=st.none() | st.floats(0.01, 60),
    allocation=st.sampled_from(["spot", "on-demand", "spot-if-available", "cheapest"]),
    interconnect=st.sampled_from([None, None, "efa"]),
)


@st.composite
def bad_times(draw: st.DrawFn, catalogue: Catalogue) -> Cooldowns:
    cooldowns = calm()
    places = st.tuples(st.sampled_from(sorted(catalogue.types)), st.sampled_from(ZONES))
    for (name, zone), market in draw(st.sets(st.tuples(places, st.sampled_from(MARKETS)))):
        cooldowns.failed(Offer(catalogue.types[name], zone, market, 1.0), NONE_LEFT, 0.0)
    for (name, zone), when in draw(st.dictionaries(places, st.floats(0, 5))).items():
        cooldowns.interrupted(name, zone, when)
    return cooldowns


def attempt(request: LaunchRequest, catalogue: Catalogue, cooldowns: Cooldowns, **more: Any) -> list[list[Offer]]:
    try:
        return choose(request, catalogue, cooldowns, 6.0, **more)
    except (BadRequest, NoCapacity):
        return []


def meets(offer: Offer, request: LaunchRequest, catalogue: Catalogue, *, together: bool, named: bool) -> None:
    each, device = offer.type, request.accelerator
    assert each.vcpus >= request.vcpus
    assert each.memory_gb >= request.memory_gb
    assert request.architecture in (None, each.architecture)
    assert request.max_hourly_cost is None or offer.hourly_usd <= request.max_hourly_cost
    assert request.interconnect in (None, each.interconnect)
    assert not together or each.cluster
    assert named or not (each.bare_metal or each.burstable or each.accelerator_share < 1)
    if device is not None:
        assert each.accelerator == device.name
        assert each.accelerators >= device.count
        assert each.accelerator_memory_gb >= 0.9 * device.memory_gb
    elif not named:
        assert not each.accelerator
    if offer.market == "spot":
        assert each.spot
        assert request.allocation != "on-demand"
        assert offer.hourly_usd == catalogue.spot[each.name, offer.zone]
    else:
        assert each.on_demand
        assert request.allocation != "spot"
        assert offer.hourly_usd == catalogue.on_demand[each.name]
    assert offer.zone in catalogue.zones[each.name]
    assert offer.zone != LOCAL


@settings(max_examples=80, deadline=None)
@given(st.data(), catalogues(), requests, st.booleans(), st.booleans())
def test_every_offer_meets_every_minimum_and_every_round_is_one_call(
    data: st.DataObject, catalogue: Catalogue, request: LaunchRequest, together: bool, named: bool
) -> None:
    cooldowns = data.draw(bad_times(catalogue))
    instance_types = sorted(catalogue.types) if named else None
    rounds = attempt(request, catalogue, cooldowns, together=together, instance_types=instance_types)
    for offers in rounds:
        assert 1 <= len(offers) <= ROUND_AT_MOST
        assert len({(offer.market, offer.type.architecture) for offer in offers}) == 1
        assert not together or len({offer.zone for offer in offers}) == 1
        cheapest = min(offer.hourly_usd for offer in offers)
        assert all(offer.hourly_usd <= CLOSE * cheapest for offer in offers)
        for offer in offers:
            meets(offer, request, catalogue, together=together, named=named)
            assert cooldowns.refused_until(offer) <= 6.0
    everything = [offer for offers in rounds for offer in offers]
    assert len(everything) == len(set(everything))


@settings(max_examples=80, deadline=None)
@given(st.data(), catalogues(), requests, st.booleans())
def test_avoiding_only_ever_takes_away_and_puts_last(
    data: st.DataObject, catalogue: Catalogue, request: LaunchRequest, together: bool
) -> None:
    cooldowns = data.draw(bad_times(catalogue))
    before = {offer for offers in attempt(request, catalogue, calm(), together=together) for offer in offers}
    rounds = attempt(request, catalogue, cooldowns, together=together)
    assert {offer for offers in rounds for offer in offers} == {
        offer for offer in before if cooldowns.refused_until(offer) <= 6.0
    }
    interrupted = [max(0.0, cooldowns.interrupted_until(offers[0]) - 6.0) for offers in rounds]
    assert interrupted == sorted(interrupted)


@settings(max_examples=80, deadline=None)
@given(catalogues(), requests)
def test_rounds_are_in_order_of_market_and_price(catalogue: Catalogue, request: LaunchRequest) -> None:
    rounds = attempt(request, catalogue, calm())
    for first, second in pairwise(rounds):
        floors = [min(offer.hourly_usd for offer in offers) for offers in (first, second)]
        assert floors[0] <= floors[1] or (request.allocation == "spot-if-available" and markets([first]) == ["spot"])
        if request.allocation == "spot-if-available":
            assert markets([first, second]) != ["on-demand", "spot"]
    if request.max_hourly_cost is None:
        for market in ("spot", "on-demand"):
            costs = [offer.hourly_usd for offers in rounds for offer in offers if offer.market == market]
            assert not costs or max(costs) <= SPAN * min(costs)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.integers(1, 6))
def test_offers_beyond_one_call_go_into_the_next_round(count: int, zones: int) -> None:
    found = [machine(f"m{number}.large") for number in range(count)]
    places = [REGION + letter for letter in "abcdef"[:zones]]
    catalogue = Catalogue(
        VENDOR,
        REGION,
        {each.name: each for each in found},
        {each.name: frozenset(places) for each in found},
        {(each.name, zone): 1 + places.index(zone) / 100 for each in found for zone in places},
    )
    rounds = choose(asking(allocation="spot"), catalogue, calm(), 0.0)
    assert sum(map(len, rounds)) == count * zones
    for offers in rounds[:-1]:
        spread = [sum(offer.zone == zone for offer in offers) for zone in places]
        assert sum(spread) == ROUND_AT_MOST
        assert max(spread) - min(spread) <= 1
