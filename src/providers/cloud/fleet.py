"""One pool's machines in a cloud: `CloudFleet` launches and ends them, and `Poller` polls the cloud for their states.

`open_fleet` opens a fleet for a pool: it takes the ownership of the pool in the journal, runs the fleet's task group,
and ends everything of the pool when its block ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Generic, Never

import anyio

from ..base import LaunchRequest, LaunchSettled, LaunchUnsure, Machine, MachineEvent, MachineId, Warned
from ..errors import BadRequest, JournalError, NoCapacity, NotAuthorized, NotGone, ProviderError, QuotaExceeded
from ..shared.journal import Journal
from ..shared.threads import uninterrupted
from ..shared.watching import Watching
from . import teardown
from .calls import is_lost, most_telling
from .inventory import CONFIRM_S, InstanceInventory, InventoryChanges, patience_s, pause_s
from .offers import Cooldowns
from .port import Answer, Cloud, Launcher, O, P
from .recorder import FLEET, Recorder, elsewhere, settle, written_of

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .offers import Offer


LAG_S = 15.0  # seconds after creation by which every part of a cloud knows a resource
AGAIN_S = 1.0
RESEND_S = 0.5
LEASE_S = 120.0  # the machines' default lease: seconds without their client after which they end themselves
# a launch without a response is repeated for so many seconds; a pool pauses at most 60 s between launches
REPEAT_S = 120.0


class CloudFleet(Generic[P, O]):
    """The machines of one pool in a cloud; implements `providers.base.Fleet`.

    Call `start` first, and `close` (shielded from cancellation) before the task group ends. ``public``: the machines
    are reached at their public addresses.
    """

    def __init__(
        self, cloud: Cloud, launcher: Launcher[P, O], recorder: Recorder, tasks: TaskGroup, *, public: bool = True
    ) -> None:
        self._cloud, self._launcher, self._recorder, self._tasks = cloud, launcher, recorder, tasks
        self._pool = recorder.pool
        self._instances = InstanceInventory(cloud.vendor, public=public)
        self._poller = Poller(cloud, self._pool, self._instances, self._on_changes)
        self._cooldowns = Cooldowns(cloud.vendor)
        self._places: dict[MachineId, tuple[str, str]] = {}  # type and zone of each machine
        self._to_end: set[MachineId] = set()
        self._unanswered: dict[str, O] = {}
        self._repeating = anyio.Lock()
        self._ending = anyio.Lock()
        self._events: deque[MachineEvent] = deque()
        self._news = anyio.Event()
        self._open = anyio.CancelScope()
        self._closed = False
        self._warned = False
        # the longest lease of the pool's machines; None: unknown, or there are no machines
        self._lease_s: float | None = None

    def start(self) -> None:
        self._tasks.start_soon(self._follow)
        self._launcher.start()

    # --- called by the pool -------------------------------------------------------------------------------------------

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Make create calls until one of them gives machines. Return these machines, even if there are fewer than
        ``count``.

        If an earlier launch got no response, this call first repeats that launch with its own token. A cancellation
        takes effect after the current create call.

        Raises:
            ProviderError: Nothing was created; the most useful error of all tries.
        """
        self._lease_s = max(self._lease_s or 0.0, request.lease_s)
        repeated = await self._repeat(count)
        if repeated:
            return repeated
        plan = await self._plan(request)
        self._warn_once(request)
        failed: list[ProviderError] = []
        for chosen in plan.rounds:
            machines = await self._take_all(plan, chosen, count, failed)
            if machines:
                return machines
            if any(isinstance(error, NotAuthorized) for error in failed):
                break
        assert failed, "the cloud gave no machine and no reason"
        error = most_telling(failed)
        # an earlier retry would be useless: offers in a cooldown are not requested
        if error.retry_after_s is not None:
            tried = [offer for chosen in plan.rounds for offer in chosen]
            error.retry_after_s = max(error.retry_after_s, self._cooldowns.wait_s(tried, anyio.current_time()))
        raise error

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End machines of this pool; ids of other pools' machines are ignored. Callers at the same time share requests.

        Raises:
            ProviderError: The cloud refused, or did not confirm the end within `CONFIRM_S`.
        """
        mine = self._instances.ending(ids)
        if not mine:
            return
        await self._end(mine)
        sent_at = anyio.current_time()
        with anyio.move_on_after(CONFIRM_S):
            while any(map(self._instances.has, mine)):
                await self._poller.answer()
                # send the request again: at first, some part of the cloud may not have known the machine
                if anyio.current_time() >= sent_at + RESEND_S:
                    await self._end(self._instances.still_on(mine))
                    sent_at = anyio.current_time()
            return
        left = ", ".join(each for each in mine if self._instances.has(each))
        service = self._cloud.vendor.service
        raise ProviderError(f"{service} has not confirmed the end of {left}: it is asked again", retry_after_s=5.0)

    def warn(self, text: str) -> None:
        """Send the user a warning about these machines, as an event."""
        self._tell(Warned(text))

    def _warn_once(self, request: LaunchRequest) -> None:
        vendor = self._cloud.vendor
        warnings = [vendor.warning, vendor.warning_of_several if request.nodes > 1 else ""]
        for text in () if self._warned else filter(None, warnings):
            self.warn(text)
        self._warned = True

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        pass  # nothing to do: the cloud gives a different machine next time

    async def events(self) -> AsyncIterator[MachineEvent]:
        """Yield events about the machines until the fleet is closed."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._news = anyio.Event()
            await self._news.wait()

    async def quote(self, request: LaunchRequest) -> float | None:
        """Return the price per hour (USD, with disk and address) of the cheapest machine among the offers that are
        tried first.

        None: no machine is available now.

        Raises:
            ProviderError: No machine can ever fit, or the cloud does not respond.
        """
        try:
            plan = await self._plan(request)
        except (NoCapacity, QuotaExceeded):
            return None
        return min(offer.hourly_usd + plan.extras_usd.get(offer.type.architecture, 0.0) for offer in plan.rounds[0])

    async def adopt(self, known: Sequence[Machine], most: int, *, lease_s: float | None = None) -> Sequence[Machine]:
        """Take over the machines that a dead client left, before the first launch.

        This fleet keeps up to ``most`` of the ``known`` machines: those that run, and that the dead client had reached.
        All other machines of the pool are ended, also those that appear later. ``lease_s``: the longest lease of these
        machines in seconds; None: unknown.

        Raises:
            BadRequest: The pool's machines are in another region or account; nothing was changed there.
            ProviderError: The cloud did not respond; the machines still exist.
        """
        self._lease_s = lease_s
        cloud, journal = self._cloud, self._recorder.journal
        there = await elsewhere(cloud, self._pool, journal)
        if there:
            here = cloud.where(cloud.place)
            raise BadRequest(f"the pool {self._pool} is in {there}, not in {here}: attach to it there")
        reached = [machine for machine in known if machine.address is not None]
        written = await written_of(cloud.place, self._pool, journal)
        claim = replace(written.claim, ids=written.claim.ids | {machine.id for machine in reached})
        also = sorted({*written.machines, *(machine.id for machine in reached)})
        left = await cloud.describe(self._pool, also=also, of=claim)
        running = {view.id for view in left if view.state == "running"}
        living = [machine for machine in reached if machine.id in running]
        mine = living[:most]
        if len(living) > most:
            self._tell(Warned.of_surplus(len(living) - most, most))
        for machine in mine:
            assert machine.address is not None, "those without one are not among them"
            if {"type", "zone"} <= machine.facts.keys():
                self._places[machine.id] = (machine.facts["type"], machine.facts["zone"])
            self._instances.created(machine, machine.address.user or "", anyio.current_time())
        ends = {view.id for view in left if not view.ends} - {machine.id for machine in mine}
        await teardown.end(cloud, sorted(ends))
        for intent in written.intents:
            if intent.kind == FLEET and intent.ids is None:
                count = float(intent.facts.get("count", inf))
                self._instances.launch_lost(intent.token, anyio.current_time(), count=count)
        self._poller.begun()
        return mine

    async def close(self) -> None:
        """End everything of the pool, and return when the cloud confirms the end. Transient errors are retried as long
        as the machines' lease lasts.

        Raises:
            NotGone: Something may still exist; the error names it.
        """
        self._open.cancel()
        try:
            await self._give_back()
        finally:
            self._closed = True
            self._news.set()

    async def _give_back(self) -> None:
        await self._launcher.stop()
        journal, known, mine = self._recorder.journal, self._instances.machines, self._recorder.intents
        written = await written_of(self._cloud.place, self._pool, journal)
        kinds = {intent.kind for intent in [*written.intents, *mine]}
        try:
            if kinds:
                lost = self._instances.lost_launches(anyio.current_time())
                await teardown.sweep(
                    self._cloud,
                    self._pool,
                    journal=journal,
                    own_intents=mine,
                    known=known,
                    ended=self._places.keys() - {*known},
                    lost=lost,
                    lease_s=self._lease_s,
                    patience_s=patience_s((self._lease_s or LEASE_S) + self._cloud.vendor.first_lease_more_s),
                    warn=lambda text: self._on_changes(InventoryChanges(events=[Warned(text)])),
                )
            else:
                await settle(self._cloud.place, self._pool, journal)
        except JournalError as error:  # only a warning: the cloud has confirmed that everything has ended
            self._tell(Warned(str(error)))
        except ProviderError as error:
            if FLEET in kinds or isinstance(error, NotGone):
                raise
            # The error is ignored if no machine was ever requested: nothing that is left costs money, and the pool has
            # already raised its own error. The journal lists what is left, so `outrider gc` removes it.

    # --- one call -----------------------------------------------------------------------------------------------------

    async def _plan(self, request: LaunchRequest) -> P:
        living = {self._places[machine] for machine in self._instances.machines if machine in self._places}
        return await self._launcher.plan(request, self._cooldowns, living)

    async def _take_all(
        self, plan: P, chosen: Sequence[Offer], count: int, failed: list[ProviderError]
    ) -> list[Machine]:
        """Call `_take` until ``count`` machines exist, because some clouds create one machine per call."""
        machines_so_far: list[Machine] = []
        while len(machines_so_far) < count:
            try:
                machines, requested = await self._take(plan, chosen, count - len(machines_so_far), failed)
            except ProviderError:
                if not machines_so_far:
                    raise
                break  # return the machines so far; the next launch repeats the failing call and raises its error
            machines_so_far += machines
            if len(machines) < requested:
                break
        return machines_so_far

    async def _take(
        self, plan: P, chosen: Sequence[Offer], count: int, failed: list[ProviderError]
    ) -> tuple[list[Machine], int]:
        """Create machines of these offers by one call. Return the machines, and the number that was requested.

        Reasons for missing machines are appended to ``failed``.

        Raises:
            ProviderError: The call failed for a reason that applies to all offers.
        """
        began = anyio.current_time()
        while True:
            order = await self._launcher.order(plan, chosen, count)
            machines: list[Machine] = []
            errors: list[ProviderError] = []
            try:
                machines, errors = await self._ask(order)
            except (NoCapacity, QuotaExceeded) as error:
                self._cool_down(chosen, error)
                errors = [error]
            except ProviderError as error:
                if not self._launcher.is_unknown_yet(error):
                    raise
                errors = [error]
            lasted_s = anyio.current_time() - began
            if machines or lasted_s >= LAG_S or not any(map(self._launcher.is_unknown_yet, errors)):
                failed += errors
                return machines, order.count
            # a prepared resource that is still unknown to the cloud is not new any more, but was deleted: prepare it
            # again
            if lasted_s >= LAG_S / 3:
                self._launcher.forget(order)
            await anyio.sleep(min(AGAIN_S, max(AGAIN_S / 5, lasted_s)))

    async def _ask(self, order: O) -> tuple[list[Machine], list[ProviderError]]:
        """Make one create call, shielded from cancellation, and record its machines.

        There is no await between the response and the record, so that no machine is forgotten.
        """
        order.carried_out = False
        try:
            answer = await self._launcher.create(order)
        except BaseException as error:  # also a cancellation: it is unknown whether the call was carried out
            unknown = not isinstance(error, ProviderError) or is_lost(error) or order.carried_out
            # a refusal for missing permissions concerns only the last try: an earlier try may have created machines
            if unknown or (order.lost and isinstance(error, NotAuthorized)):
                self._lost(order, error)
            # the order is given up: machines that its earlier tries created are ended when they appear
            elif order.lost:
                self._unanswered.pop(order.token, None)
                self._instances.launch_lost(order.token, anyio.current_time(), count=order.count)
            raise
        self._unanswered.pop(order.token, None)
        return self._record_created(answer), [self._refused(offers, error) for offers, error in answer.refusals]

    def _lost(self, order: O, error: BaseException) -> None:
        """Record that a launch got no response, so its machines may exist.

        The machines are searched for and counted as cost, and they are not ended while the launch may be repeated.
        """
        now = anyio.current_time()
        self._instances.launch_lost(order.token, now, count=order.count, spare_s=REPEAT_S)
        self._poller.begun()
        if not order.lost:
            order.lost = True
            self._unanswered[order.token] = order
            problem = f"up to {order.count} machines may exist of a launch that has no answer ({error})"
            text = f"{problem}: it is asked again with its own token, and they count for max_cost until that is known"
            self._tell(
                LaunchUnsure(MachineId(order.token), order.count, order.count * order.hourly_usd, order.at, text)
            )

    async def _repeat(self, count: int) -> list[Machine]:
        """Repeat the launches that got no response, until one gives machines. Return at most ``count`` of these
        machines.

        Surplus machines are ended. Further launches without a response are repeated when the pool launches next, so
        that the machines of one launch are returned before the repetition of another can fail.

        Raises:
            ProviderError: There is still no response, so nothing else may be requested.
        """
        async with self._repeating:
            while self._unanswered:  # a loop, because another launch may lose its response during the repetition
                order = next(iter(self._unanswered.values()))
                self._instances.launch_repeated(order.token)
                try:
                    machines, _ = await self._ask(order)
                except ProviderError:
                    if order.token in self._unanswered:
                        raise
                    continue
                try:
                    await self._end_surplus(machines[count:])
                finally:
                    self._tell(LaunchSettled(MachineId(order.token)))
                if machines:
                    return machines[:count]
            return []

    async def _end_surplus(self, machines: Sequence[Machine]) -> None:
        if machines:
            with suppress(ProviderError):  # after a failure, the next request to end machines includes these
                await self._end(self._instances.ending([machine.id for machine in machines]))

    def _record_created(self, answer: Answer) -> list[Machine]:
        now = anyio.current_time()
        for each in answer.created:
            self._instances.created(each.machine, each.user, now)
            self._places[each.machine.id] = (each.offer.type.name, each.offer.zone)
            self._cooldowns.worked(each.offer)
        if answer.created:
            self._poller.begun()
        return [each.machine for each in answer.created]

    def _refused(self, refused: Sequence[Offer], error: ProviderError) -> ProviderError:
        self._cool_down(refused, error)
        return error

    def _cool_down(self, refused: Sequence[Offer], error: ProviderError) -> None:
        if isinstance(error, NoCapacity | QuotaExceeded) or error.code in self._cloud.vendor.lasting:
            for offer in refused:
                self._cooldowns.failed(offer, error, anyio.current_time())

    # --- polling the machines -----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        with self._open:
            await self._poller.run()

    def _tell(self, event: MachineEvent) -> None:
        self._events.append(event)
        self._news.set()

    def _on_changes(self, news: InventoryChanges) -> None:
        self._events += news.events
        self._news.set()
        for token, machines in news.settled:
            self._unanswered.pop(token, None)
            self._tell(LaunchSettled(MachineId(token)))
            self._tasks.start_soon(self._recorder.learnt, FLEET, token, machines)
        for machine in news.interrupted:
            if machine in self._places:
                self._cooldowns.interrupted(*self._places[machine], anyio.current_time())

    async def _end(self, machines: Sequence[MachineId]) -> None:
        """End machines. Callers that arrive during a request share the next request.

        Raises:
            ProviderError: The request failed; the next one includes these machines.
        """
        self._to_end.update(machines)
        async with self._ending:
            batch, self._to_end = self._to_end, set()
            try:
                if batch:
                    changes = await teardown.end(self._cloud, sorted(batch))
                    self._on_changes(self._instances.partial_answer(changes, anyio.current_time()))
            except BaseException:  # also on cancellation: the next request includes these machines
                self._to_end |= batch
                raise
        self._poller.begun()


