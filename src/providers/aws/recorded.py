"""An `Api` that records in the journal what it is about to create, before it asks for it.

RECORDED-1: no create call leaves this process before its intent is on the disk.
RECORDED-2: an intent without an outcome is one whose answer never came: something may exist that nobody knows.
RECORDED-3: everything that is created has its intent's token among its tags from the first moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import anyio

from ..cloud.failures import is_lost
from ..errors import JournalError, NotAuthorized, ProviderError
from ..journal import Intent, Journal
from ..resource_ownership import Claim
from ..threads import in_thread
from . import tags
from .api import Api, Service
from .teardown import FLEET, place_of, written_of


def machines_in(answer: Mapping[str, Any]) -> list[str] | None:
    """The machines in CreateFleet's answer. None: a repeated call was answered with the fleet's id alone."""
    if not (answer.get("Instances") or answer.get("Errors")):
        return None
    return [machine for group in answer.get("Instances") or () for machine in group.get("InstanceIds") or ()]


_MAKES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], list[str] | None]]] = {
    "create_fleet": (FLEET, machines_in),
    "create_launch_template": ("launch-template", lambda answer: [answer["LaunchTemplate"]["LaunchTemplateName"]]),
    "create_placement_group": ("placement-group", lambda answer: [answer["PlacementGroup"]["GroupName"]]),
    "create_security_group": ("security-group", lambda answer: [answer["GroupId"]]),
}


class RecordedApi(Api):
    """An `Api` that creates things only after `record` has named a journal."""

    journal: Journal | None = None
    pool = ""

    def record(self, journal: Journal, pool: str) -> None:
        self.journal, self.pool = journal, pool
        self._made: dict[str, Intent] = {}

    @property
    def made(self) -> list[Intent]:
        """The intents of everything that this process has asked for."""
        return list(self._made.values())

    async def claim(self) -> Claim:
        """The pool's claim on resources in this API's place."""
        return (await written_of(self, self.pool, self.journal, self.made)).claim

    async def call(
        self,
        operation: str,
        /,
        *,
        service: Service = "ec2",
        timeout_s: float = 30.0,
        idempotent: bool | None = None,
        lag_s: float = 0.0,
        **parameters: Any,
    ) -> dict[str, Any]:
        """Call AWS like `Api.call`. A create call is shielded from cancellation, and recorded in the journal before.

        Raises:
            JournalError: the intent could not be recorded, so nothing was created.
            ProviderError: as `Api.call` does.
        """

        async def ask() -> dict[str, Any]:
            return await Api.call(
                self,
                operation,
                service=service,
                timeout_s=timeout_s,
                idempotent=idempotent,
                lag_s=lag_s,
                **said,
            )

        said = parameters
        if not operation.startswith("create_"):
            return await ask()
        kind, ids_in = _MAKES[operation]
        answer: dict[str, Any] = {}
        token = str(parameters.get("ClientToken") or uuid4().hex)
        said = {**parameters, "TagSpecifications": _with_token(parameters.get("TagSpecifications", ()), token)}
        with anyio.CancelScope(shield=True):
            repeated = token in self._made and self._made[token].ids is None
            intent = await self._intend(kind, token, _facts(parameters))
            try:
                answer = await ask()
            except ProviderError as error:
                if not (
                    is_lost(error) or (repeated and isinstance(error, NotAuthorized))
                ):  # a refusal says nothing about an earlier try
                    await self._happened(intent, [])
                raise
            ids = ids_in(answer)
            if ids is not None:
                await self._happened(intent, ids)
        return answer

    async def learnt(self, kind: str, token: str, ids: Sequence[str]) -> None:
        """Record the outcome of a call whose own answer did not tell it."""
        await self._happened(Intent(self.pool, kind, token, place_of(self), at=time.time()), ids)

    async def _intend(self, kind: str, token: str, facts: Mapping[str, str]) -> Intent:
        assert self.journal is not None
        intent = await in_thread(self.journal.intend, self.pool, kind, token, place_of(self), facts)
        self._made.setdefault(token, intent)
        return intent

    async def _happened(self, intent: Intent, ids: Sequence[str]) -> None:
        assert self.journal is not None
        self._made[intent.token] = replace(intent, ids=tuple(ids))
        try:
            await in_thread(self.journal.happened, intent, ids)
        except JournalError:
            pass  # the intent is recorded, and tags find what it made


def _facts(parameters: Mapping[str, Any]) -> dict[str, str]:
    """The number of machines that the call asks for: once so many have been seen, there are no others."""
    count = (parameters.get("TargetCapacitySpecification") or {}).get("TotalTargetCapacity")
    return {} if count is None else {"count": str(count)}


def _with_token(specifications: Iterable[Mapping[str, Any]], token: str) -> list[dict[str, Any]]:
    label = {"Key": tags.LAUNCH, "Value": token}
    return [
        {**each, "Tags": [*(tag for tag in each["Tags"] if tag["Key"] != tags.LAUNCH), label]}
        for each in specifications
    ]
