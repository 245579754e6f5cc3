"""`CloudProvider`: the base of the classes by which users configure clouds. Each class has its cloud's options."""

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
    """Implements `base.Provider`, `base.Lasting` and `base.Offering`; subclasses implement the abstract methods.

    A cloud's own class is a frozen dataclass of the cloud's options. ``C``: the cloud's `port.Cloud`. The cloud's other
    modules are imported when a pool is opened, so that users import the class quickly.
    """

    __slots__ = ()

    name: ClassVar[str]  # the provider's name in the journal, in outrider.toml and in the table of providers

    @abstractmethod
    def _reach(self) -> AbstractAsyncContextManager[C]:
        """Open the cloud with these options. Nothing is created in the cloud.

        Raises:
            BadRequest: An extra is not installed, or a setting that the cloud needs is unknown.
            NotAuthorized: There are no credentials.
        """

    @abstractmethod
    async def _first_plan(self, cloud: C, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        """Return the plan (the offers in rounds) for a pool without machines. Nothing is created.

        Raises:
            ProviderError: No such machine exists (the error names the closest ones), or the cloud does not respond.
        """

    @abstractmethod
    def _launcher(self, cloud: C, recorder: Recorder, tasks: TaskGroup) -> Launcher[Any, Any]:
        """Return the launcher of one pool's machines. ``tasks``: a task group that ends with the pool."""

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:  # noqa: ARG002
        """Return an offer of a plan in the form for display. A cloud may override this to add or hide details."""
        return offer

    @property
    def public(self) -> bool:
        """True if the machines are reached at their public addresses."""
        return True

    @property
    def local(self) -> bool:
        return False

    @property
    def outlives(self) -> bool:
        """True: the machines exist for some minutes after the death of their client, or until somebody ends them."""
        return True

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return the offers that a launch would request, in that order. Nothing is created.

        Raises:
            BadRequest: No such machine exists (the error names the closest ones), or a reason for which `open` raises
                it.
            ProviderError: The cloud does not respond, or refuses.
        """
        from .cooldowns import Cooldowns
        from .offers import as_machine_offers

        async with self._reach() as cloud:
            plan = await self._first_plan(cloud, request, Cooldowns(cloud.vendor))
        offers = as_machine_offers(plan.rounds, plan.region, plan.extras_usd)
        return [self._shown(each, plan) for each in offers]

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[CloudFleet[Any, Any]]:  # noqa: ARG002
        """Open a fleet of machines. A background task prepares what depends on no request; `launch` raises its errors.

        Raises:
            BadRequest: The cloud's extra is not installed, a setting that the cloud needs, such as a region, is
                unknown, or the pool has another owner.
            NotAuthorized: There are no credentials.
            JournalError: The journal cannot be written.
        """
        from .fleet import CloudFleet
        from .opening import open_fleet

        async with self._reach() as cloud:

            def make(recorder: Recorder, tasks: TaskGroup) -> CloudFleet[Any, Any]:
                launcher = self._launcher(cloud, recorder, tasks)
                return CloudFleet(cloud, launcher, recorder, tasks, public=self.public)

            async with open_fleet(pool, self.name, cloud.place, make) as fleet:
                yield fleet
