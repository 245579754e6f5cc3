"""RunPod with one key, as far as pods are found and ended: the port of `providers.cloud`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from ..base import MachineId
from ..cloud.account import AccountCloud
from ..cloud.http import HttpApi, Key
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.port import Leftover
from ..errors import ProviderError
from ..resource_ownership import Claim, Others
from ..side_by_side import each_of
from .names import thing
from .service import KEYS, PODS, part_of, service
from .vendor import ERROR, EXITED, UNKNOWN, VENDOR

_STATES: Mapping[str, State] = {
    "PROVISIONING": "pending",
    "STARTING": "pending",
    "RUNNING": "running",
    EXITED: "stopped",  # and ended by the fleet: nothing of it is used again
    ERROR: "stopped",
    "TERMINATED": "terminated",
}


@asynccontextmanager
async def reach(place: Mapping[str, str]) -> AsyncIterator[RunPodCloud]:
    """Open RunPod in a place: of a pool's, with an ``account``, or as a provider's options say it.

    Raises:
        NotAuthorized: there is no key, or it is another than the one that the place was made with.
        BadRequest: ``outrider[runpod]`` is not installed, or the endpoint is no URL.
    """
    key, account = await KEYS.of(place)
    async with HttpApi.open(service(place.get("endpoint_url")), Key(key)) as api:
        yield RunPodCloud(api, {"account": account, **place})


class RunPodCloud(AccountCloud):
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 8  # calls side by side: each ends one pod
    leftovers: Sequence[Leftover] = ()

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        super().__init__(api, place)
        self._ending: set[str] = set()  # pods whose end was asked for

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        listed = await self.pods()
        whose = {each["id"]: thing(each) for each in listed}
        found = [each for each in listed if whose[each["id"]].pool == pool or each["id"] in also]
        views = [view(each) for each in found if of is None or of.has(whose[each["id"]])]
        hidden = sorted({*also} & self._ending - whose.keys())
        return views + [await self._look(name) for name in hidden]

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        """End pods. A look at each afterwards confirms it. Of one that RunPod does not know nothing is said."""
        return [each for each in await each_of(machines, self._delete) if each is not None]

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002 (to end one that is gone is no error)
        return False

    async def pods(self) -> list[dict[str, Any]]:
        """All pods of the account, but for those of clusters.

        Raises:
            ProviderError: RunPod does not answer.
        """
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            answer = await self.api.call("GET", PODS, params={"cursor": cursor} if cursor else None)
            found += part_of(answer, "pods", list)
            page = answer.get("pagination") or {}
            last, cursor = cursor, page.get("nextCursor")
            if not page.get("hasNextPage") or not cursor or cursor == last:
                return found

    async def _delete(self, name: str) -> InstanceView | None:
        try:
            await self.api.call("DELETE", f"{PODS}/{quote(name, safe='')}")
        except ProviderError as error:
            if error.code != UNKNOWN:
                raise
            return None
        self._ending.add(name)
        return InstanceView(MachineId(name), "shutting-down")

    async def _look(self, name: str) -> InstanceView:
        """Look for a pod whose end was asked for, and that the list does not show."""
        try:
            return view(await self.api.call("GET", f"{PODS}/{quote(name, safe='')}"))
        except ProviderError as error:
            if error.code != UNKNOWN:
                raise
            return InstanceView(MachineId(name), "terminated")


def view(pod: Mapping[str, Any]) -> InstanceView:
    """The sighting of a pod. A state that RunPod has added since is that of one that runs.

    It can be reached when RunPod has mapped a public port to its SSH server.
    """
    status, direct = pod["status"], pod["ssh"]["direct"]
    return InstanceView(
        MachineId(pod["id"]),
        _STATES.get(status, "running"),
        public=direct["host"] if direct else "",
        private=pod["globalNetworking"].get("ip", ""),
        reason=status if status in VENDOR.causes else "",
        launch=thing(pod).launch,
        port=direct["port"] if direct else 0,
    )
