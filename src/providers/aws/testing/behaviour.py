"""`Behaviour`: how the cloud is, as opposed to what goes wrong in it at some moment (`faults`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FAMILIES = (  # of instance types, as glob patterns: DescribeInstanceTypes over all 1395 takes a client seconds
    "t3.*", "t4g.*", "c7i.*", "c7g.*", "m7i.*", "m7g.*", "r7i.*", "r7g.*", "c7gn.*",
    "g4dn.*", "g5.*", "g5g.*", "g6.*", "g6e.*", "p3.*", "p4d.*", "p4de.*", "p5.*", "trn1.*", "inf2.*",
)  # fmt: skip

VPC_CIDR = "172.31.0.0/16"  # in EC2, and in moto


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """EC2's semantics with short times; give EC2's own (in the comments) where a test is about them.

    ``stale_s``: how old the answers to describe calls are; a thing that is younger does not exist yet (NotFound).
    ``wavering``: each answer is of an age between 0 and that, so that a later one may show an earlier state.
    ``terse_repeats``: a CreateFleet that is repeated with its token is answered by the fleet's id alone.
    ``throttled``: request buckets as EC2's. ``spot_usd``, ``on_demand_usd``: prices by type, or by "type zone";
    what is not there is made up, plausibly, from the seed. ``quotas``: vCPUs by quota code, as ``L-1216C47A``.
    """

    seed: int = 0
    boot_s: float = 0.05  # pending until then: 5 to 30 s
    stop_s: float = 0.05  # shutting-down until then: 10 to 60 s
    remembered_s: float = 3600.0  # a terminated instance is described until then
    stale_s: float = 0.0  # up to several seconds
    wavering: bool = False
    terse_repeats: bool = False
    throttled: bool = False
    recycle_addresses: bool = False  # a new machine has the lowest free address, as if the former one were back
    types: tuple[str, ...] = FAMILIES  # glob patterns; ("*",) for all
    spot_usd: Mapping[str, float] = field(default_factory=dict)
    on_demand_usd: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    public_ips: bool = True  # False: subnets do not give any
    default_vpc: bool = True
    vpc_cidr: str = VPC_CIDR  # the default VPC's addresses, divided among its zones
