"""How EC2's lists are read."""

from __future__ import annotations

from outrider.providers.aws import cloud
from outrider.providers.base import MachineId
from outrider.providers.cloud.inventory import InstanceView
from outrider.providers.shared.resource_ownership import Claim

ONE = MachineId("i-1")


def test_an_instance_is_read_as_ec2_tells_it() -> None:
    instance = {
        "InstanceId": "i-1",
        "State": {"Name": "shutting-down", "Code": 32},
        "StateReason": {"Code": "Server.SpotInstanceTermination", "Message": "as it says"},
        "PublicIpAddress": "198.51.100.7",
        "PrivateIpAddress": "10.0.0.7",
        "Tags": [{"Key": "outrider:pool", "Value": "p"}, {"Key": "outrider:launch", "Value": "t"}],
    }
    (read,) = cloud.views_of([instance], Claim("p", unanswered=frozenset("t")))
    assert read == InstanceView(
        ONE, "shutting-down", "198.51.100.7", "10.0.0.7", "Server.SpotInstanceTermination", "as it says", "t"
    )
    assert cloud.views_of([instance], Claim("p")) == []  # only the tag of a pool, which everybody may copy
    assert cloud.views_of([instance]) == [read]
