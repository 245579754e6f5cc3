"""The choice of the offers to request from a cloud. No I/O, no clock.

An offer is one machine type in one zone at one price. `choose` returns rounds of offers, in the order in which to try
them: based on the request, the cloud's catalogue (its types and prices), and the `Cooldowns`, which record the offers
that the cloud recently refused or interrupted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from math import inf
from types import MappingProxyType
from typing import Literal, TypeVar

from ...lazy_dataclass import dataclass
from ..base import AcceleratorRequest, Architecture, LaunchRequest, MachineOffer
from ..errors import BadRequest, NoCapacity, ProviderError
from .calls import ELSEWHERE, most_telling
from .vendor import Vendor

Market = Literal["spot", "on-demand"]

# In one round (the offers for one create call), the highest price is at most this many times the lowest one. Spot
# prices of a type differ between zones by up to a half, and a round with more zones may give more machines.
CLOSE = 1.5
# offers above this factor of the cheapest price are not requested: for a request of 4 vCPUs, a machine with 8 is better
# than waiting, and a machine with 96 is not
SPAN = 4.0
# The most offers in one create call. EC2's CreateFleet (type "instant") accepts 300, but answers faster with fewer.
ROUND_AT_MOST = 60
SOLD_OUT = "none"  # the value of `Catalogue.stock` that means sold out
SOLD_OUT_S = 30.0  # seconds until a sold-out type is requested again
# the least vCPUs and memory of a machine if the request names none: enough for Python, its packages and Outrider
LEAST_VCPUS = 2
LEAST_MEMORY_GB = 4.0


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine type, as the cloud's own list describes it."""

    name: str
    vcpus: int
    memory_gb: float
    architecture: Architecture
    accelerator: str = ""  # name in `outrider.accelerators`; empty: none
    accelerators: int = 0
    accelerator_memory_gb: float = 0.0  # memory of each accelerator, in GB
    accelerator_share: float = 1.0  # less than 1: the machine has only a slice of a device
    network_gbps: float = 0.0  # guaranteed bandwidth of all network cards together
    network_cards: int = 1
    interconnect: str = ""  # the fast network among machines, named as in `LaunchRequest.interconnect`
    interconnect_cards: int = 0  # number of cards of the interconnect
    cluster: bool = False  # a placement group can put machines of this type close together
    spot: bool = False
    on_demand: bool = False
    nvme_gb: float = 0.0
    bare_metal: bool = False
    burstable: bool = False  # the vCPUs run at full speed only for a limited time
    current: bool = True  # the type is of the cloud's current generation


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The types and prices of a region that matter for a request. Prices are in USD per hour."""

    vendor: Vendor
    region: str
    types: Mapping[str, InstanceType]
    zones: Mapping[str, frozenset[str]]  # for each type, the zones that have it
    spot: Mapping[tuple[str, str], float] = field(default_factory=dict)  # spot price by type and zone
    on_demand: Mapping[str, float] = field(default_factory=dict)  # on-demand price by type
    # by type and zone: how many machines are left, in the cloud's own words
    stock: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """One machine type in one zone at one price."""

    type: InstanceType
    zone: str
    market: Market
    hourly_usd: float
    stock: str = ""  # how many machines are left, in the cloud's own words; empty: unknown


def choose(
    request: LaunchRequest,
    catalogue: Catalogue,
    cooldowns: Cooldowns,
    now: float,
    *,
    instance_types: Collection[str] | None = None,
    zones: Collection[str] | None = None,
    together: bool = False,
    extras_usd: Mapping[Architecture, float] = MappingProxyType({}),
) -> list[list[Offer]]:
    """Return rounds of offers, in the order in which to try them.

    The offers of a round are for one create call: one market, one architecture, similar prices, spread over the zones.
    If a round gives too few machines, the next round is tried. Bare metal, burstable types and slices of GPUs are
    offered only if ``instance_types`` names them. Recently interrupted offers come last, the longest ago first; refused
    offers are left out during their cooldown.

    Args:
        request: The request.
        catalogue: The region's types and prices.
        cooldowns: The recent failures.
        now: The present time, to compare with cooldowns.
        instance_types: Use only these types. None: any.
        zones: Use only these zones. None: any.
        together: The offers of a round must be in one zone, and fit into one placement group.
        extras_usd: USD per hour of a machine in addition to its type's price, by architecture.

    Raises:
        BadRequest: No such machine exists here, or none below the price limit.
        NoCapacity: The cloud reports that all fitting types are sold out.
        ProviderError: All offers are in cooldown; the error has the reason, and the time of the next try.
    """
    there = catalogue.vendor, catalogue.region
    types = suitable(request, catalogue.types.values(), *there, instance_types, together=together)
    priced = _priced(request, catalogue, types, zones)
    offers = _in_stock(_affordable(request, priced, extras_usd, catalogue.region), catalogue)
    if request.max_hourly_cost is None and instance_types is None:
        offers = _within_span(offers)
    return _rounds(willing(offers, cooldowns, now), request, cooldowns, now, together)


def willing(offers: Sequence[Offer], cooldowns: Cooldowns, now: float) -> list[Offer]:
    """Return the offers that are not in cooldown.

    Raises:
        ProviderError: All offers are in cooldown; the error has the reason, and the time of the next try.
    """
    open_offers = [offer for offer in offers if cooldowns.refused_until(offer) <= now]
    if not open_offers:
        raise _all_failed(offers, cooldowns, now)
    return open_offers


# --- types ------------------------------------------------------------------------------------------------------------


def suitable(
    request: LaunchRequest,
    types: Iterable[InstanceType],
    vendor: Vendor,
    region: str,
    instance_types: Collection[str] | None = None,
    *,
    together: bool = False,
) -> list[InstanceType]:
    """Return the types that fit a request. Among types without accelerators, prefer general-purpose ones.

    Raises:
        BadRequest: No type fits; the error names the closest one.
    """
    named = instance_types is not None
    allowed = [each for each in types if each.name in instance_types] if instance_types is not None else list(types)
    if named and not allowed:
        names = _one_of(sorted(instance_types or ()))
        raise BadRequest(f"{vendor.name} has no {names} in {region}; see {vendor.name}(instance_types=...)")
    if not named:
        allowed = [each for each in allowed if _is_plain(each)]
    if request.accelerator is not None:
        allowed = _with_accelerator(request.accelerator, allowed, vendor, region)
    fitting = [each for each in allowed if not _lacks(each, request, together=together, named=named)]
    if not fitting:
        raise _closest(request, allowed, vendor, region, together=together, named=named)
    if named or request.accelerator is not None:
        return fitting
    usual = vendor.general_purpose
    return [each for each in fitting if each.current and (not usual or each.name.startswith(usual))] or fitting


def _is_plain(each: InstanceType) -> bool:
    return not (each.bare_metal or each.burstable or each.accelerator_share < 1)


def _with_accelerator(
    wanted: AcceleratorRequest, types: Sequence[InstanceType], vendor: Vendor, region: str
) -> list[InstanceType]:
    same_model = [each for each in types if _plain(each.accelerator) == _plain(wanted.name)]
    if same_model:
        return same_model
    here = {_plain(each.accelerator): each.accelerator for each in types if each.accelerator}
    close = get_close_matches(_plain(wanted.name), here, n=1, cutoff=0.5)
    if close:
        there_is = f"the closest it has is {here[close[0]]}"
    else:
        there_is = f"it has {', '.join(sorted(here.values()))}" if here else "nor any other"
    elsewhere = [each for each in vendor.regions_with(wanted.name) if each != region]
    look = f"; look in {_one_of(elsewhere[:4])}" if elsewhere else ""
    raise BadRequest(f"{vendor.name} has no {wanted.name} in {region}: {there_is}{look}")


def _plain(accelerator: str) -> str:
    return "".join(c for c in accelerator.lower() if c.isalnum())


def _lacks(each: InstanceType, request: LaunchRequest, *, together: bool, named: bool) -> list[tuple[float, str]]:
    """List why a type does not fit the request: each reason with a size from 0 to 1, and a text for the user."""
    lacks: list[tuple[float, str]] = []

    def least(has: float, wanted: float, what: str) -> None:
        if has < wanted:
            lacks.append((1 - has / wanted, f"has {has:g} {what}, not {wanted:g}"))

    accelerator = request.accelerator
    if accelerator is not None:
        least(each.accelerators, accelerator.count, each.accelerator)
        if not accelerator.fits(accelerator.name, each.accelerator_memory_gb):
            least(each.accelerator_memory_gb, accelerator.memory_gb, f"GB on each {each.accelerator}")
    elif each.accelerator and not named:
        lacks.append((1.0, f"has {each.accelerator}, which nobody asked for"))
    unsaid = not (request.vcpus or request.memory_gb or accelerator or named)
    least(each.vcpus, LEAST_VCPUS if unsaid else request.vcpus, "vCPUs")
    least(each.memory_gb, LEAST_MEMORY_GB if unsaid else request.memory_gb, "GB of memory")
    if request.architecture not in (None, each.architecture):
        lacks.append((1.0, f"is {each.architecture}, not {request.architecture}"))
    if request.interconnect not in (None, each.interconnect):
        lacks.append((1.0, f"has no {request.interconnect.upper()}"))
    if together and not each.cluster:
        lacks.append((1.0, "cannot be placed near others"))
    if request.allocation == "spot" and not each.spot:
        lacks.append((1.0, "is not sold as spot"))
    if request.allocation == "on-demand" and not each.on_demand:
        lacks.append((1.0, "is not sold on demand"))
    return lacks


def _closest(
    request: LaunchRequest, types: Sequence[InstanceType], vendor: Vendor, region: str, *, together: bool, named: bool
) -> BadRequest:
    if not types:
        return BadRequest(f"{vendor.name} answered with no instance type at all in {region}: is the region enabled?")
    shortfalls = {each.name: _lacks(each, request, together=together, named=named) for each in types}
    name = min(shortfalls, key=lambda name: (len(shortfalls[name]), sum(by for by, _ in shortfalls[name]), name))
    words = " and ".join(text for _, text in shortfalls[name])
    problem = f"no instance type of {vendor.name} in {region} has all that is asked for"
    return BadRequest(f"{problem}: the closest, {name}, {words}")


# --- prices -----------------------------------------------------------------------------------------------------------


def _priced(
    request: LaunchRequest, catalogue: Catalogue, types: Sequence[InstanceType], zones: Collection[str] | None
) -> list[Offer]:
    places = {each.name: _zones(catalogue, each.name, zones) for each in types}
    if not any(places.values()):
        names, offering = _one_of([each.name for each in types]), sorted(set().union(*catalogue.zones.values()))
        if zones is None or not offering:
            raise BadRequest(f"no zone of {catalogue.region} that is open to this account has {names}")
        raise BadRequest(f"{_one_of(sorted(zones))} has no {names}: {_one_of(offering)} has")
    priced: list[Offer] = []
    for each in types:
        on_demand = catalogue.on_demand.get(each.name)
        for zone in sorted(places[each.name]):
            spot, stock = catalogue.spot.get((each.name, zone)), catalogue.stock.get((each.name, zone), "")
            if each.spot and spot is not None and request.allocation != "on-demand":
                priced.append(Offer(each, zone, "spot", spot, stock))
            if each.on_demand and on_demand is not None and request.allocation != "spot":
                priced.append(Offer(each, zone, "on-demand", on_demand, stock))
    if priced:
        return priced
    names = _one_of([each.name for each in types])
    if request.allocation == "spot":
        problem = f"{catalogue.vendor.name} has no {names} as spot in {catalogue.region}"
        raise BadRequest(f"{problem}: use allocation='spot-if-available'")
    raise BadRequest(
        f"the price of {names} in {catalogue.region} is not known, and nothing is started at an unknown price: "
        f"{catalogue.vendor.price_advice}"
    )


def _zones(catalogue: Catalogue, name: str, wanted: Collection[str] | None) -> list[str]:
    """Return the zones to use for a type. A zone that is not usual (`Vendor.usual_zone`) is used only if the user names
    it.
    """
    offered = catalogue.zones.get(name, ())
    if wanted is not None:
        return [zone for zone in offered if zone in wanted]
    return [zone for zone in offered if catalogue.vendor.usual_zone(catalogue.region, zone)]


def _affordable(
    request: LaunchRequest, offers: list[Offer], extras_usd: Mapping[Architecture, float], region: str
) -> list[Offer]:
    most = request.max_hourly_cost
    if most is None:
        return offers

    def whole(offer: Offer) -> float:
        return offer.hourly_usd + extras_usd.get(offer.type.architecture, 0.0)

    affordable = [offer for offer in offers if whole(offer) <= most]
    if not affordable:
        cheapest = min(offers, key=lambda offer: (whole(offer), _by_price(offer)))
        raise BadRequest(
            f"max_hourly_cost={most:g} is too little: the cheapest in {region} is {cheapest.type.name} "
            f"({cheapest.market}, {cheapest.zone}) at ${whole(cheapest):.4g} an hour, its disk included"
        )
    return affordable


def _in_stock(offers: Sequence[Offer], catalogue: Catalogue) -> list[Offer]:
    in_stock = [offer for offer in offers if offer.stock != SOLD_OUT]
    if not in_stock:
        names = _one_of(list(dict.fromkeys(offer.type.name for offer in offers)))
        problem = f"{catalogue.vendor.name} says that it has no {names} left in {catalogue.region} now"
        raise NoCapacity(problem, retry_after_s=SOLD_OUT_S, advice=ELSEWHERE)
    return in_stock


def _within_span(offers: Sequence[Offer]) -> list[Offer]:
    cheapest: dict[Market, float] = {}
    for offer in offers:
        cheapest[offer.market] = min(offer.hourly_usd, cheapest.get(offer.market, offer.hourly_usd))
    return [offer for offer in offers if offer.hourly_usd <= SPAN * cheapest[offer.market]]


def _by_price(offer: Offer) -> tuple[float, float, int, float, str, str]:
    """Return the sort key of an offer: the price, then the size, because a smaller type is closer to the request."""
    each = offer.type
    return offer.hourly_usd, each.accelerators, each.vcpus, each.memory_gb, each.name, offer.zone


# --- rounds -----------------------------------------------------------------------------------------------------------


def _rounds(
    offers: Sequence[Offer], request: LaunchRequest, cooldowns: Cooldowns, now: float, together: bool
) -> list[list[Offer]]:
    groups: dict[tuple[float, Market, str, str], list[Offer]] = defaultdict(list)
    for offer in sorted(offers, key=_by_price):
        interrupted = max(0.0, cooldowns.interrupted_until(offer) - now)
        zone = offer.zone if together else ""
        groups[interrupted, offer.market, offer.type.architecture, zone].append(offer)

    def order(item: tuple[float, list[Offer]]) -> tuple[float, bool, float, int, str]:
        interrupted, offers = item
        market_first = request.allocation == "spot-if-available" and offers[0].market == "on-demand"
        return interrupted, market_first, min(offer.hourly_usd for offer in offers), -len(offers), offers[0].zone

    cut = [(key[0], each) for key, group in groups.items() for each in _cut(group)]
    return [each for _, each in sorted(cut, key=order)]


def _cut(offers: Sequence[Offer]) -> list[list[Offer]]:
    """Cut offers, sorted by price, into rounds of similar prices. Each round is short enough for one call."""
    rounds: list[list[Offer]] = []
    left = list(offers)
    while left:
        near = [offer for offer in left if offer.hourly_usd <= CLOSE * left[0].hourly_usd]
        rounds.append(_spread(near)[:ROUND_AT_MOST])
        taken = set(rounds[-1])
        left = [offer for offer in left if offer not in taken]
    return rounds


def _spread(offers: Sequence[Offer]) -> list[Offer]:
    """Order offers: the cheapest offer of every zone, then the second of every zone, and so on."""
    depth: dict[str, int] = defaultdict(int)
    turns: list[tuple[int, Offer]] = []
    for offer in offers:
        turns.append((depth[offer.zone], offer))
        depth[offer.zone] += 1
    return [offer for _, offer in sorted(turns, key=lambda turn: (turn[0], _by_price(turn[1])))]


def _all_failed(offers: Sequence[Offer], cooldowns: Cooldowns, now: float) -> ProviderError:
    refusals = [cooldowns.refusal(offer) for offer in offers]
    error = most_telling([each for each in refusals if each is not None])
    if error.retry_after_s is not None:
        error.retry_after_s = cooldowns.wait_s(offers, now)
    return error


def _one_of(names: Sequence[str], most: int = 6) -> str:
    shown = [*names[:most], f"{len(names) - most} others"] if len(names) > most else list(names)
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


# --- one zone ---------------------------------------------------------------------------------------------------------


def of_one_type(rounds: Sequence[Sequence[Offer]]) -> list[list[Offer]]:
    """Split the rounds by type, for a create call that takes one type in any of several zones."""
    kinds = [(number, offer.type.name) for number, each in enumerate(rounds) for offer in each]
    return [[offer for offer in rounds[at] if offer.type.name == name] for at, name in dict.fromkeys(kinds)]


def in_one_place(rounds: Sequence[Sequence[Offer]], living: Collection[tuple[str, str]]) -> list[list[Offer]]:
    """Return rounds of one offer each, for machines in one placement group.

    A placement group is in one zone, and works best with machines of one type. ``living``: (type, zone) of each machine
    in the group; new machines are placed in the same zone.

    Raises:
        NoCapacity: There is no offer at present in the zone of the living machines.
    """
    offers = [offer for offers in rounds for offer in offers]
    zones = {zone for _, zone in living}
    there = [offer for offer in offers if not zones or offer.zone in zones]
    if not there:
        raise NoCapacity(
            f"the pool's other machines are in {', '.join(sorted(zones))}, and nothing is to be had there now",
            retry_after_s=10.0,
        )
    there.sort(key=lambda offer: (offer.type.name, offer.zone) not in living)
    return [[offer] for offer in there]


def as_machine_offers(
    rounds: Sequence[Sequence[Offer]], region: str, extras_usd: Mapping[Architecture, float]
) -> list[MachineOffer]:
    """Return the offers in the form for display: with all costs, in the order in which a launch would request them.

    ``region``: the region of the offers' zones; empty: each zone is a region of its own.
    """
    return [
        MachineOffer(
            kind=offer.type.name,
            place=offer.zone,
            region=region or offer.zone,
            market=offer.market,
            hourly_usd=offer.hourly_usd + extras_usd.get(offer.type.architecture, 0.0),
            vcpus=offer.type.vcpus,
            memory_gb=offer.type.memory_gb,
            architecture=offer.type.architecture,
            accelerator=offer.type.accelerator,
            accelerators=offer.type.accelerators,
            stock=offer.stock,
            attempt=attempt,
        )
        for attempt, chosen in enumerate(rounds, 1)
        for offer in chosen
    ]


# --- offers to avoid --------------------------------------------------------------------------------------------------


FIRST_WAIT_S = 15.0
LONGEST_WAIT_S = 600.0
FORGET_AFTER_S = 900.0  # after so many seconds without a failure, the next failure has the shortest cooldown again
# seconds to avoid a type in a zone after an interruption, as a new machine there may be interrupted, too
INTERRUPTED_S = 600.0
LASTING_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Wait:
    length: float
    until: float
    error: ProviderError | None = None


@dataclass(slots=True)
class Cooldowns:
    """A record of offers that lacked capacity or were interrupted recently. One per pool. Callers pass the time."""

    vendor: Vendor
    _failed: dict[tuple[str, str, Market], _Wait] = field(default_factory=dict)
    _interrupted: dict[tuple[str, str], _Wait] = field(default_factory=dict)

    def failed(self, offer: Offer, error: ProviderError, now: float) -> None:
        """Record that the cloud refused this offer. After repeated refusals, each cooldown is twice as long as the one
        before. If an account's quota is exhausted, the cooldown applies to the type in all zones.
        """
        key = (offer.type.name, "" if error.code in self.vendor.quotas else offer.zone, offer.market)
        first = LASTING_S if error.code in self.vendor.lasting else FIRST_WAIT_S
        _extend(self._failed, key, now, first, max(first, LONGEST_WAIT_S), error=error)

    def worked(self, offer: Offer) -> None:
        """Record that this offer gave a machine. This ends the offer's cooldown."""
        for zone in ("", offer.zone):
            self._failed.pop((offer.type.name, zone, offer.market), None)

    def interrupted(self, type: str, zone: str, now: float) -> None:  # noqa: A002 (clouds' own word)
        """Record that a spot machine of this type in this zone was interrupted, or will be."""
        _extend(self._interrupted, (type, zone), now, INTERRUPTED_S, 8 * INTERRUPTED_S)

    def refused_until(self, offer: Offer) -> float:
        """Return the time from which the offer may be requested; minus infinity without a cooldown."""
        wait = self._wait(offer)
        return -inf if wait is None else wait.until

    def refusal(self, offer: Offer) -> ProviderError | None:
        """Return the error that caused the offer's cooldown; None: the offer has no cooldown."""
        wait = self._wait(offer)
        return None if wait is None else wait.error

    def wait_s(self, offers: Iterable[Offer], now: float) -> float:
        """Return the seconds until the cooldown of one of these offers is over."""
        return max(0.0, min(map(self.refused_until, offers)) - now)

    def interrupted_until(self, offer: Offer) -> float:
        """Return the time until which launches prefer other offers; minus infinity without an interruption."""
        wait = self._interrupted.get((offer.type.name, offer.zone)) if offer.market == "spot" else None
        return -inf if wait is None else wait.until

    def _wait(self, offer: Offer) -> _Wait | None:
        waits = [self._failed.get((offer.type.name, zone, offer.market)) for zone in ("", offer.zone)]
        return max((wait for wait in waits if wait is not None), key=lambda wait: wait.until, default=None)


_Key = TypeVar("_Key")


def _extend(
    waits: dict[_Key, _Wait], key: _Key, now: float, first: float, longest: float, *, error: ProviderError | None = None
) -> None:
    last = waits.get(key)
    if last is not None and now < last.until:
        return  # calls that ran at the same time and failed in the same way count as one failure
    again = last is not None and now < last.until + FORGET_AFTER_S
    length = min(2 * last.length, longest) if last is not None and again else first
    waits[key] = _Wait(length, now + length, error)
