"""An `Api` that records each creation in the journal before its request.

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
    """Return the machines in CreateFleet's answer. None: the answer to a repeated call has only the fleet's id."""
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
    """An `Api` that can create resources only if it has a recorder."""

    recorder: Recorder

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Call AWS like `Api.call`. A create call is recorded in the journal first, and shielded from cancellation.

        Raises:
            JournalError: The intent could not be recorded, so nothing was created.
            ProviderError: As in `Api.call`.
        """
        if not operation.startswith("create_"):
            return await Api.call(self, operation, **parameters)
        kind, ids_in = _MAKES[operation]
        token = str(parameters.get("ClientToken") or uuid4().hex)
        count = (parameters.get("TargetCapacitySpecification") or {}).get("TotalTargetCapacity")
        # Once this many machines are listed, no others can appear.
        facts = {} if count is None else {"count": str(count)}
        arguments = {**parameters, "TagSpecifications": _with_token(parameters.get("TagSpecifications", ()), token)}
        return await self.recorder.create(kind, token, facts, partial(Api.call, self, operation, **arguments), ids_in)


def _with_token(specifications: Iterable[Mapping[str, Any]], token: str) -> list[dict[str, Any]]:
    label = {"Key": LAUNCH, "Value": token}
    return [
        {**each, "Tags": [*(tag for tag in each["Tags"] if tag["Key"] != LAUNCH), label]} for each in specifications
    ]
