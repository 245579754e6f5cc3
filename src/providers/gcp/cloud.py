"""Compute Engine in one project, as far as machines are found and ended: the port of `providers.cloud`.

A machine's id is ``NAME.ZONE``, as in its internal host name. Deleted machines are in no list: one that is missing and
that ``GET`` does not know either has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..base import MachineId
from ..cloud import small_labels as labels
from ..cloud import teardown
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.port import Leftover, Removed
from ..errors import ProviderError
from ..resource_ownership import Claim, Others, Thing
from ..side_by_side import each_of
from . import network
from .vendor import CAUSES, FULL_TIME, VENDOR

if TYPE_CHECKING:
    from .api import Api

STATES: Mapping[str, State] = {
    "PENDING": "pending", "PROVISIONING": "pending", "STAGING": "pending", "RUNNING": "running",
    "REPAIRING": "stopping", "SUSPENDING": "stopping", "SUSPENDED": "stopped", "STOPPED": "stopped",
    "TERMINATED": "stopped", "DEPROVISIONING": "shutting-down",
    # A preempted machine is in this state during its notice: it runs, unless it was asked to end (see `view_of`).
    "PENDING_STOP": "running", "STOPPING": "running",
}  # fmt: skip
_ONE = "name,zone,status,machineType,labels,description,scheduling,creationTimestamp,networkInterfaces"
FIELDS = f"items/*/instances({_ONE}),nextPageToken"


class GCPCloud:
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 64

    def __init__(self, api: Api) -> None:
        self.api = api
        self._ended: set[str] = set()  # by `end`
        self._reasons: dict[str, str] = {}

    @property
    def place(self) -> Mapping[str, str]:
        """The project. Its machines are found in all regions, so the region is not part of it."""
        told = {"project": self.api.project, "credentials": self.api.file, "endpoint_url": self.api.endpoint_url}
        return {key: text for key, text in told.items() if text}

    def where(self, place: Mapping[str, str]) -> str:
        return " ".join(filter(None, (place.get("project"), place.get("endpoint_url"))))

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        found = {id_of(each): each for each in await instances(self.api, pool)}
        hidden = [name for name in also if name not in found]
        views = [
            view_of(each, asked=name in self._ended)
            for name, each in found.items()
            if of is None or of.has(labels.thing(name, each))
        ]
        if of is None or isinstance(of, Claim):  # whoever names machines knows that they are the pool's
            views += await each_of(hidden, self._look)
        for place, view in enumerate(views):
            if not view.lives and view.id not in self._ended:
                views[place] = InstanceView(view.id, view.state, reason=await self._why(view.id), launch=view.launch)
        return views

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        self._ended.update(machines)
        return await each_of(machines, self._end)

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002
        return False  # each machine has a call of its own

    @property
    def leftovers(self) -> Sequence[Leftover]:
        return (Leftover(network.KIND, self._remove_rules, has_machines=True),)

    async def _remove_rules(self, what: Claim | Others, known: Sequence[str]) -> Removed:
        shown, delete = partial(network.shown, self.api), partial(network.delete, self.api)
        return await teardown.remove_each(what, known, shown=shown, delete=delete)

    async def _look(self, machine: str) -> InstanceView:
        found = await look(self.api, machine)
        if found is None:
            return InstanceView(MachineId(machine), "terminated")
        return view_of(found, asked=machine in self._ended)

    async def _end(self, machine: str) -> InstanceView:
        try:
            await self.api.call("DELETE", path_of(machine))
        except ProviderError as error:
            if error.code == "notFound":
                return InstanceView(MachineId(machine), "terminated")
            if error.code not in {"resourceNotReady", "RESOURCE_NOT_READY"}:  # that is, it is being deleted already
                raise
        return InstanceView(MachineId(machine), "shutting-down")

    async def _why(self, machine: str) -> str:
        """The reason of an end that nobody here asked for: the newest operation on the machine that explains it."""
        if machine not in self._reasons:
            name, _, zone = machine.partition(".")
            target = f'(targetLink eq ".*/instances/{name}")'
            done: list[dict[str, Any]] = []
            with suppress(ProviderError):  # that it has ended is known all the same
                done = await self.api.pages(f"/zones/{zone}/operations", {"filter": target})
            kinds = [
                each for each in sorted(done, key=lambda each: each.get("insertTime", "")) if kind_of(each) in CAUSES
            ]
            if not kinds:
                return ""
            self._reasons[machine] = kind_of(kinds[-1])
        return self._reasons[machine]


def kind_of(operation: Mapping[str, Any]) -> str:
    """The kind of an operation. One by which Google itself deletes a machine means that its run time is over."""
    kind, user = operation.get("operationType", ""), operation.get("user", "")
    return FULL_TIME if kind in {"delete", "stop"} and user.startswith("system") else kind


async def instances(api: Api, pool: str = "", *, token: str = "") -> list[dict[str, Any]]:
    """The machines with the label of ``pool``, of the order with this token, or of any pool."""
    which = f"labels.{labels.POOL}:*"
    if pool:
        which = f"labels.{labels.POOL} = {labels.value(pool)}"
    if token:
        which = f"labels.{labels.LAUNCH} = {token}"
    return await api.pages("/aggregated/instances", {"filter": which, "fields": FIELDS})


async def look(api: Api, machine: str) -> dict[str, Any] | None:
    """One machine; None: there is none (any more)."""
    try:
        found: dict[str, Any] = await api.call("GET", path_of(machine))
    except ProviderError as error:
        if error.code != "notFound":
            raise
        return None
    return found


def id_of(instance: Mapping[str, Any]) -> MachineId:
    return MachineId(f"{instance['name']}.{instance['zone'].rpartition('/')[2]}")


def path_of(machine: str) -> str:
    name, _, zone = machine.partition(".")
    return f"/zones/{zone}/instances/{name}"


def view_of(instance: Mapping[str, Any], *, asked: bool) -> InstanceView:
    """A machine in an answer. ``asked``: its end was asked for."""
    (private, public), status = addresses(instance), instance["status"]
    state = "shutting-down" if asked and status == "STOPPING" else STATES[status]
    launch = (instance.get("labels") or {}).get(labels.LAUNCH, "")
    return InstanceView(id_of(instance), state, public=public, private=private, launch=launch)


def addresses(instance: Mapping[str, Any]) -> tuple[str, str]:
    """A machine's private and public address, "" where it has none yet."""
    first = (instance.get("networkInterfaces") or [{}])[0]
    public = [each.get("natIP") or "" for each in first.get("accessConfigs") or ()]
    return first.get("networkIP") or "", next(iter(public), "")


def thing(instance: Mapping[str, Any]) -> Thing:
    return labels.thing(id_of(instance), instance)
