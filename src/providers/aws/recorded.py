"""An `Api` that records in the journal what it is about to create, before it asks for it.

RECORDED-3: everything that is created has its intent's token among its tags from the first moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from ..cloud.labels import LAUNCH
from ..cloud.recorder import Recorder
from ..cloud.written import FLEET
from .api import Api


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
    """An `Api` that creates things only once it has a recorder."""

    recorder: Recorder

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Call AWS like `Api.call`. A create call is shielded from cancellation, and recorded in the journal before.

        Raises:
            JournalError: the intent could not be recorded, so nothing was created.
            ProviderError: as `Api.call` does.
        """
        if not operation.startswith("create_"):
            return await Api.call(self, operation, **parameters)
        kind, ids_in = _MAKES[operation]
        token = str(parameters.get("ClientToken") or uuid4().hex)
        count = (parameters.get("TargetCapacitySpecification") or {}).get("TotalTargetCapacity")
        facts = {} if count is None else {"count": str(count)}  # once so many are seen, there are no more
        arguments = {**parameters, "TagSpecifications": _with_token(parameters.get("TagSpecifications", ()), token)}
        return await self.recorder.create(kind, token, facts, partial(Api.call, self, operation, **arguments), ids_in)


def _with_token(specifications: Iterable[Mapping[str, Any]], token: str) -> list[dict[str, Any]]:
    label = {"Key": LAUNCH, "Value": token}
    return [
        {**each, "Tags": [*(tag for tag in each["Tags"] if tag["Key"] != LAUNCH), label]} for each in specifications
    ]
