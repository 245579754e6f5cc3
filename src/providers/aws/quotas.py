"""The quota of an account that an instance type counts against. A table, without I/O.

Names and codes: "Amazon EC2 endpoints and quotas", AWS General Reference, and "Spot Instance quotas", EC2 User Guide.
"""

from __future__ import annotations

import re
from typing import Literal

from ...lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota, named as in the Service Quotas console and ``aws service-quotas``. ``code`` empty: not listed there."""

    name: str
    code: str
    service: Literal["ec2", "vpc", "ebs"] = "ec2"

    def __str__(self) -> str:
        return f"the quota {self.name!r}" + (f" ({self.service} {self.code})" if self.code else "")

    def console(self, region: str) -> str:
        """The place to request an increase: a URL, or AWS Support."""
        if not self.code:
            return "AWS Support"
        place = f"{region}." if region else ""
        return f"https://{place}console.aws.amazon.com/servicequotas/home/services/{self.service}/quotas/{self.code}"


# By the beginning of a type's name, up to its generation: the quotas in vCPUs, (on demand, spot).
_STANDARD = (
    Quota("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", "L-1216C47A"),
    Quota("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", "L-34B43A08"),
)
_G_AND_VT = (
    Quota("Running On-Demand G and VT instances", "L-DB2E81BA"),
    Quota("All G and VT Spot Instance Requests", "L-3819A6DF"),
)
_FAMILIES: dict[str, tuple[Quota, Quota | None]] = {
    "dl": (Quota("Running On-Demand DL instances", "L-6E869C2A"), Quota("All DL Spot Instance Requests", "L-85EED4F7")),
    "f": (Quota("Running On-Demand F instances", "L-74FC7D96"), Quota("All F Spot Instance Requests", "L-88CF9481")),
    "g": _G_AND_VT,
    "gr": _G_AND_VT,
    "vt": _G_AND_VT,
    "hpc": (Quota("Running On-Demand HPC instances", "L-F7808C92"), None),
    "inf": (
        Quota("Running On-Demand Inf instances", "L-1945791B"),
        Quota("All Inf Spot Instance Requests", "L-B5D1601B"),
    ),
    "p": (Quota("Running On-Demand P instances", "L-417A185B"), Quota("All P Spot Instance Requests", "L-7212CCBC")),
    "trn": (
        Quota("Running On-Demand Trn instances", "L-2C3B7624"),
        Quota("All Trn Spot Instance Requests", "L-6B0D517C"),
    ),
    "u": (Quota("Running On-Demand High Memory instances", "L-43DA4232"), None),
    "x": (Quota("Running On-Demand X instances", "L-7295265B"), Quota("All X Spot Instance Requests", "L-E3A00192")),
}

_OTHERS = {
    "AddressLimitExceeded": Quota("EC2-VPC Elastic IPs", "L-0263D0A3"),
    "MaxIOPSLimitExceeded": Quota("IOPS for Provisioned IOPS SSD volumes", "", "ebs"),
    "NetworkInterfaceLimitExceeded": Quota("Network interfaces per Region", "L-DF5E4CA3", "vpc"),
    "PlacementGroupLimitExceeded": Quota("placement groups per Region", ""),
    "RulesPerSecurityGroupLimitExceeded": Quota("Inbound or outbound rules per security group", "L-0EA8095F", "vpc"),
    "SecurityGroupLimitExceeded": Quota("VPC security groups per Region", "L-E79EC296", "vpc"),
    "SecurityGroupsPerInterfaceLimitExceeded": Quota("Security groups per network interface", "L-2AFB9258", "vpc"),
    "VolumeLimitExceeded": Quota("Storage for General Purpose SSD (gp3) volumes, in TiB", "L-7A658B76", "ebs"),
}
_OF_VCPUS = frozenset({"InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})


def of_type(instance_type: str, *, spot: bool) -> Quota | None:
    """The vCPU quota of ``"g5.xlarge"``; None: its family has none for that market, or the type is unknown."""
    letters = re.match(r"[a-z]+", instance_type)
    if letters is None:
        return None
    known = _FAMILIES.get(letters[0]) or (_STANDARD if letters[0][0] in "acdhimrtz" else None)
    return known and known[spot]


def of_code(code: str, instance_type: str, *, spot: bool) -> Quota | None:
    """The quota that an EC2 error is about; None where that is unknown."""
    if code in _OF_VCPUS:
        return of_type(instance_type, spot=spot or code.startswith("MaxSpot"))
    return _OTHERS.get(code)
