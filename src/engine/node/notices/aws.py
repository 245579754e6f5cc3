"""AWS: the notices in EC2's instance metadata of a spot instance. IMDSv2 only.

Documented in the EC2 user guide under "Spot Instance interruption notices", "EC2 instance rebalance recommendations"
and "Use the Instance Metadata Service". The token comes back with the machine's hop limit, by default 1, as its IP
time-to-live: a container behind a bridge never gets an answer.
"""

from __future__ import annotations

import json
import time
from datetime import datetime

from .metadata_service import OK, Answer, MetadataService, request
from .sources import Report, Unanswered

WITHIN_S = 2.0  # it answers in milliseconds, or not at all if there is no such service
TOKEN_S = 21600  # the longest that there is
NOTICE_S = 120.0  # "two minutes before Amazon EC2 stops or terminates"
_UNAUTHORIZED, _NOT_FOUND = 401, 404


class Imds(MetadataService):
    """Reads metadata with a session token, which it renews in time."""

    every_s = 2.0  # AWS suggests 5
    _token = ""
    _renew_at = 0.0

    async def get(self, path: str) -> Answer | None:
        """Return the metadata item; None if there is no such item."""
        for fresh in (False, True):
            headers = {"X-aws-ec2-metadata-token": await self._valid_token(renew=fresh)}
            answer = await request(f"{self._url}{path}", headers=headers, within_s=WITHIN_S)
            if answer.status != _UNAUTHORIZED:  # the token is another machine's: this one was resumed from a copy
                break
        if answer.status == _NOT_FOUND:
            return None
        if answer.status != OK:
            raise Unanswered(f"{path} is answered with status {answer.status}")
        return answer

    async def _valid_token(self, *, renew: bool) -> str:
        if renew or time.monotonic() >= self._renew_at:
            try:
                answer = await request(
                    f"{self._url}/latest/api/token",
                    method="PUT",
                    headers={"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)},
                    within_s=WITHIN_S,
                )
            except Unanswered as error:
                raise Unanswered(f"{error}; in a container, the instance's hop limit must be 2") from error
            if answer.status != OK:
                raise Unanswered(f"no token, status {answer.status}: 403 means that instance metadata is turned off")
            self._token = answer.body.strip()
            self._renew_at = time.monotonic() + TOKEN_S / 2
        return self._token


class SpotAction(Imds):
    """The interruption notice: 120 s before the end. If the action is hibernation, it has begun already."""

    name = "aws"

    async def ask(self, report: Report) -> None:
        answer = await self.get("/latest/meta-data/spot/instance-action")
        report(None if answer is None else _seconds_left(answer))


class Rebalance(Imds):
    """The recommendation to go elsewhere: an interruption is likely. It names no time; at least 120 s follow.

    It may come long before an interruption, together with it, or with none after it: an option of its own.
    """

    name = "aws-rebalance"
    _reported = False

    async def ask(self, report: Report) -> None:
        there = await self.get("/latest/meta-data/events/recommendations/rebalance") is not None
        if there != self._reported:
            self._reported = there
            report(NOTICE_S if there else None)


def _seconds_left(answer: Answer) -> float:
    """Return the time left by the service's own clock. A notice that cannot be read still counts as one."""
    try:
        action = json.loads(answer.body)
        at = datetime.fromisoformat(action["time"])
        if action.get("action") == "hibernate":
            return 0.0
        left = answer.seconds_until(at)
    except (ValueError, LookupError, TypeError, AttributeError):
        return NOTICE_S
    if answer.date is None and not 0.0 <= left <= NOTICE_S:  # by our clock, which may be wrong
        return NOTICE_S
    return min(max(left, 0.0), NOTICE_S)
