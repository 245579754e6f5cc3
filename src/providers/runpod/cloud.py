"""RunPod with one API key: the implementation of `providers.cloud.port.Cloud`, which finds and ends pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import quote

from ..base import MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud, reached
from ..cloud.failures import unless_unknown
from ..cloud.http import HttpApi
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.listed import ListedMachine, time_of
from ..cloud.pages import every_page
from ..errors import ProviderError
from ..side_by_side import each_of
from .names import UNTIL, thing
from .service import KEYS, PODS, service
from .vendor import ERROR, EXITED, UNKNOWN, VENDOR

_STATES: Mapping[str, State] = {
    "PROVISIONING": "pending",
    "STARTING": "pending",
    "RUNNING": "running",
    EXITED: "stopped",  # the pool ends such a pod, because nothing uses it again
    ERROR: "stopped",
    "TERMINATED": "terminated",
}


def reach(place: Mapping[str, str]) -> AbstractAsyncContextManager[RunPodCloud]:
    """Open RunPod in a place (`account.reached`)."""
    return reached(RunPodCloud, KEYS, service(place.get("endpoint_url")), place)


class RunPodCloud(AccountCloud):
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 8  # each call ends one pod, so this is the number of concurrent calls

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        super().__init__(api, place)
        self._ending: set[str] = set()  # pods that this process has asked RunPod to end

    async def machines(self) -> list[ListedMachine]:
        return [read(each) for each in await self.pods()]

    async def unlisted(self, machine: str) -> InstanceView | None:
        if machine not in self._ending:
            return None
        pod = await unless_unknown(self.api.call("GET", _path(machine)), UNKNOWN)
        return InstanceView(MachineId(machine), "terminated") if pod is None else read(pod).view

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        """End pods, and query each pod to confirm its end. A pod that RunPod does not know has no result."""
        return [each for each in await each_of(machines, self._delete) if each is not None]

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002 (a missing pod is not an error)
        return False

    async def pods(self) -> list[dict[str, Any]]:
        """Return all pods of the account, except those of clusters.

        Raises:
            ProviderError: RunPod does not respond.
        """

        async def page(cursor: str) -> tuple[list[dict[str, Any]], str]:
            answer = await self.api.call("GET", PODS, params={"cursor": cursor} if cursor else None)
            where = answer.get("pagination") or {}
            following = where.get("nextCursor") if where.get("hasNextPage") else None
            return self.api.part(answer, list, "pods"), following or ""

        return await every_page(page)

    async def _delete(self, name: str) -> InstanceView | None:
        try:
            await self.api.call("DELETE", _path(name))
        except ProviderError as error:
            if error.code != UNKNOWN:
                raise
            return None
        self._ending.add(name)
        return InstanceView(MachineId(name), "shutting-down")


def _path(pod: str) -> str:
    return f"{PODS}/{quote(pod, safe='')}"


def read(pod: Mapping[str, Any]) -> ListedMachine:
    """Convert a pod in a response to a `ListedMachine`. An unknown state counts as running.

    A pod has no public address until RunPod has mapped a public port to its SSH server.
    """
    status, direct = pod["status"], (pod.get("ssh") or {}).get("direct")
    kind = pod.get("gpu") or pod.get("cpu") or {"id": "?"}
    return ListedMachine(
        thing(pod),
        _STATES.get(status, "running"),
        status=status,
        kind=kind["id"] if kind.get("count", 1) == 1 else f"{kind['count']} x {kind['id']}",
        zone=pod.get("dataCenterId") or "",
        launched_at=time_of(pod.get("createdAt")),
        hourly_usd=pod.get("cost"),
        until=labels.number((pod.get("env") or {}).get(UNTIL, "")),
        public=direct["host"] if direct else "",
        private=(pod.get("globalNetworking") or {}).get("ip", ""),
        port=direct["port"] if direct else 0,
        reason=status if status in VENDOR.causes else "",
    )
