"""The terms and error codes of Amazon EC2 that the modules of `providers.cloud` need."""

from __future__ import annotations

from ..cloud.vendor import Vendor
from .prices import regions_with
from .quotas import OF_VCPUS

VENDOR = Vendor(
    name="AWS",
    service="EC2",
    # "StateReason" in the EC2 API Reference, and "Troubleshoot instance launch issues" in the EC2 user guide
    causes={
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
    },
    interruptions=frozenset({
        "Server.SpotInstanceTermination", "Server.SpotInstanceShutdown", "Server.InsufficientInstanceCapacity"
    }),
    quotas=OF_VCPUS,
    # Permanent failures: the type is not sold in that zone to this account, or the owner must request it.
    lasting=frozenset({"Unsupported", "InstanceTypeNotSupported", "InvalidAvailabilityZone", "OptInRequired"}),
    general_purpose=("m", "c", "r"),
    price_advice="allow pricing:GetProducts",
    usual_zone=lambda region, zone: zone.startswith(region) and len(zone) == len(region) + 1,  # excludes local zones
    regions_with=regions_with,
)  # fmt: skip
