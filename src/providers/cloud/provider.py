"""`CloudProvider`: the base of the classes by which users configure clouds. Each cloud's own class has its options."""

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
    """Implements `base.Provider`, `base.Lasting` and `base.Offering`, except for the methods of a cloud's own class.

    That class is a frozen dataclass of its options, and ``C`` is its `port.Cloud`. The cloud's other modules are
    imported when a pool is opened, not with the class.
    """

    __slots__ = ()

    name: ClassVar[str]  # the name in the journal, in outrider.toml and in the table of providers

    @abstractmethod
    def _reach(self) -> AbstractAsyncContextManager[C]:
        """Open the cloud with these options. Nothing is created in the cloud.

        Raises:
            BadRequest: An extra is not installed, or a setting that the cloud needs is unknown.
            NotAuthorized: There are no credentials.
        """

    @abstractmethod
    async def _first_plan(self, cloud: C, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        """Return the plan for a pool without machines. Nothing is created.

        Raises:
            ProviderError: No such machine exists (the error names the closest ones), or the cloud does not respond.
        """

    @abstractmethod
    def _launcher(self, cloud: C, recorder: Recorder, tasks: TaskGroup) -> Launcher[Any, Any]:
        """Return the launcher of one pool's machines. ``tasks``: a task group that ends with the pool."""

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:  # noqa: ARG002
        """Return an offer of a plan for display. A cloud overrides this to add or hide details."""
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
        """Return True: the machines outlive their client for some minutes, or until they are ended."""
        return True

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return the offers that a launch would request, in that order. Nothing is created.

        Raises:
            BadRequest: No such machine exists (the error names the closest ones); or as in `open`.
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
        """Open a fleet. A background task prepares what needs no request; its errors are raised by `launch`.

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
