"""Compute Engine in one project: the implementation of `providers.cloud.port.Cloud`, which finds and ends machines.

A machine's id is ``NAME.ZONE``, as in its internal host name. Compute Engine does not list deleted machines, but a list
may also lack a machine that exists: a machine has ended only if ``GET`` does not know it either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..base import MachineId
from ..cloud import small_labels as labels
from ..cloud.failures import unless_unknown
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.listed import ListedMachine, time_of
from ..cloud.teardown import leftover
from ..errors import ProviderError
from ..resource_ownership import Claim, Others
from ..side_by_side import each_of
from . import network
from .api import Api
from .errors import NOT_READY, UNKNOWN
from .vendor import CAUSES, FULL_TIME, VENDOR

STATES: Mapping[str, State] = {
    "PENDING": "pending", "PROVISIONING": "pending", "STAGING": "pending", "RUNNING": "running",
    "REPAIRING": "stopping", "SUSPENDING": "stopping", "SUSPENDED": "stopped", "STOPPED": "stopped",
    "TERMINATED": "stopped", "DEPROVISIONING": "shutting-down",
    # A preempted machine is in this state between notice and end, and still runs. If this client has asked to end it,
    # see `describe`.
    "PENDING_STOP": "running", "STOPPING": "running",
}  # fmt: skip
_ONE = "name,zone,status,machineType,labels,description,scheduling,creationTimestamp,networkInterfaces"
FIELDS = f"items/*/instances({_ONE}),nextPageToken"
ANY_POOL = f"labels.{labels.POOL}:*"


@asynccontextmanager
async def reach(place: Mapping[str, str], region: str = "") -> AsyncIterator[GCPCloud]:
    """Open Compute Engine in a place (`Api.open`)."""
    async with Api.open(place, region) as api:
        yield GCPCloud(api)


class GCPCloud:
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 64

    def __init__(self, api: Api) -> None:
        # The place has no region, because a pool's machines are searched in all regions of the project.
        self.api, self.place = api, api.place
        self.leftovers = (
            leftover(
                network.KIND,
                shown=partial(network.shown, api),
                delete=partial(network.delete, api),
                is_unknown=lambda error: error.code in UNKNOWN,
                has_machines=True,
            ),
        )
        self._ended: set[str] = set()  # machines for which `end` was called
        self._reasons: dict[str, str] = {}

    def where(self, place: Mapping[str, str]) -> str:
        return " ".join(filter(None, (place.get("project"), place.get("endpoint_url"))))

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        # If the caller passes no claim, it has already checked that the machines named in `also` are the pool's.
        known = also if of is None or isinstance(of, Claim) else ()
        listed, others = await instances(self.api, f"labels.{labels.POOL} = {labels.value(pool)}", known)
        views = [each.view for each in listed if of is None or of.has(each.whose)]
        views += [each.view if each else InstanceView(MachineId(name), "terminated") for name, each in others.items()]
        return [await self._explained(each) for each in views]

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        self._ended.update(machines)
        return await each_of(machines, self._end)

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002
        return False  # no call names several machines, so no call fails because of one unknown machine

    async def _end(self, machine: str) -> InstanceView:
        try:
            await self.api.call("DELETE", path_of(machine))
        except ProviderError as error:
            if error.code in UNKNOWN:
                return InstanceView(MachineId(machine), "terminated")
            if error.code not in NOT_READY:  # NOT_READY: the machine is already being deleted
                raise
        return InstanceView(MachineId(machine), "shutting-down")

    async def _explained(self, view: InstanceView) -> InstanceView:
        """Correct the view of a machine. If this process has asked to end the machine, it is ending, although Compute
        Engine may show it as running; if it ended otherwise, add the reason.
        """
        if view.id in self._ended:
            return replace(view, state="shutting-down") if view.reason == "STOPPING" else view
        return view if view.lives else replace(view, reason=await self._why(view.id))

    async def _why(self, machine: str) -> str:
        """Return why a machine ended without a request of this process. The newest operation on the machine that
        explains it counts.
        """
        if machine not in self._reasons:
            name, _, zone = machine.partition(".")
            target = f'(targetLink eq ".*/instances/{name}")'
            done: list[dict[str, Any]] = []
            with suppress(ProviderError):  # without an answer, the machine's end is reported without a reason
                done = await self.api.pages(f"/zones/{zone}/operations", {"filter": target})
            for each in sorted(done, key=lambda each: each.get("insertTime", "")):
                kind = each.get("operationType", "")
                if kind in {"delete", "stop"} and each.get("user", "").startswith("system"):
                    kind = FULL_TIME  # Google's system itself ended the machine, because its maximum run time was over
                if kind in CAUSES:
                    self._reasons[machine] = kind  # the newest operation comes last, and so replaces older reasons
        return self._reasons.get(machine, "")


async def instances(
    api: Api, which: str, known: Collection[str] = ()
) -> tuple[list[ListedMachine], dict[str, ListedMachine | None]]:
    """Return two results: the machines in all zones that the filter ``which`` selects, and, by id, the ``known``
    machines that it does not select (None: that machine has ended).
    """
    listed = [read(each) for each in await api.pages("/aggregated/instances", {"filter": which, "fields": FIELDS})]
    hidden = sorted({*known}.difference(each.id for each in listed))

    async def look(machine: str) -> ListedMachine | None:
        answer = await unless_unknown(api.call("GET", path_of(machine)), *UNKNOWN)
        return None if answer is None else read(answer)

    return listed, dict(zip(hidden, await each_of(hidden, look), strict=True))


def path_of(machine: str) -> str:
    name, _, zone = machine.partition(".")
    return f"/zones/{zone}/instances/{name}"


def read(instance: Mapping[str, Any]) -> ListedMachine:
    """Convert a machine in a response to a `ListedMachine`. Its reason is Compute Engine's status, which is more
    detailed than the state.
    """
    status, zone = instance["status"], instance["zone"].rpartition("/")[2]
    first = (instance.get("networkInterfaces") or [{}])[0]
    public = [each.get("natIP") or "" for each in first.get("accessConfigs") or ()]
    spot = (instance.get("scheduling") or {}).get("provisioningModel") == "SPOT"
    return ListedMachine(
        labels.thing(f"{instance['name']}.{zone}", instance),
        STATES[status],
        status=STATES[status],
        kind=instance["machineType"].rpartition("/")[2],
        zone=zone,
        market="spot" if spot else "on-demand",
        launched_at=time_of(instance["creationTimestamp"]),
        hourly_usd=labels.fields_of(instance).get("usd") if status != "TERMINATED" else None,
        public=next(iter(public), ""),
        private=first.get("networkIP") or "",
        reason=status,
    )
