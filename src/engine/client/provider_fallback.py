"""Several `Spec`s as one provider: if one has no machines, the next is tried at once.

FALLBACK-1: at any time, all machines of a pool come from one provider, because its nodes must reach each other. While
the pool has a machine, only specs of that machine's provider are tried. If these have no machines, `launch` raises, and
the pool waits and gives up as with a single provider. If a first launch returns fewer machines than the pool needs,
these are given back, and the next provider is tried; the last provider's machines are kept in any case.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from math import inf

import anyio

from ...lazy_dataclass import dataclass
from ...providers.base import EntryPoints, Fleet, LaunchRequest, Machine, MachineEvent, MachineGone, MachineId, Quoting
from ...providers.errors import NoCapacity, NotGone, ProviderError, QuotaExceeded
from ..api.settings import Selection, Spec, is_free, keyless
from .cleanup import collecting_failures, merged_failures

AGAIN_S = 1.0  # seconds before a failed stream of events is read again, or a price is requested again after a timeout
# a cloud's prices arrive within some seconds, or a few more if the cloud creates resources for its pool first
QUOTE_S = 60.0


@dataclass(frozen=True, slots=True)
class ProviderFallback:
    """Implements `providers.base.Provider`. Specs with equal providers share one fleet."""

    specs: tuple[Spec, ...]
    selection: Selection

    @property
    def name(self) -> str:
        return " or ".join(dict.fromkeys(spec.provider.name for spec in self.specs))

    @property
    def local(self) -> bool:
        return all(spec.provider.local for spec in self.specs)

    @property
    def free(self) -> bool:
        return all(is_free(spec.provider) for spec in self.specs)

    @property
    def keyless(self) -> bool:
        return all(keyless(spec.provider) for spec in self.specs)

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[FallbackFleet]:
        """Open all fleets, and read their events until the last fleet is closed, because closing a fleet may cause
        events. Each provider gets its own name for the pool (``train``, ``train-2``), so that machine ids are unique.
        """
        failures: list[NotGone] = []
        try:
            async with AsyncExitStack() as stack:
                tasks = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(tasks.cancel_scope.cancel)
                options: list[OpenedSpec] = []
                fleets: list[Fleet] = []
                for spec in self.specs:
                    fleet = next((each.fleet for each in options if each.spec.provider == spec.provider), None)
                    if fleet is None:
                        own = pool if not fleets else f"{pool}-{len(fleets) + 1}"
                        opening = collecting_failures(spec.provider.open(own, entry_points), failures)
                        fleet = await stack.enter_async_context(opening)
                        fleets.append(fleet)
                    options.append(OpenedSpec(spec, fleet))
                chosen = FallbackFleet(options, self.selection)
                for fleet in fleets:
                    tasks.start_soon(chosen.listen, fleet)
                yield chosen
        finally:
            if failures:
                raise merged_failures(failures)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedSpec:
    spec: Spec
    fleet: Fleet


@dataclass(slots=True)
class FallbackFleet:
    """A fleet (`providers.base.Fleet`) that combines several fleets."""

    options: Sequence[OpenedSpec]
    selection: Selection
    # machine -> the spec of its launch; only machines whose end no fleet has reported
    _origins: dict[MachineId, OpenedSpec] = field(init=False, default_factory=dict)
    _news: list[MachineEvent | Exception] = field(init=False, default_factory=list)
    _more: anyio.Event = field(init=False, default_factory=anyio.Event)

    def spec_of(self, machine: MachineId) -> Spec | None:
        option = self._origins.get(machine)
        return None if option is None else option.spec

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        bound = next(iter(self._origins.values()), None)
        failed: list[tuple[OpenedSpec, ProviderError]] = []
        options = await self._in_order(request, bound, failed)
        for at, option in enumerate(options):
            try:
                machines = await option.fleet.launch(option.spec.applied_to(request), count)
            except (NoCapacity, QuotaExceeded) as error:
                failed.append((option, error))
                continue
            self._origins.update({machine.id: option for machine in machines})
            elsewhere = any(each.fleet is not option.fleet for each in options[at + 1 :])
            if bound is None and elsewhere and len(machines) < min(request.least, count):
                what = f"{len(machines)} of the {request.least} machines that the pool needs could be had"
                failed.append((option, NoCapacity(what, retry_after_s=0.0)))
                await self.terminate([machine.id for machine in machines])
                continue
            return machines
        raise _no_machines(failed)

    async def _in_order(
        self, request: LaunchRequest, bound: OpenedSpec | None, failed: list[tuple[OpenedSpec, ProviderError]]
    ) -> Sequence[OpenedSpec]:
        """Return the specs to try, the preferred one first.

        A spec that has no price now is left out, and added to ``failed``. While the pool has machines from a spec
        (``bound``), return only the specs of the same fleet, with ``bound`` first.
        """
        if bound is not None:
            options = [each for each in self.options if each.fleet is bound.fleet]
            return sorted(options, key=lambda each: each is not bound)
        if self.selection == "first":
            return self.options
        prices: dict[OpenedSpec, float] = {}
        refused: list[ProviderError] = []

        async def ask(option: OpenedSpec) -> None:
            try:
                prices[option] = await _price(option, request)
            except ProviderError as error:
                passing = isinstance(error, NoCapacity | QuotaExceeded) or error.retry_after_s is not None
                if passing:
                    failed.append((option, error))
                else:
                    refused.append(error)

        async with anyio.create_task_group() as tasks:
            for option in self.options:
                tasks.start_soon(ask, option)
        if refused:
            raise refused[0]
        return sorted(prices, key=lambda each: (prices[each], self.options.index(each)))

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        known = {machine: self._origins[machine].fleet for machine in ids if machine in self._origins}
        for fleet in {id(fleet): fleet for fleet in known.values()}.values():  # each fleet once, usually only one
            machines = [machine for machine, its in known.items() if its is fleet]
            await fleet.terminate(machines)
            for machine in machines:
                self._origins.pop(machine, None)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        option = self._origins.get(machine)
        if option is not None:
            option.fleet.unusable(machine, cause, for_good=for_good)

    async def events(self) -> AsyncGenerator[MachineEvent, None]:
        while True:
            while self._news:
                event = self._news.pop(0)
                if isinstance(event, Exception):
                    raise event
                yield event
            self._more = anyio.Event()
            await self._more.wait()

    async def listen(self, fleet: Fleet) -> None:
        while True:
            try:
                async for event in fleet.events():
                    if isinstance(event, MachineGone):
                        self._origins.pop(event.id, None)
                    self._tell(event)
                return
            except Exception as error:  # noqa: BLE001  one fleet's failures is not to end the others
                self._tell(error)
            await anyio.sleep(AGAIN_S)

    def _tell(self, news: MachineEvent | Exception) -> None:
        self._news.append(news)
        self._more.set()


async def _price(option: OpenedSpec, request: LaunchRequest) -> float:
    """Return the current price of one machine of an option in USD per hour; infinity: no machine is available.

    Raises:
        ProviderError: the price cannot be requested, or no reply arrived within `QUOTE_S`.
    """
    if not isinstance(option.fleet, Quoting):
        return 0
    with anyio.move_on_after(QUOTE_S):
        quote = await option.fleet.quote(option.spec.applied_to(request))
        return inf if quote is None else quote
    raise ProviderError(f"it has not said its price within {QUOTE_S:g} s", retry_after_s=AGAIN_S)


def _no_machines(failed: Sequence[tuple[OpenedSpec, ProviderError]]) -> ProviderError:
    if len(failed) == 1:
        return failed[0][1]
    kinds = (NoCapacity, QuotaExceeded, ProviderError)
    kind = next(each for each in kinds if any(isinstance(error, each) for _, error in failed))
    again = [error.retry_after_s for _, error in failed if error.retry_after_s is not None]
    reasons = "; ".join(f"{option.spec.provider.name}: {error}" for option, error in failed)
    advice = "None of the specs can be had: try again later, or add one of another type, region or provider."
    return kind(reasons, retry_after_s=min(again, default=None), advice=advice)
