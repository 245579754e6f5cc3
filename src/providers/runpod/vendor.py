"""The terms and error codes of RunPod that the modules of `providers.cloud` need."""

from __future__ import annotations

from dataclasses import replace

from ..cloud.vendor import Vendor

NO_ROOM = "no-instances"  # a code of Outrider's own, because RunPod's errors have only a status and a message
LIMIT = "limit"  # a code of Outrider's own
UNKNOWN = "HTTP 404"
NO_ACCESS = "HTTP 403"
NOT_TAKEN = "HTTP 400"
EXITED = "EXITED"
ERROR = "ERROR"

VENDOR = Vendor(
    name="RunPod",
    service="RunPod",
    causes={
        EXITED: "its container was stopped, as RunPod does where the account has no balance left",
        ERROR: "RunPod says that its container is in an error that it does not recover from",
    },
    quotas=frozenset({LIMIT}),
    # A pod ends itself by a call to RunPod, which RunPod may refuse: error texts must not promise that the pod ends.
    off_is_ended=False,
    price_advice="RunPod's catalogue says none",
)
# The vendor for pools of several nodes that cannot use RunPod's private network.
APART = replace(
    VENDOR,
    warning_of_several="these pods of RunPod's reach each other at no port: only those with GPUs in the secure cloud "
    "have a network of their own: frameworks that connect the ranks of several nodes, such as torch, do not work there",
)
