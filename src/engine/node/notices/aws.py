"""AWS: the preemption notices in the EC2 instance metadata of a spot instance, read by IMDSv2 only.

Documented in the EC2 user guide under "Spot Instance interruption notices", "EC2 instance rebalance recommendations"
and "Use the Instance Metadata Service". The service sends its token in IP packets whose time-to-live is the instance's
hop limit (default 1), so a container behind a network bridge never receives the token.
"""

from __future__ import annotations

import json
import time
from datetime import datetime

from .metadata_service import OK, Answer, MetadataService, request
from .sources import Report, Unanswered

WITHIN_S = 2.0  # time limit of a request: the service answers in milliseconds if it exists
TOKEN_S = 21600  # lifetime of a token in seconds; the maximum that AWS allows
NOTICE_S = 120.0  # AWS promises the notice "two minutes before Amazon EC2 stops or terminates"
_UNAUTHORIZED, _NOT_FOUND = 401, 404


class Imds(MetadataService):
    """A reader of the instance metadata (IMDS), with a session token that it renews before the token expires."""

    every_s = 2.0  # AWS recommends 5 seconds
    _token = ""
    _renew_at = 0.0

    async def get(self, path: str) -> Answer | None:
        """Return the metadata at ``path``; None if the service has no such item."""
        for fresh in (False, True):
            headers = {"X-aws-ec2-metadata-token": await self._valid_token(renew=fresh)}
            answer = await request(f"{self._url}{path}", headers=headers, within_s=WITHIN_S)
            # 401: this machine is a resumed copy of another machine, to which the token belongs; get a new token
            if answer.status != _UNAUTHORIZED:
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
    """The source of spot interruption notices, which come 120 s before the machine's end (0 s before a hibernation)."""

    name = "aws"

    async def ask(self, report: Report) -> None:
        answer = await self.get("/latest/meta-data/spot/instance-action")
        report(None if answer is None else _seconds_left(answer))


class Rebalance(Imds):
    """The source of rebalance recommendations: AWS says that an interruption is likely, but not when (120 s or more).

    A recommendation may come long before an interruption notice, together with it, or without any interruption.
    Therefore this source is used only if the provider names it.
    """

    name = "aws-rebalance"
    _reported = False

    async def ask(self, report: Report) -> None:
        there = await self.get("/latest/meta-data/events/recommendations/rebalance") is not None
        if there != self._reported:
            self._reported = there
            report(NOTICE_S if there else None)


def _seconds_left(answer: Answer) -> float:
    """Return the seconds until the interruption, by the service's clock; `NOTICE_S` if the notice is unreadable."""
    try:
        action = json.loads(answer.body)
        at = datetime.fromisoformat(action["time"])
        if action.get("action") == "hibernate":
            return 0.0
        left = answer.seconds_until(at)
    except (ValueError, LookupError, TypeError, AttributeError):
        return NOTICE_S
    if answer.date is None and not 0.0 <= left <= NOTICE_S:  # this machine's clock is wrong
        return NOTICE_S
    return min(max(left, 0.0), NOTICE_S)
