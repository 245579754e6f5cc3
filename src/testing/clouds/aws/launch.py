"""`RunInstances`, and the creation of instances within the available capacity."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from ..shared.billing import Bill
from . import prices, templates
from .call import CloudCall
from .capacity import Pool, check
from .describe import reservation
from .faults import Market
from .instance_types import architecture, known, vcpus, zones
from .instances import Instance, SpotRequest, Volume
from .launch_spec import LaunchSpec, launch_spec_of, merged, subnets
from .lifecycle import Lifecycle
from .moto import Subnet
from .protocol import Answer, Ask, EC2Error
from .state import Region
from .tokens import once

OF_A_ZONE = (  # errors after which another zone may still have machines
    "InsufficientFreeAddressesInSubnet",
    "InsufficientInstanceCapacity",
    "SpotMaxPriceTooLow",
    "Unsupported",
)


@once
def run_instances(call: CloudCall) -> Answer:
    spec = merged(templates.data(call.region, call.ask.get("LaunchTemplate"), call.ago), call.ask)
    least, most = call.ask["MinCount"], call.ask["MaxCount"]
    if not 1 <= least <= most:
        words = f"The value for MinCount ({least}) or MaxCount ({most}) is not valid"
        raise EC2Error("InvalidParameterValue", words)
    market: Market = "on-demand"
    options = spec.get("InstanceMarketOptions") or {}
    if options.get("MarketType") == "spot":
        market = "spot"
    max_usd = (options.get("SpotOptions") or {}).get("MaxPrice")
    launch_spec, count = _where_most(
        call, spec, market, least=least, most=most, max_usd=float(max_usd) if max_usd else None
    )
    started = launch(call.region, launch_spec, count)
    return reservation(started, call.region)


def room(region: Region, wanted: LaunchSpec, most: int, planned: Sequence[Pool] = ()) -> tuple[int, EC2Error | None]:
    """Return how many of these machines are available, up to ``most``; with EC2's error if there are fewer."""
    mine: list[Pool] = []
    free = len(_free_addresses(region, wanted.subnet, most)) if most else 0
    while len(mine) < most:
        try:
            check(region, wanted.pool, [*planned, *mine], wanted.max_usd)
        except EC2Error as error:
            return len(mine), error
        if len(mine) == free:
            words = f"There are not enough free addresses in subnet '{wanted.subnet.id}'"
            why = "to satisfy the requested number of instances."
            return len(mine), EC2Error("InsufficientFreeAddressesInSubnet", f"{words} {why}")
        mine.append(wanted.pool)
    return len(mine), None


def launch(region: Region, wanted: LaunchSpec, count: int) -> list[Instance]:
    """Create ``count`` machines, for which there must be capacity."""
    state = region.state
    reserved, started = state.new_id("r"), []
    for index, address in enumerate(_free_addresses(region, wanted.subnet, count)):
        instance = _instance(region, wanted, reserved, index, address)
        region.instances.put(instance.id, instance)
        for volume in _volumes(region, wanted, instance):
            region.volumes.put(volume.id, volume)
        if instance.spot_request is not None:
            request = SpotRequest(
                id=instance.spot_request,
                instance=instance.id,
                type=instance.type,
                zone=instance.zone,
                state="active",
                status="fulfilled",
                created=instance.launched,
                tags=wanted.tags["spot-instances-request"],
            )
            region.spot_requests.put(request.id, request)
        bill = Bill(
            id=instance.id,
            type=instance.type,
            zone=instance.zone,
            market=instance.market,
            hourly_usd=instance.hourly_usd,
            launched=state.clock.unix(),
        )
        state.ledger.open(bill)
        region.lives[instance.id] = life = Lifecycle(region, instance.id)
        life.begin()
        started.append(instance)
    assigned = region.assigned_addresses
    assigned[wanted.subnet.id] = assigned.get(wanted.subnet.id, 0) + count
    return started


# --- helpers ----------------------------------------------------------------------------------------------------------


def _where_most(
    call: CloudCall, spec: Ask, market: Market, *, least: int, most: int, max_usd: float | None
) -> tuple[LaunchSpec, int]:
    """Choose the zone with the most available machines, as one launch uses one zone."""
    best: tuple[LaunchSpec, int] | None = None
    refusal: EC2Error | None = None
    places = subnets(call, spec)
    offered = zones(call.region.name).get(spec.get("InstanceType", ""), frozenset())
    for subnet in [each for each in places if each.zone in offered] or places:
        wanted = launch_spec_of(call, spec, subnet, market, max_usd=max_usd)
        count, error = room(call.region, wanted, most)
        refusal = refusal or error
        if best is None or count > best[1]:
            best = wanted, count
        if error is None or error.code not in OF_A_ZONE:
            break
    assert best is not None, "there is a subnet"
    if best[1] < least:
        assert refusal is not None, "fewer than wanted, and nobody refused"
        raise refusal
    return best


