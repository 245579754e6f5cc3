"""The terms and error codes of Lambda that the modules of `providers.cloud` need."""

from __future__ import annotations

from ..cloud.vendor import Vendor

NO_ROOM = "instance-operations/launch/insufficient-capacity"
QUOTA = "global/quota-exceeded"
UNKNOWN = "global/object-does-not-exist"
PREEMPTED = "preempted"
USER = "ubuntu"  # the login name in all of Lambda's images

STILL_BILLED = (
    "Lambda bills a machine until it is terminated, also when it is powered off: if this program is killed, its "
    "machines stop working, and cost money until `outrider gc --apply` ends them"
)

VENDOR = Vendor(
    name="Lambda",
    service="Lambda",
    causes={PREEMPTED: "Lambda has taken it back", "unhealthy": "Lambda says that it is unhealthy"},
    interruptions=frozenset({PREEMPTED}),
    quotas=frozenset({QUOTA}),
    off_is_ended=False,
    price_advice="Lambda's list of types says none",
    warning=STILL_BILLED,
    user_data_bytes=1 << 20,  # bytes; "cannot exceed 1MB in size": InstanceLaunchRequest in Lambda Cloud API 1.10.0
)
