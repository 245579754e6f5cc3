"""EC2 in one region, as far as machines are found and ended: the port of `providers.cloud`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import anyio

from ..cloud import teardown
from ..cloud.instance_inventory import InstanceView
from ..cloud.port import Leftover, Removed
from ..cloud.teardown import PERHAPS
from ..cloud.vendor import Vendor
from ..errors import ProviderError
from ..resource_ownership import Claim, Others
from . import listing, network
from .api import Api
from .vendor import VENDOR

END_AT_MOST = 500  # "TerminateInstances", EC2 API Reference: at most 1000, and fewer are faster
IN_USE_S = 120.0  # resources of a terminated machine are released a little later


def place_of(api: Api) -> dict[str, str]:
    """The place of a pool, as the journal stores it."""
    place = {"region": api.region, "endpoint_url": api.endpoint_url, "profile": api.profile}
    return {key: value for key, value in place.items() if value}


class EC2Cloud:
    """Implements `providers.cloud.port.Cloud`."""

    vendor: Vendor = VENDOR
    end_at_most = END_AT_MOST

    def __init__(self, api: Api) -> None:
        self.api = api

    @property
    def place(self) -> Mapping[str, str]:
        return place_of(self.api)

    def where(self, place: Mapping[str, str]) -> str:
        return " ".join(filter(None, (place.get("region"), place.get("endpoint_url"))))

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        return listing.views_of(await listing.instances(self.api, pool, also=also), of)

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        answer = await self.api.call("terminate_instances", InstanceIds=list(machines))
        return [listing.change(each) for each in answer.get("TerminatingInstances") or ()]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code.startswith("InvalidInstanceID")

    @property
    def leftovers(self) -> Sequence[Leftover]:
        return (
            Leftover("launch-template", self._remove_templates),
            Leftover("placement-group", self._remove_placement_groups, has_machines=True),
            Leftover("security-group", self._remove_security_groups, has_machines=True),
        )

    async def _remove_templates(self, what: Claim | Others, known: Sequence[str]) -> Removed:
        async def delete(name: str) -> None:
            await self.api.call("delete_launch_template", LaunchTemplateName=name)

        shown = partial(listing.templates, self.api)
        return await teardown.remove_each(what, known, shown=shown, delete=partial(_removed, delete))

    async def _remove_placement_groups(self, what: Claim | Others, known: Sequence[str]) -> Removed:
        async def delete(name: str) -> None:
            await self.api.call("delete_placement_group", GroupName=name)

        shown = partial(listing.placement_groups, self.api)
        return await teardown.remove_each(what, known, shown=shown, delete=partial(_removed, delete))

    async def _remove_security_groups(self, what: Claim | Others, known: Sequence[str]) -> Removed:
        try:
            return Removed(tuple(await network.remove(self.api, what, known=known)))
        except ProviderError as error:
            return Removed(left=(", ".join(known) or PERHAPS,), errors=(error,))


async def _removed(delete: Callable[[str], Awaitable[None]], name: str) -> bool:
    """Delete a resource; False where it did not exist. Resources stay in use for a while after a machine's end.

    Raises:
        ProviderError: it is still in use after `IN_USE_S`, or EC2 refused.
    """
    pauses, last = teardown.pauses(), anyio.current_time() + IN_USE_S
    while True:
        try:
            await delete(name)
        except ProviderError as error:
            if "NotFound" in error.code or error.code.endswith(".Unknown"):
                return False
            if not error.code.endswith(".InUse") or anyio.current_time() > last:
                raise
        else:
            return True
        await anyio.sleep(next(pauses))
