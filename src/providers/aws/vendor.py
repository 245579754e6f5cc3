"""The words and codes of Amazon EC2 that the layer of all clouds must know."""

from __future__ import annotations

from ..cloud.vendor import Vendor
from .prices import regions_with

# "StateReason" in the EC2 API Reference, and "Troubleshoot instance launch issues" in the EC2 user guide
CAUSES = {
    "Server.SpotInstanceTermination": "spot interruption",
    "Server.SpotInstanceShutdown": "spot interruption",
    "Server.InsufficientInstanceCapacity": "EC2 had no capacity to start it after all",
    "Server.InternalError": "EC2 failed to start it",
    "Server.ScheduledStop": "EC2 retired its host",
    "Client.InstanceInitiatedShutdown": "powered itself off: its lease ran out or its task shut it down",
    "Client.InstanceTerminated": "somebody else terminated it",
    "Client.InternalError": "it could not start; may the account use the key that encrypts its volume?",
    "Client.UserInitiatedShutdown": "somebody else terminated it",
    "Client.UserInitiatedHibernate": "somebody else stopped it",
    "Client.VolumeLimitExceeded": "the account's limit for EBS volumes is reached",
}
INTERRUPTIONS = frozenset({
    "Server.SpotInstanceTermination", "Server.SpotInstanceShutdown", "Server.InsufficientInstanceCapacity"
})  # fmt: skip


# Permanent failures: the type is not sold in that zone to this account, or the owner must request it.
LASTING = frozenset({"Unsupported", "InstanceTypeNotSupported", "InvalidAvailabilityZone", "OptInRequired"})
QUOTAS = frozenset({"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded"})


def usual_zone(region: str, zone: str) -> bool:
    """Return whether a zone is one of the region's own: named like it plus a letter. Local ones are not."""
    return zone.startswith(region) and len(zone) == len(region) + 1


VENDOR = Vendor(
    name="AWS",
    service="EC2",
    causes=CAUSES,
    interruptions=INTERRUPTIONS,
    quotas=QUOTAS,
    lasting=LASTING,
    general_purpose=("m", "c", "r"),
    price_advice="allow pricing:GetProducts",
    usual_zone=usual_zone,
    regions_with=regions_with,
)
