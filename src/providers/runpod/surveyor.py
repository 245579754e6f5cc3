"""RunPod, as `outrider ps` and `outrider gc` ask it which pods there are, and where `gc` ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..cloud.surveyor import CloudSurveyor
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine

if TYPE_CHECKING:
    from .cloud import RunPodCloud


class RunPodSurveyor(CloudSurveyor["RunPodCloud"]):
    """Implements `survey.Surveyor`. A place has an account, and optionally a key_file and an endpoint_url."""

    provider, mark = "runpod", "account"

    def reach(self, place: Place) -> AbstractAsyncContextManager[RunPodCloud]:
        from .cloud import reach

        return reach(place)

    async def find(self, cloud: RunPodCloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        from .cloud import view
        from .names import thing

        pods = [(each, thing(each)) for each in await cloud.pods()]
        mine = [each for each in pods if each[1].pool or each[1].id in known]
        return [_machine(each, whose) for each, whose in mine if view(each).state != "terminated"], ()


def _machine(pod: Mapping[str, Any], whose: Thing) -> FoundMachine:
    from .names import UNTIL

    kind, direct = pod.get("gpu") or pod.get("cpu") or {"id": "?"}, pod["ssh"]["direct"]
    launched_at, until = 0.0, None
    with suppress(ValueError):
        launched_at = datetime.fromisoformat(pod["createdAt"]).timestamp()
    with suppress(ValueError):
        until = float(pod["env"].get(UNTIL, ""))
    return FoundMachine(
        whose.id,
        kind["id"] if kind.get("count", 1) == 1 else f"{kind['count']} x {kind['id']}",
        "on-demand",
        pod["dataCenterId"] or "",
        pod["status"],
        launched_at,
        f"{direct['host']}:{direct['port']}" if direct else "",
        pod["cost"],
        until,
        pool=whose.pool,
        owner=whose.owner,
        launch=whose.launch,
    )
