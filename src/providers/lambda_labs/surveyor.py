"""Lambda, as `outrider ps` and `outrider gc` ask it which machines there are, and where `gc` ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any

from ..cloud import labels
from ..cloud.surveyor import CloudSurveyor
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine

if TYPE_CHECKING:
    from .cloud import LambdaCloud


class LambdaSurveyor(CloudSurveyor["LambdaCloud"]):
    """Implements `survey.Surveyor`. A place has an account, and optionally a key_file and an endpoint_url."""

    provider, mark = "lambda", "account"

    def reach(self, place: Place) -> AbstractAsyncContextManager[LambdaCloud]:
        from .cloud import reach

        return reach(place)

    async def find(self, cloud: LambdaCloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        from .cloud import key_things, thing, view

        machines = [
            _machine(each, thing(each))
            for each in await cloud.instances()
            if (thing(each).pool or each["id"] in known) and view(each).state != "terminated"
        ]
        return machines, key_things(await cloud.keys())


def _machine(instance: Mapping[str, Any], what: Thing) -> FoundMachine:
    from .cloud import labels_in

    said, kind = labels_in(instance), instance["instance_type"]
    return FoundMachine(
        what.id,
        kind["name"],
        "on-demand",
        instance["region"]["name"],
        instance["status"],
        _number(said.get(labels.AT, "")) or 0.0,
        instance.get("ip") or "",
        kind["price_cents_per_hour"] / 100,
        _number(said.get(labels.UNTIL, "")),
        pool=what.pool,
        owner=what.owner,
        launch=what.launch,
    )


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None
