"""Vast.ai's interface: its address, rate limits, the meanings of its errors, and the user's key.

Sources: Vast.ai's documentation (github.com/vast-ai/docs), especially its OpenAPI files, and its own client,
vast-ai/vast-cli. ``testing/openapi.json`` names the files and commits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..cloud.api_key import ApiKeys
from ..cloud.failures import CallRefused, Meanings
from ..cloud.http import Service
from ..errors import NoCapacity, NotAuthorized, QuotaExceeded
from .vendor import NO_CREDIT, STALE_PRICE, TAKEN, UNKNOWN

URL = "https://console.vast.ai"
KEY = "VAST_API_KEY"
KEYS_PAGE = "https://cloud.vast.ai/manage-keys/"
KEY_FILE = "~/.config/vastai/vast_api_key"  # file in which `vastai set api-key` stores the key
KEYS = ApiKeys(provider="Vast", name="vast", variable=KEY, page=KEYS_PAGE, usual=KEY_FILE)
BILLING_PAGE = "https://cloud.vast.ai/billing/"
ACCOUNT = "/api/v0/users/current/"
SEARCH = "/api/v0/bundles/"
ASK = "/api/v0/asks/{}/"
LIST = "/api/v1/instances/"
END = "/api/v0/instances/"
# Rates of the operations. Vast.ai's x-rate-limit names the least seconds between two requests; a fifth is added to
# each. Searches: 10 per minute.
LIMITS = {"search": (10.0, 1 / 6.5), "rent": (1.0, 1 / 5.4), "list": (1.0, 1 / 1.2), "end": (1.0, 1 / 3.6)}
_LIMITED = {("POST", SEARCH): "search", ("GET", LIST): "list", ("DELETE", END): "end"}
NO_KEY = "invalid_user_key"
_IN_WORDS = re.compile(r"\b(no_such_ask|no_such_instance|insufficient_credit)\b")

MEANINGS: Meanings = (
    (NotAuthorized, {NO_KEY: f"Vast.ai does not accept the API key: make one at {KEYS_PAGE}, and set {KEY} to it"}),
    (QuotaExceeded, {NO_CREDIT: f"the Vast.ai account has no credit left: add some at {BILLING_PAGE}"}),
    (NoCapacity, {
        TAKEN: "somebody else has rented that machine of Vast.ai's meanwhile",
        STALE_PRICE: "the price of that machine of Vast.ai's has changed meanwhile",
    }),
    (CallRefused, {"|".join(sorted(UNKNOWN)): "Vast.ai does not know that instance"}),
)  # fmt: skip


def service(endpoint_url: str | None) -> Service:
    """Return the description of Vast.ai's interface. ``endpoint_url``: another address than Vast.ai's."""
    return Service(
        name="Vast.ai",
        extra="vast",
        base_url=(endpoint_url or URL).rstrip("/"),
        limits=LIMITS,
        limits_of=_limits_of,
        meanings=MEANINGS,
        again_after_s={TAKEN: 10.0, STALE_PRICE: 10.0},
        words_of=words_of,
        credentials=f"set {KEY} to a key of {KEYS_PAGE} that may use instance_read, instance_write, user_read and misc",
    )


def _limits_of(method: str, path: str) -> Sequence[str]:
    if method == "PUT":
        return ("rent",)
    name = _LIMITED.get((method, path))
    return () if name is None else (name,)


def words_of(body: object) -> tuple[str, str]:
    """Return code and message of an error response. If an offer or instance is unknown, only the message may have the
    code.
    """
    if not isinstance(body, Mapping):
        return "", ""
    message = next((str(body[key]) for key in ("msg", "message", "detail") if body.get(key)), "")
    if "invalid user key" in message.lower():
        return NO_KEY, message
    named = _IN_WORDS.search(message)
    return named[1] if named else str(body.get("error") or ""), message