def _instance(region: Region, wanted: LaunchSpec, reserved: str, index: int, address: str) -> Instance:
    state, pool, spec = region.state, wanted.pool, wanted.spec
    interfaces = spec.get("NetworkInterfaces") or [{}]
    public = interfaces[0].get("AssociatePublicIpAddress")
    if public is None:
        public = wanted.subnet.public and state.behaviour.public_ips and len(interfaces) == 1
    profile = spec.get("IamInstanceProfile") or {}
    if pool.market == "spot":
        price = prices.spot(state.behaviour, region.name, pool.zone, pool.type)
    else:
        price = prices.on_demand(state.behaviour, region.name, pool.type)
    kind = known(state.behaviour.types, region.name, pool.type)
    return Instance(
        id=state.new_id("i"),
        reservation=reserved,
        region=region.name,
        zone=pool.zone,
        subnet=wanted.subnet.id,
        vpc=wanted.subnet.vpc,
        type=pool.type,
        vcpus=vcpus(kind),
        architecture=architecture(kind),
        market=pool.market,
        hourly_usd=price,
        image=wanted.image.id,
        private_ip=address,
        public_ip=_public(address) if public else None,
        launched=state.clock.now(),
        groups=wanted.groups,
        tags=wanted.tags["instance"],
        user_data=spec.get("UserData") or "",
        key_name=spec.get("KeyName"),
        public_key=wanted.public_key,
        on_shutdown=spec.get("InstanceInitiatedShutdownBehavior") or "stop",
        placement_group=(spec.get("Placement") or {}).get("GroupName"),
        profile=profile.get("Arn") or profile.get("Name"),
        volumes=tuple((device, state.new_id("vol")) for device in _devices(wanted)),
        root_device=wanted.image.root_device,
        spot_request=state.new_id("sir") if pool.market == "spot" else None,
        token=spec.get("ClientToken", ""),
        index=index,
        metadata_options=spec.get("MetadataOptions") or {},
        efa=any(str(each.get("InterfaceType", "")).startswith("efa") for each in interfaces),
    )


def _devices(wanted: LaunchSpec) -> dict[str, Mapping[str, Any]]:
    """Return the image's devices, the root first, and the launch's devices, which override the image's settings."""
    image = wanted.image
    devices: dict[str, Mapping[str, Any]] = {image.root_device: {}, **image.volumes}
    for each in wanted.spec.get("BlockDeviceMappings") or ():
        if "Ebs" in each:
            devices[each["DeviceName"]] = {**devices.get(each["DeviceName"], {}), **(each["Ebs"] or {})}
    return devices


def _volumes(region: Region, wanted: LaunchSpec, instance: Instance) -> list[Volume]:
    devices = _devices(wanted)
    return [
        Volume(
            id=name,
            instance=instance.id,
            device=device,
            zone=instance.zone,
            size_gb=devices[device].get("VolumeSize") or 8,
            kind=devices[device].get("VolumeType") or "gp3",
            encrypted=bool(devices[device].get("Encrypted")),
            delete_with_instance=bool(devices[device].get("DeleteOnTermination", True)),
            created=region.state.clock.now(),
            tags=wanted.tags["volume"],
        )
        for device, name in instance.volumes
    ]


def _free_addresses(region: Region, subnet: Subnet, count: int) -> list[str]:
    """Return up to ``count`` free addresses, beginning after the last assigned one."""
    used = {each.private_ip for each in region.instances.all() if each.state != "terminated"}
    start = 0 if region.state.behaviour.recycle_addresses else region.assigned_addresses.get(subnet.id, 0)
    hosts = _hosts(subnet.cidr)
    free = (host for place in range(len(hosts)) if (host := hosts[(start + place) % len(hosts)]) not in used)
    return list(islice(free, count))


@cache
def _hosts(cidr: str) -> list[str]:
    """Return the addresses of a subnet without the first four and the last, which EC2 reserves."""
    return [str(each) for each in list(ipaddress.ip_network(cidr))[4:-1]]


def _public(private: str) -> str:
    """Return the public address for a private one: 198.18.y.z for w.x.y.z, in a range reserved for tests (RFC 2544)."""
    return f"198.18.{private.split('.', 2)[2]}"


ACTIONS = {"RunInstances": run_instances}
