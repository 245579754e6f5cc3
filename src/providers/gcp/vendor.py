"""The words and codes of Google Compute Engine that the layer of all clouds must know."""

from __future__ import annotations

from ..cloud.vendor import Vendor
from .prices import regions_with

PREEMPTED, FULL_TIME, HOST = "compute.instances.preempted", "time limit", "compute.instances.hostError"

# Types of operations, as "gcloud compute operations list" shows them, and `FULL_TIME`
CAUSES = {
    PREEMPTED: "spot preemption",
    FULL_TIME: "reached the run time that GCP(max_run_hours=...) or max_lifetime gives it",
    HOST: "its host failed",
    "compute.instances.terminateOnHostMaintenance": "its host is being serviced",
    "compute.instances.guestTerminate": "powered itself off: its lease ran out or its task shut it down",
    "stop": "somebody else stopped it",
    "delete": "somebody else deleted it",
}

VENDOR = Vendor(
    name="GCP",
    service="Compute Engine",
    causes=CAUSES,
    interruptions=frozenset({PREEMPTED}),
    quotas=frozenset({"QUOTA_EXCEEDED", "quotaExceeded"}),
    lasting=frozenset({"UNSUPPORTED_OPERATION"}),
    general_purpose=("e2-", "n2-", "n2d-", "t2d-"),
    price_advice="the table of this version has none, so choose other types, or another region",
    usual_zone=lambda region, zone: zone.startswith(f"{region}-") and len(zone) == len(region) + 2,  # no AI zones
    off_is_ended=False,  # its disk is left
    user_data_bytes=256 << 10,  # "About VM metadata": a value has at most 256 KB
    regions_with=regions_with,
)
