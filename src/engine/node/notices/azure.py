"""Azure: scheduled events that end this machine or all programs on it, from the instance metadata service.

Documented under "Scheduled Events for Linux VMs". The machines of an availability set or scale set see each other's
events, so only events that name this machine count. Events are not acknowledged, because Azure starts an acknowledged
event earlier.
"""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any

from .metadata_service import OK, Answer, MetadataService, request
from .sources import Report, Unanswered

WITHIN_S = 5.0
FIRST_WITHIN_S = 150.0  # time limit of the first request, which activates the service: "up to two minutes"
# Each event that ends the machine, and the shortest time from its notice to its start, in seconds. "Freeze" is left
# out: it is a pause of seconds.
LEAST_S = {"Preempt": 30.0, "Terminate": 300.0, "Reboot": 900.0, "Redeploy": 600.0}
_METADATA = {"Metadata": "true"}


class ScheduledEvents(MetadataService):
    name = "azure"
    every_s = 1.0  # the interval that Azure recommends; a preemption is announced 30 s before
    _own = ""  # this machine's name
    _answered = False

    async def ask(self, report: Report) -> None:
        self._own = self._own or (await self._get("instance/compute/name?api-version=2021-02-01&format=text")).body
        answer = await self._get("scheduledevents?api-version=2020-07-01")
        try:
            events = json.loads(answer.body)["Events"]
            ours = [event for event in events if event["EventType"] in LEAST_S and self._own in event["Resources"]]
            ends = [_seconds_left(event, answer) for event in ours]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Unanswered(f"scheduled events that cannot be read ({error})") from error
        report(min(ends, default=None))

    async def _get(self, item: str) -> Answer:
        within_s = WITHIN_S if self._answered else FIRST_WITHIN_S
        answer = await request(f"{self._url}/metadata/{item}", headers=_METADATA, within_s=within_s)
        if answer.status != OK:
            raise Unanswered(f"/metadata/{item} is answered with status {answer.status}")
        self._answered = self._answered or item.startswith("scheduled")
        return answer


def _seconds_left(event: dict[str, Any], answer: Answer) -> float:
    """Return the seconds until an event starts, by the service's clock; 0 if it has started."""
    if event.get("EventStatus") == "Started" or not event["NotBefore"]:
        return 0.0
    left = answer.seconds_until(parsedate_to_datetime(event["NotBefore"]))
    if answer.date is None and left < 0:  # this machine's clock is wrong
        return LEAST_S[event["EventType"]]
    return max(0.0, left)
