"""`CreateFleet` of type instant: machines from many capacity pools, and the reasons why there are no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from ....lazy_dataclass import dataclass
from . import prices, templates
from .call import CloudCall
from .capacity import Pool
from .faults import Market, Unauthorized
from .launch import launch, room
from .launch_spec import LaunchSpec, launch_spec_of, merged, subnets
from .moto import Subnet
from .protocol import Answer, Ask, EC2Error, unauthorized
from .tokens import once

Error = tuple[Mapping[str, Any], Market, EC2Error]  # (override, market, its error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One capacity pool from which the fleet may take machines."""

    override: Mapping[str, Any]
    template: Mapping[str, Any]
    launch_spec: LaunchSpec
    weight: float
    priority: float
    usd: float  # USD per hour and unit of capacity
    depth: float  # apparent capacity, for strategies that consider it


@dataclass(frozen=True, slots=True)
class Draw:
    """The result of trying some capacity pools in turn."""

    taken: Sequence[tuple[Candidate, int]]
    errors: Sequence[Error]
    units: float


@once
def create_fleet(call: CloudCall) -> Answer:
    if call.ask.get("Type", "maintain") != "instant":
        raise EC2Error("UnsupportedOperation", "The test cloud has fleets of the type instant only.")
    fleet_id = call.region.state.new_id("fleet")
    taken, errors, planned = list[tuple[Candidate, int]](), list[Error](), list[Pool]()
    for market, units in _targets(call.ask["TargetCapacitySpecification"]).items():
        options = call.ask.get("SpotOptions" if market == "spot" else "OnDemandOptions") or {}
        _checked(options, units)
        candidates, unfit = _candidates(call, market, fleet_id)
        drawn = _draw(call, candidates, units, options, planned)
        errors += [*unfit, *drawn.errors] if units else []
        if drawn.units >= (options.get("MinTargetCapacity") or 0):
            taken += drawn.taken
            planned += [each.launch_spec.pool for each, count in drawn.taken for _ in range(count)]
    return _done(call, fleet_id, taken, errors)


def describe_fleets(call: CloudCall) -> Answer:
    fleets, ids = call.region.fleets, call.ask.get("FleetIds") or []
    _known_fleets(call, ids)
    return {"Fleets": [fleets[each] for each in ids or fleets]}


def delete_fleets(call: CloudCall) -> Answer:
    """Delete fleets together with their instances: an instant fleet can only be deleted together with them."""
    ids = call.ask["FleetIds"]
    _known_fleets(call, ids)
    if not call.ask["TerminateInstances"]:
        words = "TerminateInstances must be true to delete fleets of the type instant"
        raise EC2Error("InvalidParameterValue", words)
    deleted: list[Answer] = []
    for fleet_id in ids:
        for instance in call.region.instances.all():
            if instance.tags.get("aws:ec2:fleet-id") == fleet_id:
                call.region.lives[instance.id].terminate()
        del call.region.fleets[fleet_id]
        states = {"CurrentFleetState": "deleted_terminating", "PreviousFleetState": "active"}
        deleted.append({"FleetId": fleet_id, **states})
    return {"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": []}


# --- helpers ----------------------------------------------------------------------------------------------------------


def _targets(target: Mapping[str, Any]) -> dict[Market, int]:
    """Return the units of capacity by market.

    Units for which the call names no market belong to the fleet's default market: on-demand, unless the call sets it.
    """
    on_demand, spot = target.get("OnDemandTargetCapacity") or 0, target.get("SpotTargetCapacity") or 0
    rest = target["TotalTargetCapacity"] - on_demand - spot
    if rest < 0 or target["TotalTargetCapacity"] < 1:
        words = "TotalTargetCapacity must be at least 1, and as much as the spot and on-demand capacities together"
        raise EC2Error("InvalidParameterValue", words)
    if target.get("DefaultTargetCapacityType", "on-demand") == "spot":
        return {"on-demand": on_demand, "spot": spot + rest}
    return {"on-demand": on_demand + rest, "spot": spot}


def _checked(options: Mapping[str, Any], units: int) -> None:
    least = options.get("MinTargetCapacity")
    if least and not (options.get("SingleInstanceType") or options.get("SingleAvailabilityZone")):
        words = "MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone"
        raise EC2Error("InvalidParameterCombination", words)
    if least and units and least > units:
        raise EC2Error("InvalidParameterValue", "MinTargetCapacity may not be above the target capacity")


