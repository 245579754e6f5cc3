"""Launches of a pool on Compute Engine: the implementation of `providers.cloud.port.Launcher`.

A launch is one bulkInsert (a call that creates many machines) in the region, with one machine type and several possible
zones. The machines' names are derived from the order's token. If Compute Engine has forgotten the requestId of a call
that is repeated, the names exist already, so nothing is created twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest, Machine, MachineId
from ..cloud import offers
from ..cloud import small_labels as labels
from ..cloud.caching import Shared
from ..cloud.calls import AGAIN_S, CallRefused
from ..cloud.labels import labels_of
from ..cloud.machine_start import host_key, new_machine, user_data_for
from ..cloud.offers import Cooldowns, Offer
from ..cloud.port import Answer, Created, Order, Plan
from ..cloud.recorder import FLEET, FLEET_S
from ..errors import ProviderError
from . import catalogue, cloud
from .api import NOT_READY, SUMMARY, failures, of_operation
from .catalogue import VENDOR
from .cloud import instances

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.recorder import Recorder
    from .api import Api
    from .cloud import GCPOptions

# Seconds that are billed at least; Google's page "VM instance pricing": by the second, for at least a minute.
BILLED_S = 60.0
# USD per GB and hour, from Google's page "Disk pricing" for us-central1, which has the price per month.
BALANCED_GB_USD = 0.10 / 730
IPV4_USD = 0.005  # USD per hour, from Google's page "Network pricing"; spot machines pay half of it
ONLY_HYPERDISK = ("a4", "c4", "g4", "h4", "n4", "x4")  # prefixes of families that do not support Persistent Disk
DISK_GB, GPU_DISK_GB = 20, 60
UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts"
# Ubuntu with NVIDIA's driver, whose kernel modules are signed. R580 is the last driver version for P100 and V100.
UBUNTU_GPU = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404"
# Google ends a machine this long (seconds) after its max_lifetime, in case the machine does not end by its own lease.
MORE_S = 300.0
SHORTEST_S = 30  # seconds, the shortest run time that Google accepts; page "Limit the run time of a VM"
LISTED_S = 15.0  # seconds after which a list of all zones has the new machines
# Google's guest agent would generate new host keys at the first boot, and so replace the pinned host key.
KEEP_HOST_KEY = "printf '[InstanceSetup]\\nset_host_keys = false\\n' >/etc/default/instance_configs.cfg"


@dataclass(slots=True, kw_only=True)
class BulkOrder(Order):
    """One bulkInsert (a call that creates many machines). ``machine`` returns the `Machine` for an id and an offer."""

    body: Mapping[str, Any]
    machine: Callable[[MachineId, Offer], Machine]


class GCPLauncher:
    """Implements `providers.cloud.port.Launcher`."""

    def __init__(self, provider: GCPOptions, api: Api, recorder: Recorder, tasks: TaskGroup) -> None:
        self._provider, self._api, self._recorder = provider, api, recorder
        self._pool_labels = labels_of(recorder.pool, {})
        self._tags = Shared(tasks, lambda: cloud.open_firewall(api, provider, recorder))

    def start(self) -> None:
        self._tags.start()

    async def stop(self) -> None:
        await self._tags.stop()

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> Plan:
        prepared = await plan(self._api, self._provider, request, cooldowns, living)
        await self._tags.get()
        return prepared

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> BulkOrder:
        request, provider, token, key, offer = plan.request, self._provider, uuid4().hex, host_key(), chosen[0]
        extras_usd = plan.extras_usd[offer.type.architecture]
        usd = offer.hourly_usd + extras_usd  # a type has one price in all zones of a region
        config = user_data_for(VENDOR, request, host_key=key, user=provider.user, at_boot=[KEEP_HOST_KEY])
        begin, allowed = f"{labels.stem(self._recorder.pool)}-{token[:10]}", {each.zone for each in chosen}
        there = {zone for each in (await catalogue.load(self._api)).zones.values() for zone in each}
        zones = {f"zones/{each}": {"preference": "ALLOW" if each in allowed else "DENY"} for each in sorted(there)}
        body = {
            "count": str(count),
            "minCount": "1",
            "perInstanceProperties": {f"{begin}-{number}": {} for number in range(count)},
            "instanceProperties": {
                **machine(provider, request, offer, self._api.region, config),
                "description": labels.description(self._pool_labels, token, usd=usd),
                "labels": labels.of_machines(self._pool_labels, dict(provider.labels), token),
                "tags": {"items": list(await self._tags.get())},
            },
            "locationPolicy": {"locations": zones, "targetShape": "ANY"},
        }
        new = partial(
            new_machine,
            host_key=key.public,
            image=image_of(offer, provider.image).rpartition("/")[2],
            extras_usd=extras_usd,
            notices=("gcp", "gcp-maintenance"),
            billed_at_least_s=BILLED_S,
            facts={"region": self._api.region},
        )
        now = anyio.current_time()
        return BulkOrder(token=token, offers=chosen, count=count, hourly_usd=usd, at=now, body=body, machine=new)

    async def create(self, order: BulkOrder) -> Answer:
        ids, errors = await self._recorder.create(
            FLEET, order.token, {"count": str(order.count)}, lambda: self._ask(order), lambda names: names[0]
        )
        by_zone = {offer.zone: offer for offer in order.offers}
        which = [(name, by_zone.get(name.rpartition(".")[2], order.offers[0])) for name in ids]
        return Answer(
            [Created(order.machine(name, offer), offer, self._provider.user) for name, offer in which], errors
        )

    def is_unknown_yet(self, error: ProviderError) -> bool:
        return error.code in NOT_READY

    def forget(self, order: BulkOrder) -> None:
        pass

    async def _ask(self, order: BulkOrder) -> tuple[list[MachineId], list[tuple[Sequence[Offer], ProviderError]]]:
        """Send the bulkInsert call for an order, and wait for the operation that it starts.

        Return the ids of the created machines, and the refusals (offers with the error of each) if there are none.

        Raises:
            ProviderError: Nothing was created, or the outcome is unknown.
        """
        path = f"/regions/{self._api.region}/instances/bulkInsert"
        started = await self._api.call("POST", path, body=order.body, token=order.token)
        order.carried_out = True
        try:
            operation = await self._api.done(started, timeout_s=FLEET_S - LISTED_S)
            status = (operation.get("instancesBulkInsertOperationMetadata") or {}).get("perLocationStatus") or {}
            count = sum(each.get("createdVmCount", 0) - each.get("deletedVmCount", 0) for each in status.values())
            if (errors := failures(operation)) and not count:
                refused = await self._refusals(order, operation, errors)
                order.carried_out = False  # the operation itself shows that no machine was created
                return [], refused
            return await self._listed(order, count if status else order.count), []
        except ProviderError as error:  # the query of the outcome failed, so machines may exist
            reason = f"{error}: whether Google has made the machines is not known"
            raise CallRefused(reason, retry_after_s=AGAIN_S, code=error.code) from error

    async def _listed(self, order: BulkOrder, count: int) -> list[MachineId]:
        """Wait until Compute Engine lists all ``count`` machines of an order, and return their ids.

        An id contains the machine's zone, which only the list shows.

        Raises:
            CallRefused: The list does not have all machines after `LISTED_S`.
        """
        with anyio.move_on_after(LISTED_S):
            while True:
                machines, _ = await instances(self._api, f"labels.{labels.LAUNCH} = {order.token}")
                mine = [
                    each.id for each in machines if each.id.partition(".")[0] in order.body["perInstanceProperties"]
                ]
                if len(mine) >= count:
                    return sorted(mine)
                await anyio.sleep(AGAIN_S / 4)
        raise CallRefused(f"Compute Engine does not list the {count} machines that it has made", retry_after_s=AGAIN_S)

    async def _refusals(
        self, order: BulkOrder, operation: Mapping[str, Any], errors: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Sequence[Offer], ProviderError]]:
        """Return why a launch failed: one reason per zone, if the operations on single machines have reasons, else one
        reason.
        """
        refusals: list[tuple[Sequence[Offer], ProviderError]] = []
        group, kind = operation.get("operationGroupId"), order.offers[0]
        what = f"spot {kind.type.name}" if kind.market == "spot" else kind.type.name
        if group and all(each.get("code") == SUMMARY for each in errors):
            for offer in order.offers:
                path, query = f"/zones/{offer.zone}/operations", {"filter": f'operationGroupId eq "{group}"'}
                zone_errors = [error for part in await self._api.pages(path, query) for error in failures(part)]
                if zone_errors:
                    refusals.append(([offer], of_operation(zone_errors, self._api, what, offer.zone)))
        where = kind.zone if len(order.offers) == 1 else ""
        return refusals or [(order.offers, of_operation(errors, self._api, what, where))]


async def plan(
    api: Api, provider: GCPOptions, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]
) -> Plan:
    """Choose offers for a launch. Each round of offers has one machine type, because a bulkInsert accepts only one.

    Raises:
        ProviderError: There are no offers.
    """
    together = request.nodes > 1 and request.accelerator is not None and request.accelerator.count > 1
    usd = disk_gb(request) * BALANCED_GB_USD + (IPV4_USD if provider.public else 0.0)
    extras: dict[Architecture, float] = {"x86_64": usd, "arm64": usd}
    rounds = offers.choose(
        request,
        await catalogue.load(api),
        cooldowns,
        anyio.current_time(),
        instance_types=provider.instance_types,
        zones=provider.zones,
        together=together,
        extras_usd=extras,
    )
    taken = offers.in_one_place(rounds, living) if together else offers.of_one_type(rounds)
    return Plan(request, taken, extras, api.region)


# --- a machine --------------------------------------------------------------------------------------------------------


def image_of(offer: Offer, option: str | None) -> str:
    """Return the image for an offer: the user's image (a family or a full path), or by default a current Ubuntu."""
    if option is not None:
        return option if "/" in option else f"global/images/family/{option}"
    processor = "arm64" if offer.type.architecture == "arm64" else "amd64"
    return f"{UBUNTU_GPU}-{processor}-with-nvidia-580" if offer.type.accelerator else f"{UBUNTU}-{processor}"


