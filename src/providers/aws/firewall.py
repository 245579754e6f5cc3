"""Decide the rules of a pool's security group: port 22 for its client, everything among its machines. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ...lazy_dataclass import dataclass

SSH = 22
Direction = Literal["ingress", "egress"]


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A rule. ``peer``: a CIDR, or a group's id. ``port`` None: all traffic."""

    direction: Direction
    peer: str
    port: int | None = None

    @property
    def is_door(self) -> bool:
        return self.direction == "ingress" and self.port == SSH and not self.peer.startswith("sg-")

    def permission(self) -> dict[str, Any]:
        """The rule in the form of EC2's calls."""
        said: dict[str, Any] = {"IpProtocol": "-1"}
        if self.port is not None:
            said = {"IpProtocol": "tcp", "FromPort": self.port, "ToPort": self.port}
        if self.peer.startswith("sg-"):
            return said | {"UserIdGroupPairs": [{"GroupId": self.peer}]}
        if ":" in self.peer:
            return said | {"Ipv6Ranges": [{"CidrIpv6": self.peer}]}
        return said | {"IpRanges": [{"CidrIp": self.peer}]}


OUT: frozenset[Rule] = frozenset({Rule("egress", "0.0.0.0/0")})  # present in every new group


def wanted(group: str, ssh_from: Iterable[str], *, efa: bool) -> set[Rule]:
    """The rules of a pool's group.

    EFA is not IP, so a rule "to everywhere" does not cover it: it needs an egress rule to the group itself ("Get
    started with EFA", EC2 guide).
    """
    among = {Rule("ingress", group)} | ({Rule("egress", group)} if efa else set())
    return among | {Rule("ingress", cidr, SSH) for cidr in ssh_from}


def rules_of(group: Mapping[str, Any]) -> set[Rule]:
    """Parse the rules in an answer of DescribeSecurityGroups, of the kinds that a pool's group has."""
    rules: set[Rule] = set()
    directions: tuple[tuple[Direction, str], ...] = (
        ("ingress", "IpPermissions"),
        ("egress", "IpPermissionsEgress"),
    )
    for direction, key in directions:
        for said in group.get(key, ()):
            one_port = said.get("FromPort") == said.get("ToPort") and said["IpProtocol"] == "tcp"
            if not one_port and said["IpProtocol"] != "-1":
                continue
            port = int(said["FromPort"]) if said["IpProtocol"] == "tcp" else None
            peers = [each["CidrIp"] for each in said.get("IpRanges", ())]
            peers += [each["CidrIpv6"] for each in said.get("Ipv6Ranges", ())]
            peers += [each["GroupId"] for each in said.get("UserIdGroupPairs", ())]
            rules |= {Rule(direction, peer, port) for peer in peers}
    return rules
