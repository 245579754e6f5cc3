"""Google Cloud: Compute Engine's metadata on preemption and host maintenance.

Documented under "Spot VMs", "Query metadata server for maintenance event notices" and "About VM metadata". A query
waits for the next change (``wait_for_change``), so that a notice of 30 s arrives at once.
"""

from __future__ import annotations

import asyncio
import time

from .metadata_service import OK, URL, MetadataService, request
from .sources import Report, Unanswered

HOST_S = 60.0  # a query ends after so long without a change
WITHIN_S = 10.0  # and the server answers within this time after it
EVERY_S = 1.0  # for a server that sends no version (ETag), and so cannot wait for the next
PREEMPTED_S = 30.0  # from the signal to the machine's end
MAINTENANCE_S = 60.0  # "60 seconds before a maintenance event starts"; a machine with GPUs gets an hour
_FLAVOR = {"Metadata-Flavor": "Google"}


class _Value(MetadataService):
    """One metadata value, as it changes; its end is a fixed time after it was first seen."""

    every_s = 0.1  # after an answer
    item: str
    ends: str  # the value that announces the end
    seconds: float
    _etag = ""
    _at: float | None = None

    async def ask(self, report: Report) -> None:
        value = await self._next()
        if value != self.ends:
            self._at = None
        elif self._at is None:
            self._at = time.monotonic() + self.seconds
        report(None if self._at is None else max(0.0, self._at - time.monotonic()))
        if not self._etag:
            await asyncio.sleep(EVERY_S)

    async def _next(self) -> str:
        """Return the value: at once the first time, then when it changes."""
        url = f"{self._url}/computeMetadata/v1/instance/{self.item}"
        etag, self._etag = self._etag, ""  # after a failure, send no query that may wait for long
        query = f"?wait_for_change=true&timeout_sec={HOST_S:g}&last_etag={etag}" if etag else ""
        answer = await request(url + query, headers=_FLAVOR, within_s=WITHIN_S + (HOST_S if query else 0))
        if answer.status != OK or answer.headers.get("metadata-flavor") != "Google":
            raise Unanswered(f"{url} is answered with status {answer.status}, by a server that is busy or another")
        self._etag = answer.headers.get("etag", "")
        return answer.body.strip()


class Preempted(_Value):
    name, item, ends, seconds = "gcp", "preempted", "TRUE", PREEMPTED_S


class Maintenance(_Value):
    """A maintenance of the host that stops this machine; live migration is no end."""

    name, item, ends = "gcp-maintenance", "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"

    def __init__(self, url: str = URL, *, seconds: float = MAINTENANCE_S) -> None:
        super().__init__(url)
        self.seconds = seconds
