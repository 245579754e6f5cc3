"""One pool's machines on EC2."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, LaunchSettled, LaunchUnsure, Machine, MachineEvent, MachineId, Warned
from ..cloud import offers
from ..cloud.end_tracker import CONFIRM_S, patience_s
from ..cloud.failures import CallRefused, is_lost, most_telling
from ..cloud.instance_inventory import InstanceInventory, InventoryChanges
from ..cloud.userdata import LEASE
from ..errors import BadRequest, JournalError, NoCapacity, NotAuthorized, NotGone, ProviderError, QuotaExceeded
from . import launch, listing, tags, teardown
from .errors import Failure, translate
from .launch import LaunchTemplate, Refusal
from .plan import Plan, Planner
from .poller import Poller
from .recorded import RecordedApi, machines_in
from .templates import Templates
from .vendor import VENDOR

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Offer
    from .provider import AWS

LAG_S = 15.0  # after so long, a new resource is known everywhere in EC2
AGAIN_S = 1.0
RESEND_S = 0.5
LEASE_S = 120.0  # the default lease of machines
REPEAT_S = 120.0  # a launch without an answer is repeated for so long; a pool pauses at most a minute between two


@dataclass(slots=True)
class Asked:
    """One CreateFleet call, which is repeated with the same token until there is an answer."""

    token: str
    said: dict[str, Any]
    of: dict[Offer, LaunchTemplate]
    subnets: Mapping[str, str]
    count: int
    at: float
    lost: bool = False  # a try of it got no answer


class AWSFleet:
    """A pool's machines on EC2, a `providers.base.Fleet`. `start` it; `close` it, shielded, before its tasks end."""

    def __init__(self, provider: AWS, pool: str, api: RecordedApi, tasks: TaskGroup) -> None:
        self._provider, self._pool, self._api, self._tasks = provider, pool, api, tasks
        self._labels = tags.tags_of(pool, dict(provider.tags))
        self._public = provider.address == "public"
        self._instances = InstanceInventory(VENDOR, public=self._public)
        self._poller = Poller(api, pool, self._instances, self._on_changes)
        self._cooldowns = offers.Cooldowns(VENDOR)
        self._planner = Planner(provider, api, self._labels, tasks)
        self._templates = Templates(api, pool, self._labels)
        self._places: dict[MachineId, tuple[str, str]] = {}  # type and zone
        self._to_end: set[MachineId] = set()
        self._unanswered: dict[str, Asked] = {}
        self._repeating = anyio.Lock()
        self._ending = anyio.Lock()
        self._events: deque[MachineEvent] = deque()
        self._news = anyio.Event()
        self._open = anyio.CancelScope()
        self._closed = False
        self._lease_s: float | None = None  # None: unknown, or there are no machines

    def start(self) -> None:
        self._tasks.start_soon(self._follow)
        self._planner.start()

    # --- called by the pool -------------------------------------------------------------------------------------------

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Send one CreateFleet after another until one gives machines, and return these, even if they are fewer.

        A call that got no answer is repeated with its own token first, by the next launch.

        Cancelled, it ends after the call that is under way.

        Raises:
            ProviderError: nothing was created; the most telling error of all tries.
        """
        self._lease_s = max(self._lease_s or 0.0, request.lease_s)
        repeated = await self._repeat(count)
        if repeated:
            return repeated
        plan = await self._plan(request)
        failed: list[ProviderError] = []
        for chosen in plan.rounds:
            machines = await self._take(plan, chosen, count, failed)
            if machines:
                return machines
            if any(isinstance(error, NotAuthorized) for error in failed):
                break
        assert failed, "EC2 gave no machine and no reason"
        error = most_telling(failed)
        if error.retry_after_s is not None:  # offers in cooldown would not even be asked for
            tried = [offer for chosen in plan.rounds for offer in chosen]
            error.retry_after_s = max(error.retry_after_s, self._cooldowns.wait_s(tried, anyio.current_time()))
        raise error

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End machines of this pool; others are ignored. Concurrent callers share calls.

        Raises:
            ProviderError: EC2 refused, or did not confirm within `CONFIRM_S`.
        """
        mine = self._instances.ending(ids)
        if not mine:
            return
        await self._end(mine)
        sent_at = anyio.current_time()
        with anyio.move_on_after(CONFIRM_S):
            while any(map(self._instances.has, mine)):
                await self._poller.answer()
                if anyio.current_time() >= sent_at + RESEND_S:  # some part of EC2 may not have known the machine
                    await self._end(self._instances.still_on(mine))
                    sent_at = anyio.current_time()
            return
        left = ", ".join(each for each in mine if self._instances.has(each))
        raise ProviderError(f"EC2 has not confirmed the end of {left}: it is asked again", retry_after_s=5.0)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        pass  # the next machine is another one anyway

    async def events(self) -> AsyncIterator[MachineEvent]:
        """Yield events until the fleet is closed."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._news = anyio.Event()
            await self._news.wait()

    async def quote(self, request: LaunchRequest) -> float | None:
        """USD per hour of the cheapest offer of the first round, with disk and address; None: none is available now.

        Raises:
            ProviderError: there never will be one, or EC2 does not answer.
        """
        try:
            plan = await self._plan(request)
        except (NoCapacity, QuotaExceeded):
            return None
        return min(offer.hourly_usd + plan.extras_usd.get(offer.type.architecture, 0.0) for offer in plan.rounds[0])

    async def adopt(self, known: Sequence[Machine], most: int, *, lease_s: float | None = None) -> Sequence[Machine]:
        """Take over what a dead client left, before the first launch.

        The first ``most`` of the ``known`` machines that had been reached and still run belong to this fleet from now.
        Every other machine of the pool is ended, also those that appear later. ``lease_s``: the longest lease of any of
        them in seconds; None: unknown.

        Raises:
            BadRequest: the pool's machines are in another place; they are left as they are.
            ProviderError: EC2 did not answer; the machines are still there.
        """
        self._lease_s = lease_s
        elsewhere = await teardown.elsewhere(self._api, self._pool, self._api.journal)
        if elsewhere:
            raise BadRequest(f"the pool {self._pool} is in {elsewhere}, not in {self._api.region}: attach to it there")
        reached = [machine for machine in known if machine.address is not None]
        written = await teardown.written_of(self._api, self._pool, self._api.journal)
        claim = replace(written.claim, ids=written.claim.ids | {machine.id for machine in reached})
        also = sorted({*written.machines, *(machine.id for machine in reached)})
        left = listing.views_of(await listing.instances(self._api, self._pool, also=also), claim)
        running = {view.id for view in left if view.state == "running"}
        mine = [machine for machine in reached if machine.id in running][:most]
        for machine in mine:
            assert machine.address is not None, "those without one are not among them"
            if {"type", "zone"} <= machine.facts.keys():
                self._places[machine.id] = (machine.facts["type"], machine.facts["zone"])
            self._instances.created(machine, machine.address.user or "", anyio.current_time())
        ends = {view.id for view in left if not view.ends} - {machine.id for machine in mine}
        await teardown.end(self._api, sorted(ends))
        for intent in written.intents:
            if intent.kind == teardown.FLEET and intent.ids is None:
                count = float(intent.facts.get("count", inf))
                self._instances.launch_lost(intent.token, anyio.current_time(), count=count)
        self._poller.begun()
        return mine

    async def close(self) -> None:
        """End everything of the pool; return when EC2 confirms that. Transient errors are waited out for the lease.

        Raises:
            NotGone: something may be left; says what.
        """
        self._open.cancel()
        try:
            await self._give_back()
        finally:
            self._closed = True
            self._news.set()

    async def _give_back(self) -> None:
        await self._planner.stop()
        journal, known, mine = self._api.journal, self._instances.machines, self._api.made
        written = await teardown.written_of(self._api, self._pool, journal)
        made = {intent.kind for intent in [*written.intents, *mine]}
        try:
            if made:
                lost = self._instances.lost_launches(anyio.current_time())
                await teardown.sweep(
                    self._api,
                    self._pool,
                    journal=journal,
                    made=mine,
                    known=known,
                    ended=self._places.keys() - {*known},
                    lost=lost,
                    lease_s=self._lease_s,
                    patience_s=patience_s(self._lease_s or LEASE_S),
                    warn=lambda text: self._on_changes(InventoryChanges(events=[Warned(text)])),
                )
            else:
                await teardown.settle(self._api, self._pool, journal)
        except JournalError as error:  # everything is gone from the cloud, so this is only a warning
            self._tell(Warned(str(error)))
        except ProviderError as error:
            if teardown.FLEET in made or isinstance(error, NotGone):
                raise
            # If no machine was ever asked for, what is left costs nothing, and the pool's closer has seen the error.
            # The journal knows it, so `outrider gc` removes it.

    # --- one CreateFleet --------------------------------------------------------------------------------------------

    async def _plan(self, request: LaunchRequest) -> Plan:
        living = {self._places[machine] for machine in self._instances.machines if machine in self._places}
        return await self._planner.plan(request, self._cooldowns, living)

    async def _take(
        self, plan: Plan, chosen: Sequence[Offer], count: int, failed: list[ProviderError]
    ) -> list[Machine]:
        """Create machines of these offers. The reasons why there are none, or fewer, are added to ``failed``.

        Raises:
            ProviderError: the same would happen with other offers.
        """
        began = anyio.current_time()
        while True:
            cluster = await self._templates.cluster() if plan.together else ""
            shapes = {offer: await self._planner.shape(plan, offer, cluster=cluster) for offer in chosen}
            templates = {shape: await self._templates.of(shape) for shape in dict.fromkeys(shapes.values())}
            machines: list[Machine] = []
            errors: list[ProviderError] = []
            try:
                of = {offer: templates[shape] for offer, shape in shapes.items()}
                machines, refusals = await self._create(plan, of, count)
                errors = [self._refused(refusal) for refusal in refusals]
            except (NoCapacity, QuotaExceeded) as error:
                self._cool_down(chosen, error)
                errors = [error]
            except ProviderError as error:
                if not launch.is_unknown_yet(error):
                    raise
                errors = [error]
            lasted_s = anyio.current_time() - began
            if machines or lasted_s >= LAG_S or not any(map(launch.is_unknown_yet, errors)):
                failed += errors
                return machines
            if lasted_s >= LAG_S / 3:  # the template is not new any more: somebody has deleted it
                self._templates.forget(templates.values())
            await anyio.sleep(min(AGAIN_S, max(AGAIN_S / 5, lasted_s)))

    async def _create(
        self, plan: Plan, of: dict[Offer, LaunchTemplate], count: int
    ) -> tuple[list[Machine], Sequence[Refusal]]:
        token, chosen, subnets = uuid4().hex, list(of), plan.network.subnets
        lots = [(each, [offer for offer in chosen if of[offer] is each]) for each in dict.fromkeys(of.values())]
        said = launch.fleet(
            lots, count, token=token, subnets=subnets, labels=self._labels, max_usd=plan.request.max_hourly_cost
        )
        return await self._ask(Asked(token, said, of, subnets, count, anyio.current_time()))

    async def _ask(self, asked: Asked) -> tuple[list[Machine], Sequence[Refusal]]:
        """Send a CreateFleet. It is shielded, and nothing is awaited after its answer, so its machines are known."""
        named = False
        try:
            answer = await self._api.call("create_fleet", timeout_s=teardown.FLEET_S, **asked.said)
            named = True
            if not (answer.get("Instances") or answer.get("Errors")):
                answer = await self._read_again(answer["FleetId"], asked.token)
        except BaseException as error:
            unknown = not isinstance(error, ProviderError) or is_lost(error) or named
            if unknown or (asked.lost and isinstance(error, NotAuthorized)):  # says nothing about an earlier try
                self._lost(asked, error)
            elif asked.lost:  # not repeated any more: machines that it made are ended when they appear
                self._unanswered.pop(asked.token, None)
                self._instances.launch_lost(asked.token, anyio.current_time(), count=asked.count)
            raise
        heard = launch.read(answer, list(asked.of), asked.subnets)
        self._unanswered.pop(asked.token, None)
        return self._made(heard.machines, asked.of), heard.refusals

    def _lost(self, asked: Asked, error: BaseException) -> None:
        """Note that a launch got no answer.

        Its machines may exist: they are looked for, count as cost, and are spared while the launch may be repeated.
        """
        now = anyio.current_time()
        self._instances.launch_lost(asked.token, now, count=asked.count, spare_s=REPEAT_S)
        self._poller.begun()
        if not asked.lost:
            asked.lost = True
            self._unanswered[asked.token] = asked
            hourly = asked.count * max(offer.hourly_usd + of.shape.hourly_usd for offer, of in asked.of.items())
            said = f"up to {asked.count} machines may exist of a launch that has no answer ({error})"
            text = f"{said}: it is asked again with its own token, and they count for max_cost until that is known"
            self._tell(LaunchUnsure(MachineId(asked.token), asked.count, hourly, asked.at, text))

    async def _repeat(self, count: int) -> list[Machine]:
        """Repeat the launches without an answer until one gave machines; return ``count`` of them at most.

        Further machines are ended. The next launch repeats the launches that are left: what one gave is told before
        another one can fail, and until it is told the lost launch counts as cost in its place.

        Raises:
            ProviderError: there is still no answer, so nothing else may be asked for.
        """
        async with self._repeating:
            while self._unanswered:  # one may be lost while another is repeated
                asked = next(iter(self._unanswered.values()))
                self._instances.launch_repeated(asked.token)
                try:
                    machines, _ = await self._ask(asked)
                except ProviderError:
                    if asked.token in self._unanswered:
                        raise
                    continue
                try:
                    await self._end_surplus(machines[count:])
                finally:
                    self._tell(LaunchSettled(MachineId(asked.token)))
                if machines:
                    return machines[:count]
            return []

    async def _end_surplus(self, machines: Sequence[Machine]) -> None:
        if machines:
            with suppress(ProviderError):  # the next call ends them
                await self._end(self._instances.ending([machine.id for machine in machines]))

    async def _read_again(self, fleet: str, token: str) -> dict[str, Any]:
        """Ask for the machines of a fleet: a repeated CreateFleet may be answered with the fleet's id alone."""
        answer = await self._api.call("describe_fleets", lag_s=LAG_S, FleetIds=[fleet])
        for found in answer.get("Fleets") or ():
            ids = machines_in(found)
            if ids is not None:
                await self._api.learnt(teardown.FLEET, token, ids)
                return dict(found)
        raise CallRefused(f"EC2 does not say which machines {fleet} has", retry_after_s=AGAIN_S, code="TimedOut")

    def _made(self, machines: Sequence[tuple[MachineId, Offer]], of: dict[Offer, LaunchTemplate]) -> list[Machine]:
        now = anyio.current_time()
        notices = ("aws", "aws-rebalance") if self._provider.rebalance else ("aws",)
        made: list[Machine] = []
        for name, offer in machines:
            machine = launch.machine(name, offer, of[offer], notices=notices, lease=LEASE)
            self._instances.created(machine, of[offer].shape.ami.user, now)
            self._places[name] = (offer.type.name, offer.zone)
            self._cooldowns.worked(offer)
            made.append(machine)
        if made:
            self._poller.begun()
        return made

    def _refused(self, refusal: Refusal) -> ProviderError:
        one = refusal.offers[0]
        error = translate(
            Failure(
                code=refusal.code,
                message=refusal.message,
                operation="CreateFleet",
                region=self._api.region,
                instance_type=" or ".join(dict.fromkeys(offer.type.name for offer in refusal.offers)),
                zone=one.zone if len(refusal.offers) == 1 else "",
                spot=one.market == "spot",
            )
        )
        self._cool_down(refusal.offers, error)
        return error

    def _cool_down(self, refused: Sequence[Offer], error: ProviderError) -> None:
        if isinstance(error, NoCapacity | QuotaExceeded) or error.code in VENDOR.lasting:
            for offer in refused:
                self._cooldowns.failed(offer, error, anyio.current_time())

    # --- following the machines --------------------------------------------------------------------------------------

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
            self._tasks.start_soon(self._api.learnt, teardown.FLEET, token, machines)
        for machine in news.interrupted:
            if machine in self._places:
                self._cooldowns.interrupted(*self._places[machine], anyio.current_time())

    async def _end(self, machines: Sequence[MachineId]) -> None:
        """End machines. Callers that come while a call is under way share the next one.

        Raises:
            ProviderError: the call failed; the next one includes these machines.
        """
        self._to_end.update(machines)
        async with self._ending:
            batch, self._to_end = self._to_end, set()
            try:
                if batch:
                    changes = await teardown.end(self._api, sorted(batch))
                    self._on_changes(self._instances.partial_answer(changes, anyio.current_time()))
            except BaseException:
                self._to_end |= batch
                raise
        self._poller.begun()
