"""Meanings of Compute Engine's errors, both of calls and of operations. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..cloud.failures import Meanings, advised, meaning, most_telling, quoting, redacted
from ..errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded

CAPACITY_AGAIN_S = 15.0
SUMMARY = "VM_MIN_COUNT_NOT_REACHED"  # the code that reports the failure of a bulkInsert without its reason

# "Troubleshooting VM creation" and "Handle API error responses", Compute Engine's documentation. The first match wins.
MEANINGS: Meanings = (
    (NotAuthorized, {
        "SERVICE_DISABLED|accessNotConfigured":
            "the project does not use Compute Engine yet: run 'gcloud services enable compute.googleapis.com'",
        "BILLING_DISABLED|UREQ_PROJECT_BILLING_.*":
            "the project has no billing account: link one in the console, under Billing",
        "ACCESS_TOKEN_SCOPE_INSUFFICIENT|insufficientPermissions":
            "the scope of these credentials is too narrow: on a machine of Google's, give it the scope cloud-platform",
        "UNAUTHENTICATED|authError|ACCESS_TOKEN_EXPIRED|ACCOUNT_STATE_INVALID|CREDENTIALS_MISSING":
            "Google Cloud does not accept these credentials: run 'gcloud auth application-default login'",
        "IAM_PERMISSION_DENIED|PERMISSION_DENIED|PERMISSIONS_ERROR|forbidden|required_permission":
            "a permission is missing: docs/providers/gcp-role.yaml has what a pool needs",
    }),
    (QuotaExceeded, {
        "QUOTA_EXCEEDED|quotaExceeded|limitExceeded": "a quota of the project is used up",
    }),
    (NoCapacity, {
        "(ZONE_|REGION_)?RESOURCE_POOL_EXHAUSTED.*|resourcePoolExhausted|STOCKOUT|insufficientCapacity"
        f"|CapacityExceeded|{SUMMARY}": "Google Cloud has no such machine left now",
    }),
    (BadRequest, {
        "CONDITION_NOT_MET|conditionNotMet|orgPolicy.*": "a policy of the organization forbids this",
        "UNSUPPORTED_OPERATION": "Google Cloud does not do this with such a machine: choose another type or zone",
        "(IP_SPACE|.*IP_ADDRESSES?)_EXHAUSTED.*": "the subnet has no free address: choose another",
        "INVALID.*|invalid.*|badRequest|required|RESOURCE_NOT_FOUND|.*_NOT_FOUND":
            "Google Cloud does not take this request as it is",
    }),
)  # fmt: skip
THROTTLED = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
UNKNOWN = frozenset({"notFound", "RESOURCE_NOT_FOUND"})
NOT_READY = frozenset({"resourceNotReady", "RESOURCE_NOT_READY"})


def words_of(body: object) -> tuple[str, str]:
    """Return the error code and message in a response's body. Of several codes, return the most specific."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "", ""
    details = [each for each in error.get("details") or () if isinstance(each, Mapping)]
    reasons = [each["reason"] for each in [*details, *(error.get("errors") or ())] if each.get("reason")]
    candidates = [each for each in reasons if each in THROTTLED or meaning(str(each), MEANINGS)] or reasons
    return str((candidates or [error.get("status") or ""])[0]), str(error.get("message") or "")


class RegionOfProject(Protocol):
    """The parts of an `api.Api` that errors name."""

    @property
    def region(self) -> str: ...

    @property
    def project(self) -> str: ...


def of_operation(
    errors: Sequence[Mapping[str, Any]], api: RegionOfProject, what: str, where: str = ""
) -> ProviderError:
    """Return the error for a failed operation of ``api``. A summary code is left out if another error is more specific.

    ``what``: the requested machine, as in ``spot g2-standard-4``. ``where``: the zone; empty: any zone of the region.
    """
    details = [each for each in errors if each.get("code") != SUMMARY] or errors
    return most_telling([_one(each, api, what, where or api.region) for each in details])


def _one(error: Mapping[str, Any], api: RegionOfProject, what: str, where: str) -> ProviderError:
    code, message, again_s = str(error.get("code") or ""), redacted(str(error.get("message") or "")), None
    kind, _, sentence = meaning(code, MEANINGS) or (ProviderError, "", f"{what} could not be made in {where}")
    if kind is QuotaExceeded:
        sentence = _quota(error, message, api)
    elif kind is NoCapacity:
        sentence, again_s = f"Google Cloud has no {what} left in {where} now", CAPACITY_AGAIN_S
    return advised(kind(quoting(sentence, code, message), retry_after_s=again_s, code=code), "Google Cloud")


def _quota(error: Mapping[str, Any], message: str, api: RegionOfProject) -> str:
    """Return the quota's name, limit and region: from the error's details, or from its message."""
    details = (each["quotaInfo"] for each in error.get("errorDetails") or () if each.get("quotaInfo"))
    info: Mapping[str, Any] = next(details, {})
    match = re.search(r"Quota '([^']+)' exceeded\.\s+Limit: ([\d.]+)(?: in region ([\w-]+))?", message)
    words = match.groups() if match else (None, None, None)
    name, limit = info.get("limitName") or words[0], info.get("limit", words[1])
    place = (info.get("dimensions") or {}).get("region") or words[2] or api.region
    if not name:
        return f"a quota of the project is used up in {place}"
    most = "" if limit is None else f", {float(limit):g},"
    ask = f"https://console.cloud.google.com/iam-admin/quotas?project={api.project}"
    return f"the quota {name!r}{most} is used up in {place}: ask for more at {ask}"
