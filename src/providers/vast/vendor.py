"""The terms and error codes of Vast.ai that the modules of `providers.cloud` need."""

from __future__ import annotations

from ..cloud import rented_container, userdata
from ..cloud.vendor import Vendor

TAKEN = "no_such_ask"
STALE_PRICE = "invalid_price"
NO_CREDIT = "insufficient_credit"
UNKNOWN = frozenset({"no_such_instance", "instances_not_found"})
OUTBID = "outbid"
STOPPED = "stopped"

APART = (
    "machines of Vast.ai are in different places, and reach each other at no port: frameworks that connect the ranks "
    "of several nodes, such as torch, do not work there; take one node with several GPUs, or tasks without ranks"
)

VENDOR = Vendor(
    name="Vast",
    service="Vast.ai",
    causes={
        OUTBID: "somebody bid more for its GPUs, or rented them on demand, and Vast.ai has stopped it",
        STOPPED: "Vast.ai has stopped it: its host, its rental's end or the account's credit may be why",
    },
    interruptions=frozenset({OUTBID}),
    quotas=frozenset({NO_CREDIT}),
    first_lease_more_s=rented_container.GRACE_S - userdata.GRACE_S,
    warning_of_several=APART,
    price_advice="Vast.ai's offers say none",
)
