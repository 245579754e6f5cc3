"""The surveyor of a cloud: lists machines for `outrider ps` and `outrider gc`, and ends them for `gc`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Generic, TypeVar

from ..shared.journal import Intent, Journal
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Thing
from ..survey import FoundMachine, PlaceAnswer

if TYPE_CHECKING:
    from .account import AccountCloud
    from .port import Cloud

A = TypeVar("A", bound="AccountCloud")
C = TypeVar("C", bound="Cloud")


class CloudSurveyor(ABC, Generic[C]):
    """The base class of a cloud's `survey.Surveyor`; a cloud's own surveyor implements the abstract methods."""

    provider: str  # the provider's name in the journal
    mark: str  # the key that shows that a `Place` may be of this cloud, such as "region"

    def has(self, place: Place) -> bool:
        """Return whether a place from the journal (texts such as a region or an account) may be of this cloud."""
        return self.mark in place

    @abstractmethod
    def reach(self, place: Place) -> AbstractAsyncContextManager[C]:
        """Open the cloud in a place: a region, project or account."""

    @abstractmethod
    async def find(self, cloud: C, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        """Find the machines with the tag of any pool, the ``known`` machines, and all other resources. Machines that
        have ended are left out.
        """

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places (regions, for example) that these credentials can reach; by default, only ``place``."""
        return [place]

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find everything with a pool's tag in a place: a region, project or account.

        ``known``: records of create calls in the journal; the machines of these calls are found even without tags.
        """
        from .recorder import FLEET

        machines = [machine for intent in known if intent.kind == FLEET for machine in intent.ids or ()]
        async with self.reach(place) as cloud:
            machines_shown, others = await self.find(cloud, machines)
        return PlaceAnswer(self.provider, place, tuple(machines_shown), tuple(others))

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        """End everything that the pool has in a place: a region, project or account. When the cloud has confirmed the
        end, record it in the journal.

        ``lease_s``: the lease of the pool's machines; None: unknown.
        """
        from .teardown import sweep

        async with self.reach(place) as cloud:
            await sweep(cloud, pool, journal=journal, lease_s=lease_s)

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        """End the resources that have the pool's tag but are not the pool's, in a place: a region, project or account.
        Return when the cloud confirms the end.
        """
        from .teardown import sweep_others

        async with self.reach(place) as cloud:
            await sweep_others(cloud, pool, journal=journal)


class AccountSurveyor(CloudSurveyor[A]):
    """The surveyor of an `account.AccountCloud`: finds and ends machines for `outrider ps` and `outrider gc`.

    A `Place` has an account, and optionally a key_file and an endpoint_url.
    """

    mark = "account"

    async def find(self, cloud: A, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        mine = [each for each in await cloud.machines() if each.whose.pool or each.id in known]
        return [each.summary for each in mine if each.state != "terminated"], await cloud.others()