# --- opening a fleet --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_fleet(
    pool: str, provider: str, place: Mapping[str, str], make: Callable[[Recorder, TaskGroup], CloudFleet[P, O]]
) -> AsyncIterator[CloudFleet[P, O]]:
    """Open the fleet that ``make`` returns. When the block ends, end everything that the pool has in ``place`` (a
    region, project or account), and wait until the cloud confirms the end; this is shielded from cancellation.

    Raises:
        BadRequest: The pool has another owner.
        JournalError: The journal cannot be written.
        NotGone: At the end of the block: something may still exist.
    """
    journal = await uninterrupted(Journal.open)
    ownership = await uninterrupted(partial(journal.own, pool, provider, dict(place)))
    try:
        async with anyio.create_task_group() as tasks:
            fleet = make(Recorder(journal, pool, place), tasks)
            fleet.start()
            try:
                yield fleet
            finally:
                with anyio.CancelScope(shield=True):
                    await fleet.close()
                tasks.cancel_scope.cancel()
    finally:
        await uninterrupted(ownership.close)


# --- polling ----------------------------------------------------------------------------------------------------------


SOON_S = 0.25  # seconds from the beginning of an expected change to the next poll


class Poller:
    """Polls the cloud for a pool's machines as long as there are any, and ends machines that the pool does not use."""

    def __init__(
        self, cloud: Cloud, pool: str, instances: InstanceInventory, tell: Callable[[InventoryChanges], None]
    ) -> None:
        self._cloud, self._pool, self._instances, self._tell = cloud, pool, instances, tell
        self._next_at = 0.0
        self._requests = 0  # number of requests since a change was expected
        self._watching = Watching(f"the machines of {pool}")
        self._begun = anyio.Event()
        self._answered = anyio.Event()

    async def run(self) -> Never:
        while True:
            await self._due()
            await self._ask()
            now = anyio.current_time()
            self._next_at = now + self._pause_s()

    def begun(self) -> None:
        """Make the next poll come soon, because the pool has begun a change, such as a launch."""
        self._requests = 0
        if not self._watching.failures:
            self._next_at = min(self._next_at, anyio.current_time() + SOON_S)
        self._begun.set()

    async def answer(self) -> None:
        """Wait for the next response of the cloud."""
        await self._answered.wait()

    async def _due(self) -> None:
        """Wait until the next request is due."""
        while True:
            self._begun = anyio.Event()
            left_s = self._next_at - anyio.current_time()
            settled = self._instances.forget_lost(anyio.current_time())
            if settled.settled:
                self._tell(settled)
            if self._instances.idle:
                await self._begun.wait()
                self._next_at = anyio.current_time() + SOON_S
            elif left_s <= 0:
                return
            else:
                with anyio.move_on_after(left_s):
                    await self._begun.wait()

    def _pause_s(self) -> float:
        return (
            self._watching.pause_s
            if self._watching.failures
            else pause_s(busy=self._instances.busy, requests=self._requests)
        )

    async def _ask(self) -> None:
        sent_at = anyio.current_time()
        try:
            # also request machines by id: tags appear later than the machines, and somebody may remove the tags
            views = await self._cloud.describe(self._pool, also=self._instances.machines)
            news = self._instances.full_answer(views, sent_at, anyio.current_time())
            self._tell(news)
            if news.unwanted:
                ended = await teardown.end(self._cloud, news.unwanted)
                self._tell(self._instances.partial_answer(ended, anyio.current_time()))
        except Exception as error:  # noqa: BLE001  WATCH-1: a caller that waits for a change has its own deadline
            self._warn(self._watching.failed(error, anyio.current_time()))
            return
        self._requests += 1
        self._warn(self._watching.succeeded(anyio.current_time()))
        self._answered.set()
        self._answered = anyio.Event()

    def _warn(self, warned: Warned | None) -> None:
        if warned is not None:
            self._tell(InventoryChanges(events=[warned]))
