"""Calls to Compute Engine in one project and region: `Api`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import anyio

from ..cloud.failures import AGAIN_S, CallRefused
from ..cloud.http import HttpApi, Service
from ..cloud.pages import every_page
from ..errors import BadRequest, NoCapacity
from ..threads import in_thread
from .credentials import Credentials, find
from .errors import CAPACITY_AGAIN_S, MEANINGS, THROTTLED, of_operation, words_of

BASE_URL = "https://compute.googleapis.com/compute/v1"
PAUSES = (0.2, 0.4, 0.8)  # seconds between polls of an operation; the last one repeats


class Api:
    """Calls to one project: use ``async with Api.open(...)``. ``region``: where to launch; empty: this object launches
    nothing.
    """

    def __init__(self, http: HttpApi, place: Mapping[str, str], region: str) -> None:
        """Do not call this; use `open`. ``place`` must have a project."""
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
            ProviderError: Its ``code`` is Compute Engine's.
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
