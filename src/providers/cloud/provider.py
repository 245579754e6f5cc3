"""The base of the classes by which users configure clouds: `CloudProvider`. A cloud's own class has its options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..base import EntryPoints, LaunchRequest, MachineOffer
    from .cooldowns import Cooldowns
    from .fleet import CloudFleet
    from .port import Cloud, Launcher, Plan
    from .recorder import Recorder

C = TypeVar("C", bound="Cloud")


class CloudProvider(ABC, Generic[C]):
    """Implements `base.Provider`, `base.Lasting` and `base.Offering` but for what a cloud's own class says.

    That class is a frozen dataclass of its options, and ``C`` is its `port.Cloud`. What a pool needs of the cloud's
    other modules is imported when it is opened, and not with the class.
    """

    __slots__ = ()

    name: ClassVar[str]  # in the journal, in outrider.toml and in the table of providers

    @abstractmethod
    def _reach(self) -> AbstractAsyncContextManager[C]:
        """Open the cloud with these options. Nothing is created there.

        Raises:
            BadRequest: an extra is not installed, or something that the cloud needs is not known.
            NotAuthorized: there are no credentials.
        """

    @abstractmethod
    async def _first_plan(self, cloud: C, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        """Return what a pool without machines would ask for. Nothing is created.

        Raises:
            ProviderError: there is no such machine, and what comes close; or the cloud does not answer.
        """

    @abstractmethod
    def _launcher(self, cloud: C, recorder: Recorder, tasks: TaskGroup) -> Launcher[Any, Any]:
        """Return the half of the port that creates one pool's machines. ``tasks`` end with the pool."""

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:  # noqa: ARG002
        """Return an offer of a plan as users see it, where a cloud knows less of it than the plan says, or more."""
        return offer

    @property
    def public(self) -> bool:
        """Return whether the machines are reached at their public addresses."""
        return True

    @property
    def local(self) -> bool:
        return False

    @property
    def outlives(self) -> bool:
        """True: the machines outlive their client, for some minutes or until they are ended. `CloudFleet.adopt`."""
        return True

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return what the cloud would be asked for, in that order. Nothing is created.

        Raises:
            BadRequest: there is no such machine, and which comes close; or as `open` does.
            ProviderError: the cloud does not answer, or refuses.
        """
        from .cooldowns import Cooldowns
        from .offers import as_machine_offers

        async with self._reach() as cloud:
            plan = await self._first_plan(cloud, request, Cooldowns(cloud.vendor))
        offers = as_machine_offers(plan.rounds, plan.region, plan.extras_usd)
        return [self._shown(each, plan) for each in offers]

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[CloudFleet[Any, Any]]:  # noqa: ARG002
        """Open a fleet. What needs no request is prepared in the background; `launch` raises what fails there.

        Raises:
            BadRequest: the cloud's extra is not installed, something that it needs, such as a region, is not known, or
                the pool has another owner.
            NotAuthorized: there are no credentials.
            JournalError: the journal cannot be written.
        """
        from .fleet import CloudFleet
        from .opening import open_fleet

        async with self._reach() as cloud:

            def make(recorder: Recorder, tasks: TaskGroup) -> CloudFleet[Any, Any]:
                launcher = self._launcher(cloud, recorder, tasks)
                return CloudFleet(cloud, launcher, recorder, tasks, public=self.public)

            async with open_fleet(pool, self.name, cloud.place, make) as fleet:
                yield fleet
