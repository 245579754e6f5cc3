"""Lambda's interface: its address, rate limits, the meanings of its errors, and the user's key."""

from __future__ import annotations

from ..cloud.api_key import ApiKeys
from ..cloud.failures import CallRefused, Meanings
from ..cloud.http import Service
from ..errors import BadRequest, NoCapacity, NotAuthorized, QuotaExceeded
from .vendor import NO_ROOM, QUOTA, UNKNOWN

URL = "https://cloud.lambda.ai"
VERSION = "/api/v1"
KEY = "LAMBDA_API_KEY"
KEYS_PAGE = "https://cloud.lambda.ai/api-keys"
KEYS = ApiKeys(provider="Lambda", name="lambda", variable=KEY, page=KEYS_PAGE)
LAUNCH = "/instance-operations/launch"
# Lambda Cloud API 1.10.0 allows "one request per second", and for launches "one request every 12 seconds, or five
# requests per minute". Launches are 12.5 s apart, because requests may arrive closer together than they were sent.
LIMITS = {"calls": (1.0, 1.0), "launches": (1.0, 1 / 12.5)}
CAPACITY_AGAIN_S = 30.0

MEANINGS: Meanings = (
    (NotAuthorized, {
        "global/invalid-api-key": f"Lambda does not accept the API key: make one at {KEYS_PAGE}, and set {KEY} to it",
        "global/account-inactive": "the Lambda account is inactive: look into it at https://cloud.lambda.ai",
        "global/invalid-address": "Lambda has no valid billing address: give one at https://cloud.lambda.ai",
    }),
    (QuotaExceeded, {QUOTA: "a quota of the Lambda account is used up: ask Lambda's support for more"}),
    (NoCapacity, {NO_ROOM: "Lambda has no such machine left there now"}),
    (BadRequest, {
        "instance-operations/launch/file-system-in-wrong-region":
            "a file system is in another region than the machine: give Lambda(regions=[...]) of the file system",
        "global/invalid-parameters": "Lambda does not take this request as it is",
    }),
    (CallRefused, {
        UNKNOWN: "Lambda does not know what was asked for",
        "global/duplicate": "Lambda has such a thing already",
    }),
)  # fmt: skip


def service(endpoint_url: str | None) -> Service:
    """Return the description of Lambda's interface. ``endpoint_url``: another address than Lambda's, without the
    version.
    """
    return Service(
        name="Lambda",
        extra="lambda",
        base_url=f"{(endpoint_url or URL).rstrip('/')}{VERSION}",
        limits=LIMITS,
        limits_of=lambda method, path: ("launches", "calls") if (method, path) == ("POST", LAUNCH) else ("calls",),
        meanings=MEANINGS,
        again_after_s={NO_ROOM: CAPACITY_AGAIN_S},
        credentials=f"set {KEY} to a key of {KEYS_PAGE}",
    )