def disk_gb(request: LaunchRequest) -> int:
    return max(request.disk_gb, GPU_DISK_GB if request.accelerator is not None else DISK_GB)


def machine(provider: GCPOptions, request: LaunchRequest, offer: Offer, region: str, config: str) -> dict[str, Any]:
    """Return the properties of a machine of this offer, without the machine's labels. ``config``: the machine's user
    data.
    """
    kind, _, gpus = offer.type.name.partition("+")  # "n1-standard-8+nvidia-tesla-t4:2" has two attached GPUs
    gpu, _, count = gpus.partition(":")
    interface: dict[str, Any] = {"network": f"global/networks/{provider.network}"}
    if provider.subnet:
        interface = {"subnetwork": f"regions/{region}/subnetworks/{provider.subnet}"}
    if provider.public:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    disk = {
        "sourceImage": image_of(offer, provider.image),
        "diskSizeGb": str(disk_gb(request)),
        "diskType": "hyperdisk-balanced" if kind.startswith(ONLY_HYPERDISK) else "pd-balanced",
    }
    spot, run_s = offer.market == "spot", provider.max_run_hours * 3600
    if request.max_lifetime_s is not None:
        run_s = min(run_s, request.max_lifetime_s + MORE_S)
    properties: dict[str, Any] = {
        "machineType": kind,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [interface],
        "metadata": {
            "items": [
                {"key": "user-data", "value": config},
                # Refuse the project's own SSH keys, so that only the pool may log in.
                {"key": "block-project-ssh-keys", "value": "TRUE"},
                {"key": "enable-oslogin", "value": "FALSE"},
            ]
        },
        "scheduling": {
            "provisioningModel": "SPOT" if spot else "STANDARD",
            "automaticRestart": False,  # no restart: a machine that has restarted would not be the same node
            "onHostMaintenance": "TERMINATE" if spot or offer.type.accelerator else "MIGRATE",
            # Applies when maxRunDuration is over, and when a spot machine is preempted.
            "instanceTerminationAction": "DELETE",
            "maxRunDuration": {"seconds": str(ceil(max(run_s, SHORTEST_S)))},
        },
    }
    if gpus:
        properties["guestAccelerators"] = [{"acceleratorType": gpu, "acceleratorCount": int(count)}]
    if provider.service_account is not None:
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        properties["serviceAccounts"] = [{"email": provider.service_account, "scopes": scopes}]
    return properties
