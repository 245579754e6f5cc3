"""The surveyor of Hyperstack. It lists machines for `outrider ps` and `outrider gc`, and ends them for `gc`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from ..cloud.surveyor import AccountSurveyor
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine
from .catalogue import book_of
from .cloud import HyperstackCloud, reach


class HyperstackSurveyor(AccountSurveyor[HyperstackCloud]):
    """Implements `survey.Surveyor` for Hyperstack."""

    provider = "hyperstack"

    def reach(self, place: Place) -> AbstractAsyncContextManager[HyperstackCloud]:
        return reach(place)

    async def find(
        self, cloud: HyperstackCloud, known: Sequence[str]
    ) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        cloud.book = book_of(await cloud.api.call("GET", "/pricebook"))
        return await super().find(cloud, known)
