"""The account quotas that limit each instance type. A table, without I/O.

Names and codes: "Amazon EC2 endpoints and quotas", AWS General Reference, and "Spot Instance quotas", EC2 User Guide.
"""

from __future__ import annotations

import re
from typing import Literal

from ...lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota, named as in the Service Quotas console and ``aws service-quotas``. ``code``: empty if not listed
    there.
    """

    name: str
    code: str
    service: Literal["ec2", "vpc", "ebs"] = "ec2"

    def __str__(self) -> str:
        return f"the quota {self.name!r}" + (f" ({self.service} {self.code})" if self.code else "")

    def console(self, region: str) -> str:
        """Return where to request an increase: a URL, or AWS Support."""
        if not self.code:
            return "AWS Support"
        place = f"{region}." if region else ""
        return f"https://{place}console.aws.amazon.com/servicequotas/home/services/{self.service}/quotas/{self.code}"


# By the first letters of a type's name, before its generation: the name of the types in two vCPU quotas, and the codes
# of these quotas, on demand and spot. An empty code: there is no such quota.
_STANDARD = ("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08")
_G_AND_VT = ("G and VT", "L-DB2E81BA", "L-3819A6DF")
_FAMILIES = {
    "dl": ("DL", "L-6E869C2A", "L-85EED4F7"),
    "f": ("F", "L-74FC7D96", "L-88CF9481"),
    "g": _G_AND_VT,
    "gr": _G_AND_VT,
    "vt": _G_AND_VT,
    "hpc": ("HPC", "L-F7808C92", ""),
    "inf": ("Inf", "L-1945791B", "L-B5D1601B"),
    "p": ("P", "L-417A185B", "L-7212CCBC"),
    "trn": ("Trn", "L-2C3B7624", "L-6B0D517C"),
    "u": ("High Memory", "L-43DA4232", ""),
    "x": ("X", "L-7295265B", "L-E3A00192"),
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
OF_VCPUS = frozenset({"InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})


def of_type(instance_type: str, *, spot: bool) -> Quota | None:
    """Return the vCPU quota of ``"g5.xlarge"``; None: its family has none for that market, or the type is unknown."""
    letters = re.match(r"[a-z]+", instance_type)
    if letters is None:
        return None
    known = _FAMILIES.get(letters[0]) or (_STANDARD if letters[0][0] in "acdhimrtz" else ("", "", ""))
    types, on_demand_code, spot_code = known
    name = f"All {types} Spot Instance Requests" if spot else f"Running On-Demand {types} instances"
    code = spot_code if spot else on_demand_code
    return Quota(name, code) if code else None


def of_code(code: str, instance_type: str, *, spot: bool) -> Quota | None:
    """Return the quota that an EC2 error is about; None: unknown."""
    if code in OF_VCPUS:
        return of_type(instance_type, spot=spot or code.startswith("MaxSpot"))
    return _OTHERS.get(code)
