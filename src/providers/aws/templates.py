"""A pool's launch templates, one per shape of machine, and its placement group, created on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import uuid4

from ..cloud.keys import host_key
from ..cloud.labels import name_of
from ..cloud.single_flight import OncePerKey
from ..cloud.userdata import user_data
from ..errors import ProviderError
from . import launch, leftovers, tags
from .launch import LaunchTemplate, Shape
from .recorded import RecordedApi
from .vendor import VENDOR


class Templates:
    """Launch templates by shape.

    Later launches of a shape reuse its template, and with it the machines' initial host key. Each machine replaces that
    key at the first contact, because anyone who can read one template's user data can read all of them.
    """

    def __init__(self, api: RecordedApi, pool: str, labels: Mapping[str, str]) -> None:
        self._api, self._labels = api, labels
        self._name = name_of(pool)
        self._templates = OncePerKey(self._make)
        self._clusters = OncePerKey(self._make_cluster)

    async def of(self, shape: Shape) -> LaunchTemplate:
        """Return the template for a shape.

        Raises:
            ProviderError: The template could not be created.
        """
        return await self._templates.get(shape)

    def forget(self, templates: Iterable[LaunchTemplate]) -> None:
        """Drop cached templates that no longer exist in EC2."""
        for template in templates:
            self._templates.forget(template.shape, template)

    async def cluster(self) -> str:
        """Return the name of the pool's placement group."""
        return await self._clusters.get(self._name)

    async def _make(self, shape: Shape) -> LaunchTemplate:
        key, token = host_key(), uuid4().hex
        script = user_data(
            VENDOR,
            host_key=key,
            client_key=shape.client_key,
            user=shape.ami.user,
            lease_s=shape.lease_s,
            max_lifetime_s=shape.max_lifetime_s,
        )
        name = f"{self._name}-{token[:8]}"
        arguments = launch.template(shape, name=name, token=token, user_data=script, labels=self._labels)
        created = await self._api.call("create_launch_template", **arguments)
        return LaunchTemplate(created["LaunchTemplate"]["LaunchTemplateId"], shape, key.public)

    async def _make_cluster(self, name: str) -> str:
        """Create the pool's placement group; return its name, another one if a stranger's group has ``name``."""
        if await self._makes_cluster(name) or await self._has_cluster(name):
            return name
        other = f"{name}-{uuid4().hex[:8]}"
        await self._makes_cluster(other)  # if that group exists, an earlier try of this call created it
        return other

    async def _makes_cluster(self, name: str) -> bool:
        """Create a placement group; return False if one of that name exists."""
        try:
            await self._api.call(
                "create_placement_group",
                idempotent=True,  # names are unique in a region: a second group is refused
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=[tags.specification("placement-group", self._labels)],
            )
        except ProviderError as error:
            if error.code != "InvalidPlacementGroup.Duplicate":
                raise
            return False
        return True

    async def _has_cluster(self, name: str) -> bool:
        """Return whether the group is the pool's: created by a try whose answer was lost, or by an earlier owner."""
        claim = await self._api.recorder.claim()
        shown = await leftovers.shown_of(self._api, leftovers.PLACEMENT_GROUPS, claim.pool)
        return any(each.id == name and claim.has(each) for each in shown)
