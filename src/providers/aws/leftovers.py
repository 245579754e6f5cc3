"""The resources, besides machines, that a pool creates on EC2, and that cost nothing: how to list and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...lazy_dataclass import dataclass
from ..cloud import teardown
from ..cloud.port import Leftover
from ..resource_ownership import Thing
from ..side_by_side import all_of
from . import tags
from .api import Api

IN_USE_S = 120.0  # seconds for which resources of a terminated machine stay in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of resources. ``key``: of the list in `describe`'s answer. ``id``: the field that the journal has as name.

    ``unshown_s``: seconds after its creation for which an unlisted resource counts as new, not as deleted.
    """

    name: str
    describe: str
    key: str
    id: str
    delete: str
    has_machines: bool = False
    unshown_s: float = 0.0


TEMPLATES = Kind(
    name="launch-template",
    describe="describe_launch_templates",
    key="LaunchTemplates",
    id="LaunchTemplateName",
    delete="delete_launch_template",
)
PLACEMENT_GROUPS = Kind(
    name="placement-group",
    describe="describe_placement_groups",
    key="PlacementGroups",
    id="GroupName",
    delete="delete_placement_group",
    has_machines=True,
)
SECURITY_GROUPS = Kind(
    name="security-group",
    describe="describe_security_groups",
    key="SecurityGroups",
    id="GroupId",
    delete="delete_security_group",
    has_machines=True,
    unshown_s=10.0,
)
KINDS = (TEMPLATES, PLACEMENT_GROUPS, SECURITY_GROUPS)  # in the order of their removal


def leftovers(api: Api) -> Sequence[Leftover]:
    return [
        teardown.leftover(
            kind.name,
            shown=partial(shown_of, api, kind),
            delete=partial(_delete, api, kind),
            is_unknown=lambda error: "NotFound" in error.code or error.code.endswith(".Unknown"),
            is_used=lambda error: error.code == "DependencyViolation" or error.code.endswith(".InUse"),
            used_s=IN_USE_S,
            has_machines=kind.has_machines,
        )
        for kind in KINDS
    ]


async def shown(api: Api, kind: Kind, which: dict[str, Any]) -> list[Thing]:
    """List the resources of a kind. ``which``: a filter."""
    return [tags.thing(each[kind.id], each) for each in await api.pages(kind.describe, kind.key, Filters=[which])]


async def all_shown(api: Api, which: dict[str, Any]) -> list[Thing]:
    """List the resources of all kinds. ``which``: a filter."""
    return [each for things in await all_of(*(partial(shown, api, kind, which) for kind in KINDS)) for each in things]


async def shown_of(api: Api, kind: Kind, pool: str) -> list[Thing]:
    """List the resources of a kind with the pool's tag."""
    return await shown(api, kind, tags.of(pool))


async def _delete(api: Api, kind: Kind, name: str) -> None:
    which: dict[str, Any] = {kind.id: name}
    await api.call(kind.delete, lag_s=kind.unshown_s, **which)
