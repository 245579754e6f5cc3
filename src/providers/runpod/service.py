"""RunPod's interface, REST v2: its address, rate limits, the meanings of its errors, and where the API key is looked
for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..cloud.api_key import ApiKeys
from ..cloud.failures import CallRefused, Meanings
from ..cloud.http import Service
from ..errors import NoCapacity, NotAuthorized, QuotaExceeded
from .vendor import LIMIT, NO_ROOM, UNKNOWN

URL = "https://api.runpod.io"
VERSION = "/v2"
KEY = "RUNPOD_API_KEY"
KEYS = ApiKeys(provider="RunPod", name="runpod", variable=KEY, page="https://console.runpod.io/user/settings")
PODS = "/pods"
# RunPod allows 60 requests a minute, 3,000 an hour and 50,000 a day: header RateLimit-Policy in its documentation.
LIMITS = {"calls": (20.0, 0.65)}
CAPACITY_AGAIN_S = 30.0
# RunPod reports missing capacity with status 400, the message "There are no longer any instances available with the
# requested specifications." and no documented code. The other patterns cover similar messages.
_NO_ROOM = re.compile(
    r"instances? (currently )?available|out of (stock|capacity)|not have the resources"
    r"|(no|not enough|insufficient) (free |gpu )?(capacity|gpus)",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"\bquota\b|(spend|spending|rental|pod|account) limit|limit (of|on) .*pods", re.IGNORECASE)

MEANINGS: Meanings = (
    (NotAuthorized, {
        "HTTP 401": f"RunPod does not accept the API key: make one at {KEYS.page}, and set {KEY} to it",
        "HTTP 402":
            "the RunPod account has no balance left: add credits at https://console.runpod.io/user/billing",
    }),
    (QuotaExceeded, {LIMIT: "a limit of the RunPod account is reached: ask RunPod's support for more"}),
    (NoCapacity, {NO_ROOM: "RunPod has no such machine left there now"}),
    (CallRefused, {UNKNOWN: "RunPod does not know what was asked for"}),
)  # fmt: skip


def service(endpoint_url: str | None) -> Service:
    """Return the description of RunPod's interface. ``endpoint_url``: another address than RunPod's, without the
    version.
    """
    return Service(
        name="RunPod",
        extra="runpod",
        base_url=f"{base(endpoint_url)}{VERSION}",
        limits=LIMITS,
        limits_of=lambda method, path: ("calls",),  # noqa: ARG005
        meanings=MEANINGS,
        again_after_s={NO_ROOM: CAPACITY_AGAIN_S},
        words_of=words_of,
        credentials=f"set {KEY} to a key of {KEYS.page}",
    )


def base(endpoint_url: str | None) -> str:
    return (endpoint_url or URL).rstrip("/")


def words_of(body: object) -> tuple[str, str]:
    """Return code and message of an error response (RFC 9457). The code is one of Outrider's; empty: use the HTTP
    status.
    """
    if not isinstance(body, Mapping):
        return "", ""
    errors = body.get("errors")
    listed = [each for each in errors if isinstance(each, str)] if isinstance(errors, list) else []
    message = " ".join([str(body.get("detail") or body.get("title") or ""), *listed])
    refused = body.get("status") in {400, 403}
    code = NO_ROOM if refused and _NO_ROOM.search(message) else LIMIT if refused and _LIMIT.search(message) else ""
    return code, message
