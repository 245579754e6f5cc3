"""The words and codes of RunPod that the layer of all clouds must know."""

from __future__ import annotations

from dataclasses import replace

from ..cloud.vendor import Vendor

NO_ROOM = "no-instances"  # ours: RunPod's errors have a status and a sentence
LIMIT = "limit"  # likewise
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
    # It ends itself by a call, which RunPod may refuse: so no error promises that.
    off_is_ended=False,
    price_advice="RunPod's catalogue says none",
)
# For pools of several nodes that RunPod has no network for.
APART = replace(
    VENDOR,
    warning_of_several="these pods of RunPod's reach each other at no port: only those with GPUs in the secure cloud "
    "have a network of their own: frameworks that connect the ranks of several nodes, such as torch, do not work there",
)
