"""Vast.ai, as `outrider ps` and `outrider gc` ask it which instances there are, and where `gc` ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..cloud import labels
from ..cloud.surveyor import CloudSurveyor
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine

if TYPE_CHECKING:
    from .cloud import VastCloud


class VastSurveyor(CloudSurveyor["VastCloud"]):
    """Implements `survey.Surveyor`. A place has an account, and optionally a key_file and an endpoint_url."""

    provider, mark = "vast", "account"

    @asynccontextmanager
    async def reach(self, place: Place) -> AsyncIterator[VastCloud]:
        from .cloud import VastCloud
        from .service import open_api

        async with open_api(place) as (api, account):
            yield VastCloud(api, account, place)

    async def find(self, cloud: VastCloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        from .cloud import thing

        listed = await cloud.instances()
        return [_machine(each) for each in listed if thing(each).pool or str(each["id"]) in known], ()


def _machine(instance: Mapping[str, Any]) -> FoundMachine:
    from .catalogue import country
    from .cloud import labels_in, thing, view

    what, said, seen = thing(instance), labels_in(instance), view(instance)
    return FoundMachine(
        what.id,
        f"{instance.get('num_gpus') or 1}x {instance.get('gpu_name') or 'GPU'}",
        "spot" if instance.get("is_bid") else "on-demand",
        country(instance.get("geolocation")),
        instance.get("actual_status") or "being made",
        labels.number(said.get(labels.AT, "")) or instance.get("start_date") or 0.0,
        f"{seen.public}:{seen.port}" if seen.public else "",
        instance.get("dph_total"),
        labels.number(said.get(labels.UNTIL, "")),
        pool=what.pool,
        owner=what.owner,
        launch=what.launch,
    )