def _candidates(call: CloudCall, market: Market, fleet_id: str) -> tuple[list[Candidate], list[Error]]:
    candidates, unfit = list[Candidate](), list[Error]()
    for config in call.ask["LaunchTemplateConfigs"]:
        named = config["LaunchTemplateSpecification"]
        template = templates.find(call.region, named, call.ago)
        data = templates.data(call.region, named, call.ago)
        at = {"LaunchTemplateId": template.id, "Version": named.get("Version") or "$Default"}
        for override in config.get("Overrides") or [{}]:
            if "InstanceRequirements" in override:
                raise EC2Error("UnsupportedOperation", "The test cloud takes overrides by InstanceType only.")
            spec = _spec(call, data, override, {"aws:ec2:fleet-id": fleet_id, "aws:ec2launchtemplate:id": template.id})
            try:
                candidates += [
                    _candidate(call, market, spec, override=override, template=at, subnet=each)
                    for each in subnets(call, spec)
                ]
            except EC2Error as error:
                unfit.append(({"LaunchTemplateSpecification": at, "Overrides": override}, market, error))
    return candidates, unfit


def _spec(call: CloudCall, template: Ask, override: Mapping[str, Any], system: Mapping[str, str]) -> Ask:
    """Return the template with one override applied, in the form of RunInstances."""
    fleets_tags = [each for each in call.ask.get("TagSpecifications") or () if each.get("ResourceType") != "fleet"]
    tags = [{"Key": key, "Value": value} for key, value in system.items()]
    own = {
        key: override[key] for key in ("InstanceType", "ImageId", "SubnetId", "BlockDeviceMappings") if key in override
    }
    spec = merged(template, own | {"TagSpecifications": [*fleets_tags, {"ResourceType": "instance", "Tags": tags}]})
    if "SubnetId" in own and spec.get("NetworkInterfaces"):
        subnet = spec.pop("SubnetId")
        spec["NetworkInterfaces"] = [{**each, "SubnetId": subnet} for each in spec["NetworkInterfaces"]]
    placement = {**(template.get("Placement") or {}), **(override.get("Placement") or {})}
    if override.get("AvailabilityZone"):
        placement["AvailabilityZone"] = override["AvailabilityZone"]
    return Ask({**spec, "Placement": placement})


def _candidate(
    call: CloudCall,
    market: Market,
    spec: Ask,
    *,
    override: Mapping[str, Any],
    template: Mapping[str, Any],
    subnet: Subnet,
) -> Candidate:
    state, max_price = call.region.state, override.get("MaxPrice")
    wanted = launch_spec_of(
        call, spec, subnet, market, max_usd=float(max_price) if max_price and market == "spot" else None
    )
    pool, weight = wanted.pool, override.get("WeightedCapacity") or 1.0
    if market == "on-demand":
        usd = prices.on_demand(state.behaviour, call.region.name, pool.type)
    else:
        usd = prices.spot(state.behaviour, call.region.name, pool.zone, pool.type)
    dice = Random(f"depth {state.behaviour.seed} {pool.type} {pool.zone}")  # noqa: S311 - reproducible by its seed
    return Candidate(
        override=override,
        template=template,
        launch_spec=wanted,
        weight=weight,
        priority=override.get("Priority", math.inf),
        usd=usd / weight,
        depth=dice.uniform(0.8, 1.25),
    )


def _draw(
    call: CloudCall, candidates: Sequence[Candidate], units: int, options: Mapping[str, Any], planned: Sequence[Pool]
) -> Draw:
    """Take machines from the first group of capacity pools that has enough, otherwise from the group with the most."""
    strategy = str(options.get("AllocationStrategy") or "lowest-price")
    ordered = sorted(candidates, key=_rank(strategy))
    best, errors = Draw((), (), 0.0), list[Error]()
    for group in _groups(ordered, options):
        drawn = _draw_from(call, group, units, planned, spread=strategy == "diversified")
        errors += drawn.errors
        if drawn.units > best.units:
            best = drawn
        if best.units >= units:
            break
    return Draw(best.taken, errors, best.units)


