"""The surveyor of Google Compute Engine. It lists machines for `outrider ps` and `gc`, and ends them for `gc`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..cloud.surveyor import CloudSurveyor
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine

if TYPE_CHECKING:
    from .cloud import GCPCloud


class GCPSurveyor(CloudSurveyor["GCPCloud"]):
    """Implements `survey.Surveyor`. A place has a project, and may have a file of credentials and an endpoint_url."""

    provider, mark = "gcp", "project"

    def reach(self, place: Place) -> AbstractAsyncContextManager[GCPCloud]:
        from .cloud import reach

        return reach(place)

    async def find(self, cloud: GCPCloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        from . import network
        from .cloud import ANY_POOL, instances

        # A known machine that this filter does not list has ended, or somebody has removed its labels.
        listed, others = await instances(cloud.api, ANY_POOL, known)
        machines = [each.summary for each in (*listed, *others.values()) if each is not None]
        return machines, await network.shown(cloud.api)
