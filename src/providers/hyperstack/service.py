"""Hyperstack's interface: its address, rate limits, the meanings of its errors, and the user's key.

Sources: the documentation at docs.hyperstack.cloud in November 2026 ("Errors", "Rate limits", "Pagination"), and the
OpenAPI document from which the official client `hyperstack` 1.56.1a0 was generated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import Any

from ..cloud.api_key import ApiKeys
from ..cloud.http import HttpApi, Service
from ..errors import NoCapacity, NotAuthorized, QuotaExceeded

KEY = "HYPERSTACK_API_KEY"
KEYS_PAGE = "https://console.hyperstack.cloud/api-keys"
KEYS = ApiKeys(provider="Hyperstack", name="hyperstack", variable=KEY, page=KEYS_PAGE)
PAGE = 100  # entries to request for one page of a list

# Code -> words in the message of an error. Hyperstack has only ten error reasons; details are in the messages, and only
# two of these are documented.
_SENTENCES = {
    "insufficient_balance": r"balance|credit",
    "quota_exceeded": r"quota|limit",
    "no_stock": r"stock|capacity|not enough|not available|unavailable|no valid host|insufficient",
}


def words_of(body: object) -> tuple[str, str]:
    """Return the code and message of ``{"status": false, "message": "...", "error_reason": "..."}``.

    The code is the error reason, or, if that reason says too little, a code from `_SENTENCES`.
    """
    if not isinstance(body, Mapping):
        return "", ""
    message, reason = str(body.get("message") or ""), str(body.get("error_reason") or "")
    if reason in {"", "bad_request"}:  # these two reasons can mean anything, so take the code from the message
        reason = next((code for code, words in _SENTENCES.items() if re.search(words, message, re.IGNORECASE)), reason)
    return reason, message


SERVICE = Service(
    name="Hyperstack",
    extra="hyperstack",
    base_url="https://infrahub-api.nexgencloud.com/v1",
    limits={"calls": (60.0, 8.0)},  # Hyperstack allows 500 requests per minute from one address
    limits_of=lambda method, path: ("calls",),  # noqa: ARG005
    meanings=(
        (NotAuthorized, {"unauthorized": f"Hyperstack does not accept the API key: make one at {KEYS_PAGE}"}),
        (
            QuotaExceeded,
            {
                "insufficient_balance": "the credit of the Hyperstack account is too little: add some in its console",
                "quota_exceeded": "a limit of the Hyperstack account is reached: its support raises it",
            },
        ),
        (NoCapacity, {"no_stock": "Hyperstack has no such machine now"}),
    ),
    again_after_s={"no_stock": 30.0},
    words_of=words_of,
    refuses=lambda answer: isinstance(answer, Mapping) and answer.get("status") is False,
    credentials=f"check {KEY}",
    header="api_key",
)


async def listed(api: HttpApi, path: str, name: str) -> list[Mapping[str, Any]]:
    """Return all entries of a list, page after page. An entry may be missing if the list changes between two pages."""
    entries: dict[int, Mapping[str, Any]] = {}
    for page in count(1):
        answer = await api.call("GET", path, params={"page": str(page), "pageSize": str(PAGE)})
        entries |= {each["id"]: each for each in answer[name]}
        # Fewer entries than on a full page: this is the last page. A full page may have fewer than requested.
        if len(answer[name]) < (answer.get("page_size") or PAGE):
            break
    return list(entries.values())
