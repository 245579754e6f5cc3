"""Calls to Compute Engine in one project and region: `Api`, its credentials, and the meanings of its errors.

The library google-auth finds and refreshes the credentials, in a thread. Both failed calls and failed operations
(launches and deletions that Compute Engine carries out later) become errors with the next step.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import anyio

from ..cloud.calls import (
    AGAIN_S,
    CallRefused,
    Meanings,
    advised,
    every_page,
    from_extra,
    meaning,
    most_telling,
    quoting,
    redacted,
)
from ..cloud.http import Expiring, HttpApi, Service
from ..errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from ..shared.threads import in_thread

BASE_URL = "https://compute.googleapis.com/compute/v1"
PAUSES = (0.2, 0.4, 0.8)  # seconds between polls of an operation; the last one repeats


class Api:
    """Calls to one project: use ``async with Api.open(...)``. ``region``: where to launch; empty: this object launches
    nothing.
    """

    def __init__(self, http: HttpApi, place: Mapping[str, str], region: str) -> None:
        """Do not call this; use `open`. ``place``: the project and, optionally, the endpoint URL."""
        self._http, self.place, self.region = http, place, region
        self.project, self.endpoint_url = place["project"], place.get("endpoint_url")

    @classmethod
    @asynccontextmanager
    async def open(cls, place: Mapping[str, str], region: str = "") -> AsyncIterator[Api]:
        """Open the API. This sends nothing to Compute Engine yet.

        ``place`` may have a ``project``, a file of ``credentials`` and an ``endpoint_url``. ``region`` is needed only
        for launches.

        Raises:
            BadRequest: The project is unknown, or ``outrider[gcp]`` is not installed.
            NotAuthorized: There are no credentials.
        """
        access = Credentials(*await in_thread(find, place.get("credentials")))
        project = place.get("project") or access.project
        if not project:
            raise BadRequest("no Google Cloud project is known: give GCP(project=...), or set GOOGLE_CLOUD_PROJECT")
        service = Service(
            name="Google Cloud",
            extra="gcp",
            base_url=f"{(place.get('endpoint_url') or BASE_URL).rstrip('/')}/projects/{project}",
            # Google's page "API rate quotas" allows 1,500 reads and 1,200 writes per minute.
            limits={"reads": (100.0, 25.0), "writes": (50.0, 20.0)},
            limits_of=lambda method, path: ("reads" if method == "GET" else "writes",),  # noqa: ARG005
            meanings=MEANINGS,
            again_after_s={
                codes: CAPACITY_AGAIN_S for kind, sentences in MEANINGS if kind is NoCapacity for codes in sentences
            },
            words_of=words_of,
            troubles=dict.fromkeys(THROTTLED, "throttled"),
            credentials="run 'gcloud auth application-default login'",
        )
        async with HttpApi.open(service, access) as http:
            yield cls(http, {**place, "project": project}, region)

    async def call(
        self, method: str, path: str, *, body: object = None, params: Mapping[str, str] | None = None, token: str = ""
    ) -> Any:
        """Make a call. A call with a ``token`` (32 hexadecimal digits) takes effect only once, however often it is
        repeated.

        Raises:
            ProviderError: The call failed; the error's ``code`` is Compute Engine's.
        """
        once = {} if method == "GET" else {"requestId": str(UUID(token or uuid4().hex))}
        return await self._http.call(method, path, body=body, params={**(params or {}), **once}, idempotent=True)

    async def pages(self, path: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return all items of a list; for an aggregated list, the items of all zones and regions together."""

        async def page(token: str) -> tuple[list[dict[str, Any]], str]:
            query = {**(params or {}), "maxResults": "500", **({"pageToken": token} if token else {})}
            answer = await self.call("GET", path, params=query)
            items = answer.get("items") or []
            if isinstance(items, dict):  # an aggregated list is a dict by zone or region
                lists = (each for place in items.values() for each in place.values())
                items = [one for each in lists if isinstance(each, list) for one in each]
            return items, answer.get("nextPageToken") or ""

        return await every_page(page)

    async def done(self, operation: Mapping[str, Any], *, timeout_s: float = 60.0) -> Mapping[str, Any]:
        """Wait for the end of an operation, either of the region or a global one. Return its final state, which may
        have an error.

        Raises:
            CallRefused: The operation still runs after ``timeout_s``, or Compute Engine does not respond.
        """
        scope = f"/regions/{self.region}" if "region" in operation else "/global"
        polls = 0
        with anyio.move_on_after(timeout_s):
            while operation["status"] != "DONE":
                await anyio.sleep(PAUSES[min(polls, len(PAUSES) - 1)])
                polls += 1
                operation = await self.call("GET", f"{scope}/operations/{operation['name']}")
        if operation["status"] != "DONE":
            reason = f"Google Cloud has not finished {operation['name']} within {timeout_s:g} s"
            raise CallRefused(reason, retry_after_s=AGAIN_S, code="TimedOut")
        return operation

    async def carry_out(self, method: str, path: str, what: str, *, body: object = None, token: str = "") -> None:
        """Make a call, and wait until the operation that it starts has succeeded. ``what``: the purpose of the call,
        for errors.

        Raises:
            ProviderError: The operation failed, or has not ended.
        """
        errors = failures(await self.done(await self.call(method, path, body=body, token=token)))
        if errors:
            raise of_operation(errors, self, what)