def _rank(strategy: str) -> Callable[[Candidate], float]:
    match strategy.replace("_", "-"):
        case "lowest-price" | "lowestPrice" | "diversified":
            return lambda it: it.usd
        case "prioritized" | "capacity-optimized-prioritized" | "capacityOptimizedPrioritized":
            return lambda it: it.priority
        case "price-capacity-optimized" | "priceCapacityOptimized":
            return lambda it: it.usd / it.depth
        case "capacity-optimized" | "capacityOptimized":
            return lambda it: -it.depth
        case _:
            raise EC2Error("InvalidParameterValue", f"Invalid allocation strategy: {strategy}")


def _groups(ordered: Sequence[Candidate], options: Mapping[str, Any]) -> Iterable[list[Candidate]]:
    """Yield groups of candidates for a fleet. A fleet may mix the candidates of one group."""
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for each in ordered:
        key = (
            each.launch_spec.pool.type if options.get("SingleInstanceType") else "",
            each.launch_spec.pool.zone if options.get("SingleAvailabilityZone") else "",
        )
        groups.setdefault(key, []).append(each)
    return groups.values()


def _draw_from(
    call: CloudCall, group: Sequence[Candidate], units: int, planned: Sequence[Pool], *, spread: bool
) -> Draw:
    counts, left = dict.fromkeys(range(len(group)), 0), float(units)
    refusals: dict[int, EC2Error] = {}
    shares = [math.ceil(units / len(group)), units] if spread and group else [units]
    for share in shares:
        for place, each in enumerate(group):
            if left <= 0 or place in refusals:
                continue
            mine = [group[other].launch_spec.pool for other, count in counts.items() for _ in range(count)]
            wanted = math.ceil(min(left, share) / each.weight)
            got, refusal = room(call.region, each.launch_spec, wanted, [*planned, *mine])
            counts[place] += got
            left -= got * each.weight
            if refusal is not None:
                refusals[place] = refusal
    return Draw(
        [(group[place], count) for place, count in counts.items() if count],
        [(_where(group[place]), group[place].launch_spec.pool.market, refusal) for place, refusal in refusals.items()],
        units - left,
    )


def _where(candidate: Candidate) -> Mapping[str, Any]:
    pool = candidate.launch_spec.pool
    resolved = {
        "InstanceType": pool.type,
        "AvailabilityZone": pool.zone,
        "SubnetId": candidate.launch_spec.subnet.id,
    }
    return {"LaunchTemplateSpecification": candidate.template, "Overrides": {**candidate.override, **resolved}}


def _done(call: CloudCall, fleet_id: str, taken: Sequence[tuple[Candidate, int]], errors: Sequence[Error]) -> Answer:
    refused = partial(call.region.state.faults.first_of, Unauthorized)
    if taken and refused("RunInstances") is not None:
        denied = unauthorized("RunInstances")
        errors, taken = [*errors, *((_where(it), it.launch_spec.pool.market, denied) for it, _ in taken)], []
    started = [
        {
            "LaunchTemplateAndOverrides": _where(each),
            "Lifecycle": each.launch_spec.pool.market,
            "InstanceIds": [instance.id for instance in launch(call.region, each.launch_spec, count)],
            "InstanceType": each.launch_spec.pool.type,
        }
        for each, count in taken
    ]
    failures = [
        {
            "LaunchTemplateAndOverrides": where,
            "Lifecycle": market,
            "ErrorCode": error.code,
            "ErrorMessage": error.message,
        }
        for where, market, error in errors
    ]
    call.region.fleets[fleet_id] = {
        "FleetId": fleet_id,
        "FleetState": "active",
        "Type": "instant",
        "ClientToken": call.ask.get("ClientToken", ""),
        "Instances": started,
        "Errors": failures,
    }
    return {"FleetId": fleet_id, "Instances": started, "Errors": failures}


def _known_fleets(call: CloudCall, ids: Iterable[str]) -> None:
    for each in ids:
        if each not in call.region.fleets:
            raise EC2Error("InvalidFleetId.NotFound", f"The fleet ID '{each}' does not exist")


ACTIONS = {"CreateFleet": create_fleet, "DeleteFleets": delete_fleets, "DescribeFleets": describe_fleets}
