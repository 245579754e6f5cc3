"""A cloud, as `outrider ps` and `outrider gc` ask it which machines there are, and where `gc` ends them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Generic, TypeVar

from ..journal import Intent, Journal
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine, PlaceAnswer

if TYPE_CHECKING:
    from .account import AccountCloud
    from .port import Cloud

A = TypeVar("A", bound="AccountCloud")
C = TypeVar("C", bound="Cloud")


class CloudSurveyor(ABC, Generic[C]):
    """Implements `survey.Surveyor` but for what a cloud's own surveyor says."""

    provider: str  # its name in the journal
    mark: str  # a text that each of its places has

    def has(self, place: Place) -> bool:
        """Return whether this may be one of its places."""
        return self.mark in place

    @abstractmethod
    def reach(self, place: Place) -> AbstractAsyncContextManager[C]:
        """Open the cloud in a place."""

    @abstractmethod
    async def find(self, cloud: C, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        """Find the machines with any pool's tag and the ``known`` ones, without those that have ended; and the rest."""

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places that can be reached with the credentials of this one: itself, if a cloud says no others."""
        return [place]

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find everything with a pool's tag in a place, and the machines of ``known`` intents, which may lack tags."""
        from .written import FLEET

        machines = [machine for intent in known if intent.kind == FLEET for machine in intent.ids or ()]
        async with self.reach(place) as cloud:
            machines_shown, others = await self.find(cloud, machines)
        return PlaceAnswer(self.provider, place, tuple(machines_shown), tuple(others))

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        """End everything of the pool in a place, confirmed, and mark it as settled in the journal.

        ``lease_s``: the lease of its machines; None: not known.
        """
        from .teardown import sweep

        async with self.reach(place) as cloud:
            await sweep(cloud, pool, journal=journal, lease_s=lease_s)

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        """End everything in a place that has the pool's tag and yet is not the pool's, confirmed."""
        from .teardown import sweep_others

        async with self.reach(place) as cloud:
            await sweep_others(cloud, pool, journal=journal)


class AccountSurveyor(CloudSurveyor[A]):
    """The surveyor of an `account.AccountCloud`. A place has an account, and optionally a key_file and endpoint_url."""

    mark = "account"

    async def find(self, cloud: A, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        mine = [each for each in await cloud.machines() if each.whose.pool or each.id in known]
        return [each.summary for each in mine if each.state != "terminated"], await cloud.others()
