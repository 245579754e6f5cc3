"""Google Cloud: notices of preemption and of host maintenance, from Compute Engine's metadata server.

Documented under "Spot VMs", "Query metadata server for maintenance event notices" and "About VM metadata". The server
delays its answer until the value changes (``wait_for_change``), so that a notice, which comes 30 s before the end,
arrives at once.
"""

from __future__ import annotations

import asyncio
import time

from .metadata_service import OK, URL, MetadataService, request
from .sources import Report, Unanswered

HOST_S = 60.0  # the server answers after this time if the value does not change
WITHIN_S = 10.0  # time limit of a request, in addition to HOST_S
EVERY_S = 1.0  # polling interval if the server sends no ETag, without which a request cannot wait for a change
PREEMPTED_S = 30.0  # time from a preemption notice to the machine's end
MAINTENANCE_S = 60.0  # Google: "60 seconds before a maintenance event starts"; one hour for a machine with GPUs
_FLAVOR = {"Metadata-Flavor": "Google"}


class _Value(MetadataService):
    """A source that reads one metadata value, whose change announces the machine's end.

    The metadata has no time. So the end is expected a fixed time after the first answer with the announcing value.
    """

    every_s = 0.1  # a short pause after an answer, because the next request waits for a change
    item: str
    ends: str  # the value that announces the machine's end
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
        """Return the metadata value; from the second request on, wait until the value changes."""
        url = f"{self._url}/computeMetadata/v1/instance/{self.item}"
        etag, self._etag = self._etag, ""  # if this request fails, the next one must not wait for a change
        query = f"?wait_for_change=true&timeout_sec={HOST_S:g}&last_etag={etag}" if etag else ""
        answer = await request(url + query, headers=_FLAVOR, within_s=WITHIN_S + (HOST_S if query else 0))
        if answer.status != OK or answer.headers.get("metadata-flavor") != "Google":
            raise Unanswered(f"{url} is answered with status {answer.status}, by a server that is busy or another")
        self._etag = answer.headers.get("etag", "")
        return answer.body.strip()


class Preempted(_Value):
    name, item, ends, seconds = "gcp", "preempted", "TRUE", PREEMPTED_S


class Maintenance(_Value):
    """The source of notices of host maintenance that stops this machine; a live migration does not count."""

    name, item, ends = "gcp-maintenance", "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"

    def __init__(self, url: str = URL, *, seconds: float = MAINTENANCE_S) -> None:
        super().__init__(url)
        self.seconds = seconds