def failures(operation: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (operation.get("error") or {}).get("errors") or ()


# --- errors -----------------------------------------------------------------------------------------------------------


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


def of_operation(errors: Sequence[Mapping[str, Any]], api: Api, what: str, where: str = "") -> ProviderError:
    """Return the error for a failed operation of ``api``. A summary code is left out if another error is more specific.

    ``what``: the requested machine, as in ``spot g2-standard-4``. ``where``: the zone; empty: any zone of the region.
    """
    details = [each for each in errors if each.get("code") != SUMMARY] or errors
    return most_telling([_one(each, api, what, where or api.region) for each in details])


def _one(error: Mapping[str, Any], api: Api, what: str, where: str) -> ProviderError:
    code, message, again_s = str(error.get("code") or ""), redacted(str(error.get("message") or "")), None
    kind, _, sentence = meaning(code, MEANINGS) or (ProviderError, "", f"{what} could not be made in {where}")
    if kind is QuotaExceeded:
        sentence = _quota(error, message, api)
    elif kind is NoCapacity:
        sentence, again_s = f"Google Cloud has no {what} left in {where} now", CAPACITY_AGAIN_S
    return advised(kind(quoting(sentence, code, message), retry_after_s=again_s, code=code), "Google Cloud")


def _quota(error: Mapping[str, Any], message: str, api: Api) -> str:
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


# --- credentials ------------------------------------------------------------------------------------------------------


SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_SIGN_IN = "run 'gcloud auth application-default login', or give GCP(credentials='service-account.json')"


class Credentials(Expiring):
    """The ``credentials`` of google-auth, with a lock. ``project``: named by the credentials or by the environment;
    empty: by neither.
    """

    def __init__(self, credentials: Any, project: str) -> None:
        super().__init__()
        self.project, self._credentials = project, credentials

    @property
    def token(self) -> str:
        return self._credentials.token or ""

    @property
    def expired(self) -> bool:
        return bool(self._credentials.expired)  # google-auth counts credentials as expired some minutes early

    async def refresh(self) -> None:
        from google.auth.exceptions import GoogleAuthError, TransportError

        try:
            await in_thread(self._credentials.refresh, _request)
        except TransportError as error:
            raise ProviderError(f"Google does not answer with a token ({error})", retry_after_s=2.0) from None
        except GoogleAuthError as error:
            reason = str(error.args[0] if error.args else error)
            raise NotAuthorized(f"the Google credentials are not valid any more: {_SIGN_IN} ({reason})") from None


def find(file: str | None) -> tuple[Any, str]:
    """Return credentials of google-auth, and their project: the key of a service account in ``file``, or the
    credentials that Google's own libraries find.

    Raises:
        NotAuthorized: There are no credentials.
        BadRequest: google-auth is not installed.
    """
    with from_extra("GCP", "gcp", "google", "cryptography", "rsa"):
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2 import service_account
    in_file = f", in {file}" if file else ""
    try:
        if file is not None:
            credentials = service_account.Credentials.from_service_account_file(file, scopes=SCOPES)
            project = credentials.project_id
        else:
            credentials, project = google.auth.default(scopes=SCOPES, request=_request)
    except (GoogleAuthError, OSError, ValueError) as error:
        raise NotAuthorized(f"there are no Google credentials: {_SIGN_IN} ({error}{in_file})") from None
    return credentials, project or ""


def _request(
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = 20.0,
    **_: object,
) -> SimpleNamespace:
    """Send a request for google-auth with httpx, which `outrider[gcp]` installs anyway."""
    import httpx
    from google.auth.exceptions import TransportError

    try:
        response = httpx.request(method, url, content=body, headers=headers, timeout=timeout)
    except httpx.HTTPError as error:
        raise TransportError(f"{type(error).__name__} at {url}") from error
    return SimpleNamespace(status=response.status_code, headers=response.headers, data=response.content)
