"""The terms and error codes of Google Compute Engine that the modules of `providers.cloud` need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..cloud.price_table import bundled_table, cheapest_first
from ..cloud.vendor import Vendor

# Compute Engine's name of a GPU -> (Outrider's name, GB of memory); Google's page "GPU machine types"
GPUS: Final[Mapping[str, tuple[str, float]]] = {
    "nvidia-l4": ("L4", 24), "nvidia-tesla-t4": ("T4", 16), "nvidia-tesla-p4": ("P4", 8),
    "nvidia-tesla-v100": ("V100", 16), "nvidia-tesla-p100": ("P100", 16), "nvidia-tesla-a100": ("A100", 40),
    "nvidia-a100-80gb": ("A100", 80), "nvidia-h100-80gb": ("H100", 80), "nvidia-h100-mega-80gb": ("H100", 80),
    "nvidia-h200-141gb": ("H200", 141), "nvidia-b200": ("B200", 180), "nvidia-gb200": ("GB200", 186),
    "nvidia-rtx-pro-6000": ("RTXPRO6000", 96),
}  # fmt: skip

PREEMPTED, FULL_TIME = "compute.instances.preempted", "time limit"

# Causes of a machine's end. The keys are types of operations in "gcloud compute operations list", and `FULL_TIME`.
CAUSES = {
    PREEMPTED: "spot preemption",
    FULL_TIME: "reached the run time that GCP(max_run_hours=...) or max_lifetime gives it",
    "compute.instances.hostError": "its host failed",
    "compute.instances.terminateOnHostMaintenance": "its host is being serviced",
    "compute.instances.guestTerminate": "powered itself off: its lease ran out or its task shut it down",
    "stop": "somebody else stopped it",
    "delete": "somebody else deleted it",
}


def regions_with(accelerator: str) -> list[str]:
    """Return the regions whose GPU prices in the table include an accelerator (Outrider's name), cheapest first."""
    having = [regions for name, regions in bundled_table(__file__)["gpus"].items() if GPUS[name][0] == accelerator]
    return cheapest_first((region, usd) for regions in having for region, (usd, _) in regions.items())


VENDOR = Vendor(
    name="GCP",
    service="Compute Engine",
    causes=CAUSES,
    interruptions=frozenset({PREEMPTED}),
    quotas=frozenset({"QUOTA_EXCEEDED", "quotaExceeded"}),
    lasting=frozenset({"UNSUPPORTED_OPERATION"}),
    general_purpose=("e2-", "n2-", "n2d-", "t2d-"),
    price_advice="the table of this version has none, so choose other types, or another region",
    # The zones of AI machines have longer names.
    usual_zone=lambda region, zone: zone.startswith(f"{region}-") and len(zone) == len(region) + 2,
    off_is_ended=False,  # a machine that is off still has its disk, which costs money
    user_data_bytes=256 << 10,  # Google's page "About VM metadata": a value has at most 256 KB
    regions_with=regions_with,
)
