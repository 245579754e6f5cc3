"""Google Compute Engine, as `outrider ps` and `gc` ask it which machines there are, and where `gc` ends them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from ..cloud.surveyor import CloudSurveyor
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..side_by_side import each_of
from ..survey import FoundMachine

if TYPE_CHECKING:
    from .cloud import GCPCloud


class GCPSurveyor(CloudSurveyor["GCPCloud"]):
    """Implements `survey.Surveyor`. A place is a project, and optionally a file of credentials and an endpoint_url."""

    provider, mark = "gcp", "project"

    def reach(self, place: Place) -> AbstractAsyncContextManager[GCPCloud]:
        from .cloud import reach

        return reach(place)

    async def find(self, cloud: GCPCloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        from . import network
        from .cloud import ANY_POOL, instances, look

        found = await instances(cloud.api, ANY_POOL)
        hidden = {*known}.difference(each.id for each in found)  # somebody has removed their labels, or they are gone
        others = await each_of(sorted(hidden), partial(look, cloud.api))
        return [each.found for each in (*found, *others) if each is not None], await network.shown(cloud.api)
