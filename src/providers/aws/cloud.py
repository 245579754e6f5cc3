"""EC2 in one region: the implementation of `providers.cloud.port.Cloud`, which finds and ends machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..base import MachineId
from ..cloud.instance_inventory import InstanceView
from ..errors import ProviderError
from ..resource_ownership import Claim, Others
from . import listing, tags
from .api import Api
from .leftovers import leftovers
from .vendor import VENDOR


def place_of(api: Api) -> dict[str, str]:
    """Return the place of a pool, as the journal stores it."""
    place = {"region": api.region, "endpoint_url": api.endpoint_url, "profile": api.profile}
    return {key: value for key, value in place.items() if value}


class EC2Cloud:
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 500  # "TerminateInstances", EC2 API Reference: at most 1000; smaller calls are faster

    def __init__(self, api: Api) -> None:
        self.api, self.leftovers = api, leftovers(api)

    @property
    def place(self) -> Mapping[str, str]:
        return place_of(self.api)

    def where(self, place: Mapping[str, str]) -> str:
        return " ".join(filter(None, (place.get("region"), place.get("endpoint_url"))))

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        return listing.views_of(await listing.instances(self.api, tags.of(pool), also=also), of)

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        answer = await self.api.call("terminate_instances", InstanceIds=list(machines))
        ended = answer.get("TerminatingInstances") or ()
        return [InstanceView(MachineId(each["InstanceId"]), each["CurrentState"]["Name"]) for each in ended]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code.startswith("InvalidInstanceID")
