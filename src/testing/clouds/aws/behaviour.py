"""`Behaviour`: the cloud's permanent settings. Errors that tests inject at some moment are in `faults`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ....lazy_dataclass import dataclass

FAMILIES = (  # glob patterns of the default instance types: a client needs seconds to describe all 1395 types
    "t3.*", "t4g.*", "c7i.*", "c7g.*", "m7i.*", "m7g.*", "r7i.*", "r7g.*", "c7gn.*",
    "g4dn.*", "g5.*", "g5g.*", "g6.*", "g6e.*", "p3.*", "p4d.*", "p4de.*", "p5.*", "trn1.*", "inf2.*",
)  # fmt: skip

VPC_CIDR = "172.31.0.0/16"  # addresses of the default VPC in EC2 and in moto


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """EC2's semantics with short times; pass EC2's own times (in the comments) if a test depends on them.

    Args:
        seed: The seed of everything random, such as made-up prices.
        boot_s: Seconds of pending. EC2's: 5 to 30.
        stop_s: Seconds of shutting-down. EC2's: 10 to 60.
        remembered_s: Seconds for which terminated instances are described.
        stale_s: The age of answers to describe calls; younger resources do not exist yet (NotFound). EC2's: up to
            several seconds.
        wavering: Whether the age of each answer is drawn between 0 and ``stale_s``, so that a later answer may show an
            earlier state.
        terse_repeats: Whether a CreateFleet that is repeated with its token gets only the fleet's id.
        throttled: Whether requests are limited as by EC2.
        recycle_addresses: Whether a new machine gets the lowest free address, perhaps that of a former one.
        types: Glob patterns of the instance types. ``("*",)``: all.
        spot_usd: Spot prices by type, or by "type zone". Others are made up, plausibly, from the seed.
        on_demand_usd: On-demand prices, in the same way.
        quotas: vCPUs by quota code, such as ``L-1216C47A``.
        public_ips: Whether subnets give public addresses.
        default_vpc: Whether there is a default VPC.
        vpc_cidr: The addresses of the default VPC, divided among its zones.
    """

    seed: int = 0
    boot_s: float = 0.05  # duration of pending; EC2's: 5 to 30 s
    stop_s: float = 0.05  # duration of shutting-down; EC2's: 10 to 60 s
    remembered_s: float = 3600.0  # how long terminated instances are described
    stale_s: float = 0.0  # age of lists in seconds; EC2's: up to several seconds
    wavering: bool = False
    terse_repeats: bool = False
    throttled: bool = False
    recycle_addresses: bool = False  # a new machine gets the lowest free address, perhaps that of a former one
    types: tuple[str, ...] = FAMILIES  # glob patterns; ("*",) means all
    spot_usd: Mapping[str, float] = field(default_factory=dict)
    on_demand_usd: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    public_ips: bool = True  # False: subnets assign no public addresses
    default_vpc: bool = True
    vpc_cidr: str = VPC_CIDR  # addresses of the default VPC, divided among its zones
