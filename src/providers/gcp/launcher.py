"""A pool's launches on Compute Engine: the half of the port of `providers.cloud` that creates machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest, MachineId
from ..cloud import offers
from ..cloud import small_labels as labels
from ..cloud.cooldowns import Cooldowns
from ..cloud.failures import AGAIN_S, CallRefused
from ..cloud.keys import host_key
from ..cloud.labels import labels_of
from ..cloud.machine import new_machine
from ..cloud.offers import Offer
from ..cloud.port import Answer, Made, Order, Plan
from ..cloud.single_flight import Shared
from ..cloud.userdata import user_data_for
from ..cloud.written import FLEET, FLEET_S
from ..errors import ProviderError
from . import catalogue, launch, network
from .api import failures
from .cloud import instances
from .errors import NOT_READY, SUMMARY
from .vendor import VENDOR

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.recorder import Recorder
    from .api import Api
    from .provider import GCP

LISTED_S = 15.0  # new machines are in the list of all zones after so long


@dataclass(slots=True, kw_only=True)
class BulkOrder(Order):
    """One bulkInsert."""

    body: Mapping[str, Any]
    image: str
    host_key: str
    extras_usd: float


class GCPLauncher:
    """Implements `providers.cloud.port.Launcher`."""

    def __init__(self, provider: GCP, api: Api, recorder: Recorder, tasks: TaskGroup) -> None:
        self._provider, self._api, self._recorder = provider, api, recorder
        self._told = labels_of(recorder.pool, {})
        self._place = Shared(tasks, lambda: network.prepare(api, provider, recorder))

    def start(self) -> None:
        self._place.start()

    async def stop(self) -> None:
        await self._place.stop()

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> Plan:
        found = await plan(self._api, self._provider, request, cooldowns, living)
        await self._place.get()
        return found

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> BulkOrder:
        request, provider, token, key, offer = plan.request, self._provider, uuid4().hex, host_key(), chosen[0]
        extras_usd = plan.extras_usd[offer.type.architecture]
        machine = launch.machine(
            provider,
            request,
            offer,
            await self._place.get(),
            config=user_data_for(VENDOR, request, host_key=key, user=provider.user, at_boot=[launch.KEEP_HOST_KEY]),
            labels=labels.of_machines(self._told, dict(provider.labels), token),
            description=labels.description(self._told, token, usd=offer.hourly_usd + extras_usd),
        )
        names, zones = launch.names(self._recorder.pool, token, count), await catalogue.zones(self._api)
        return BulkOrder(
            token=token,
            offers=chosen,
            count=count,
            hourly_usd=max(each.hourly_usd for each in chosen) + extras_usd,
            at=anyio.current_time(),
            body=launch.bulk(chosen, names, zones, machine),
            image=launch.image_of(offer, provider.image),
            host_key=key.public,
            extras_usd=extras_usd,
        )

    async def create(self, order: BulkOrder) -> Answer:
        ids, errors = await self._recorder.create(
            FLEET, order.token, {"count": str(order.count)}, lambda: self._ask(order), lambda found: found[0]
        )
        by_zone = {offer.zone: offer for offer in order.offers}
        made = []
        for name in ids:
            offer = by_zone.get(name.rpartition(".")[2], order.offers[0])
            machine = new_machine(
                name,
                offer,
                host_key=order.host_key,
                image=order.image.rpartition("/")[2],
                extras_usd=order.extras_usd,
                notices=("gcp", "gcp-maintenance"),
                billed_at_least_s=launch.BILLED_S,
            )
            made.append(Made(machine, offer, self._provider.user))
        return Answer(made, errors)

    def is_unknown_yet(self, error: ProviderError) -> bool:
        return error.code in NOT_READY

    def forget(self, order: BulkOrder) -> None:
        pass

    async def _ask(self, order: BulkOrder) -> tuple[list[MachineId], list[tuple[Sequence[Offer], ProviderError]]]:
        """Make the call, and wait for its end; return the machines, or what was refused.

        Raises:
            ProviderError: nothing was created, or nobody knows.
        """
        path = f"/regions/{self._api.region}/instances/bulkInsert"
        asked = await self._api.call("POST", path, body=order.body, token=order.token)
        order.carried_out = True
        try:
            operation = await self._api.done(asked, timeout_s=FLEET_S - LISTED_S)
            status = (operation.get("instancesBulkInsertOperationMetadata") or {}).get("perLocationStatus") or {}
            count = sum(each.get("createdVmCount", 0) - each.get("deletedVmCount", 0) for each in status.values())
            errors = failures(operation)
            if errors and not count:
                refused = await self._refusals(order, operation, errors)
                order.carried_out = False  # it says itself that there are none
                return [], refused
            return await self._listed(order, count if status else order.count), []
        except ProviderError as error:  # whatever it says, it is not about the machines
            told = f"{error}: whether Google has made the machines is not known"
            raise CallRefused(told, retry_after_s=AGAIN_S, code=error.code) from error

    async def _listed(self, order: BulkOrder, count: int) -> list[MachineId]:
        """The machines of an order, once the list shows all ``count`` of them: it says in which zones they are.

        Raises:
            CallRefused: it does not, after `LISTED_S`.
        """
        with anyio.move_on_after(LISTED_S):
            while True:
                found = await instances(self._api, f"labels.{labels.LAUNCH} = {order.token}")
                mine = [each.id for each in found if each.id.partition(".")[0] in order.body["perInstanceProperties"]]
                if len(mine) >= count:
                    return sorted(mine)
                await anyio.sleep(AGAIN_S / 4)
        raise CallRefused(f"Compute Engine does not list the {count} machines that it has made", retry_after_s=AGAIN_S)

    async def _refusals(
        self, order: BulkOrder, operation: Mapping[str, Any], errors: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Sequence[Offer], ProviderError]]:
        """The reasons why there is no machine, for each zone if the operations on single machines say it."""
        group = operation.get("operationGroupId")
        by_zone: dict[str, list[Mapping[str, Any]]] = {}
        if group and all(each.get("code") == SUMMARY for each in errors):
            for zone in dict.fromkeys(offer.zone for offer in order.offers):
                parts = await self._api.pages(f"/zones/{zone}/operations", {"filter": f'operationGroupId eq "{group}"'})
                by_zone[zone] = [error for part in parts for error in failures(part)]
        told = [([offer], by_zone[offer.zone]) for offer in order.offers if by_zone.get(offer.zone)]
        return [(of, self._refused(of, why)) for of, why in told or [(list(order.offers), list(errors))]]

    def _refused(self, of: Sequence[Offer], errors: Sequence[Mapping[str, Any]]) -> ProviderError:
        spot = "spot " if of[0].market == "spot" else ""
        where = of[0].zone if len(of) == 1 else ""
        return self._api.error_of(errors, f"{spot}{of[0].type.name}", where=where)


async def plan(
    api: Api, provider: GCP, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]
) -> Plan:
    """Choose offers: rounds of one machine type each, as a bulkInsert has one.

    Raises:
        ProviderError: there are none.
    """
    stock = await catalogue.load(api)
    accelerator = request.accelerator
    together = accelerator is not None and accelerator.count > 1 and request.nodes > 1
    usd = launch.extras_usd(request, public=provider.public)
    extras: dict[Architecture, float] = {"x86_64": usd, "arm64": usd}
    rounds = offers.choose(
        request,
        stock,
        cooldowns,
        anyio.current_time(),
        instance_types=provider.instance_types,
        zones=provider.zones,
        together=together,
        extras_usd=extras,
    )
    taken = offers.in_one_place(rounds, living) if together else offers.of_one_type(rounds)
    return Plan(request, taken, extras, api.region)
