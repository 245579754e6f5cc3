"""Security groups: moto stores them; this module decides whether they are visible yet, and which machines use them."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from .call import CloudCall
from .protocol import EC2Error


def check(call: CloudCall, parameters: Mapping[str, str]) -> None:
    """Check the security groups that a call names.

    Raises:
        EC2Error: A group is too young to be visible, or is to be deleted while in use.
    """
    region = call.region
    region.check_young(parameters.values(), call.ago)
    if call.action == "DeleteSecurityGroup":
        named = {parameters.get("GroupId"), parameters.get("GroupName")}
        used = {
            each for it in region.instances.all() if it.state != "terminated" for group in it.groups for each in group
        }
        if named & used:
            raise EC2Error("DependencyViolation", f"resource {(named & used).pop()} has a dependent object")


def heard(call: CloudCall, answer: bytes) -> bytes:
    """Remove from ``answer`` the groups that are too new to be visible; record the creation times of new groups."""
    if call.action == "CreateSecurityGroup":
        group_id = ET.fromstring(answer).findtext("{*}groupId")  # noqa: S314 - XML from moto in this process
        if group_id:
            call.region.young[group_id] = call.region.state.clock.now()
    if call.action != "DescribeSecurityGroups" or not call.ago:
        return answer
    root = ET.fromstring(answer)  # noqa: S314 - XML from moto in this process
    for listed in root.findall("{*}securityGroupInfo"):
        for item in list(listed):
            if call.region.is_young(item.findtext("{*}groupId", ""), call.ago):
                listed.remove(item)
    return ET.tostring(root)
