"""The terms and error codes of Hyperstack that the modules of `providers.cloud` need."""

from __future__ import annotations

from ..cloud.vendor import Vendor

UNKNOWN = "not_found"

# Costs by the state of a machine: SHUTOFF is billed like ACTIVE, and ERROR is not billed ("States and billing" in
# Hyperstack's documentation).
VENDOR = Vendor(
    name="Hyperstack",
    service="Hyperstack",
    causes={
        "SHUTOFF": "it was powered off, and costs money until it is deleted",
        "HIBERNATED": "it was hibernated, and its disk costs money until it is deleted",
        "ERROR": "Hyperstack could not start it, or has lost it",
        "DELETING": "it was deleted, or Hyperstack has taken it back",
        "DELETED": "it was deleted, or Hyperstack has taken it back",
    },
    price_advice="name other types, or see https://www.hyperstack.cloud/gpu-pricing",
    off_is_ended=False,
    warning="if this program is killed, nothing ends its machines at Hyperstack by itself: they power themselves off "
    "and cost as much as before, until `outrider gc --apply` ends them",
)
