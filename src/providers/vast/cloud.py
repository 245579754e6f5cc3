"""Vast.ai with one account, as far as instances are found and ended: the port of `providers.cloud`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..base import MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud
from ..cloud.http import HttpApi
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.port import Leftover
from ..errors import ProviderError
from ..resource_ownership import Claim, Others, Thing
from .service import END, LIST, Account, field_of
from .vendor import OUTBID, STOPPED, UNKNOWN, VENDOR

PORT = 22  # of the SSH server in each container
PAGE = 25  # instances in one answer, at most
LABEL_AT_MOST = 256  # characters: x-input-validation of create_instance.yaml
# By `actual_status`, as the page of `vastai show instances` explains them. Others leave open what will be: null and
# "loading" while it is made, "rebooting", and "offline" or "unknown" where its host does not answer Vast.ai: if it does
# not answer the pool either, the pool finds that out by itself.
_STATES: Mapping[str, State] = {
    "running": "running",
    "stopped": "stopped",  # with a disk that costs money: it is ended when it is seen
    "exited": "stopped",
    "frozen": "stopped",
}


class VastCloud(AccountCloud):
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 50

    def __init__(self, api: HttpApi, account: Account, place: Mapping[str, str]) -> None:
        super().__init__(api, {"account": account.id, **place})
        self.account = account
        self._ended: set[str] = set()  # instances whose deletion Vast.ai has confirmed

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        listed = await self.instances()
        found = [each for each in listed if thing(each).pool == pool or str(each["id"]) in also]
        views = [view(each) for each in found if of is None or of.has(thing(each))]
        gone = {*also} & self._ended - {str(each["id"]) for each in listed}  # deleted, and not listed any more
        return views + [InstanceView(MachineId(each), "terminated") for each in sorted(gone)]

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        body = {"instance_ids": [int(each) for each in machines]}
        await self.api.call("DELETE", END, body=body)
        self._ended |= {*machines}
        return [InstanceView(MachineId(each), "shutting-down") for each in machines]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code in UNKNOWN

    @property
    def leftovers(self) -> Sequence[Leftover]:
        return ()

    async def instances(self) -> list[dict[str, Any]]:
        """All instances of the account.

        Raises:
            ProviderError: Vast.ai does not answer.
        """
        listed: list[dict[str, Any]] = []
        asked = {"limit": str(PAGE), "order_by": '[{"col":"id","dir":"asc"}]'}
        while True:
            answer = await self.api.call("GET", LIST, params=asked)
            listed += field_of(answer, "instances", list)
            following = answer.get("next_token")
            if not following:
                return listed
            asked["after_token"] = following


# --- what Vast.ai says of instances -----------------------------------------------------------------------------------


def labels_in(instance: Mapping[str, Any]) -> dict[str, str]:
    return labels.of_text(instance.get("label") or "")


def thing(instance: Mapping[str, Any]) -> Thing:
    return labels.thing(str(instance["id"]), labels_in(instance))


def view(instance: Mapping[str, Any]) -> InstanceView:
    """The sighting of an instance. It is reached at the port that its host has mapped to its own."""
    state = _STATES.get(instance.get("actual_status") or "", "pending")
    mapped = (instance.get("ports") or {}).get(f"{PORT}/tcp") or ()
    port = next((int(each["HostPort"]) for each in mapped if each.get("HostPort")), 0)
    return InstanceView(
        MachineId(str(instance["id"])),
        state,
        public=(instance.get("public_ipaddr") or "").strip() if port else "",
        port=port or PORT,
        reason="" if state != "stopped" else OUTBID if instance.get("is_bid") else STOPPED,
        message=instance.get("status_msg") or "",
        launch=labels_in(instance).get(labels.LAUNCH, ""),
    )
