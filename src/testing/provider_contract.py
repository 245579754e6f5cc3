"""The checks that every provider must pass, including your own: ``for check in CHECKS: await check(Subject(...))``.

`outrider.testing.provider_contract` is this module. A failed check raises `AssertionError` with its observations. The
checks count machines from outside, with ``Subject.alive``, because a provider cannot report a machine that it forgot.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import anyio

from ..lazy_dataclass import dataclass
from ..providers.base import (
    EntryPoints,
    Fleet,
    LaunchRequest,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineReachable,
    Provider,
    Quoting,
)

T = TypeVar("T")

STEPS_AT_MOST = 10_000
REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=2)
NO_PROCESSES = EntryPoints()  # for a `Subject` whose provider starts no processes on this computer


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A provider under test, with functions that count and end its machines without using the provider.

    Args:
        provider: The provider.
        alive: Counts the machines of this provider that exist.
        kill: Ends a machine, as a power cut would.
        request: The launch request of the checks.
        entry_points: The programs for providers that start processes on this computer.
        within_s: Seconds within which the provider must do what it promises.
        reports_ends: False: the provider cannot learn that a machine has ended; the pool has to detect it.
    """

    provider: Provider
    alive: Callable[[], Awaitable[int]]
    kill: Callable[[Machine], Awaitable[None]]
    request: LaunchRequest = REQUEST
    entry_points: EntryPoints = NO_PROCESSES
    within_s: float = 30.0
    reports_ends: bool = True


# --- the checks -------------------------------------------------------------------------------------------------------


async def launch_gives_distinct_machines_that_become_reachable(subject: Subject) -> None:
    async with _opened(subject) as fleet:
        machines = await _launch(subject, fleet, 2)
        _check(len(machines) == 2, f"asked for 2 machines, got {len(machines)}")
        _check(len({machine.id for machine in machines}) == 2, "two machines have one id")
        reached = await _all_reachable(subject, fleet, machines)
        by_ssh = [machine for machine in reached if machine.ssh]
        _check(all(machine.host_key for machine in by_ssh), "a machine has no host key to pin")
        keys = {machine.host_key for machine in by_ssh}
        replaced = all(machine.rotate_host_key for machine in by_ssh)
        _check(len(keys) == len(by_ssh) or replaced, "two machines share a host key for good")
        _check(await subject.alive() == 2, f"{await subject.alive()} machines exist, not 2")


async def a_machine_that_ends_is_reported_gone(subject: Subject) -> None:
    async with _opened(subject) as fleet:
        machines = await _launch(subject, fleet, 2)
        await subject.kill(machines[0])
        if not subject.reports_ends:
            return
        gone = await _event(subject, fleet, lambda event: isinstance(event, MachineGone) and event.id == machines[0].id)
        _check(isinstance(gone, MachineGone) and bool(gone.cause), "a machine is gone without a cause")


async def terminate_is_confirmed_and_idempotent(subject: Subject) -> None:
    async with _opened(subject) as fleet:
        machines = await _launch(subject, fleet, 2)
        first, second = machines[0].id, machines[1].id
        with anyio.fail_after(subject.within_s):
            await fleet.terminate([first])
            _check(await subject.alive() == 1, "terminate returned before the machine was gone")
            await fleet.terminate([first])
            await fleet.terminate([first, second, MachineId("no-such-machine")])
            await fleet.terminate([])
        _check(await subject.alive() == 0, "a terminated machine exists")


async def terminating_one_that_ended_by_itself_is_fine(subject: Subject) -> None:
    async with _opened(subject) as fleet:
        machines = await _launch(subject, fleet, 1)
        await subject.kill(machines[0])
        with anyio.fail_after(subject.within_s):
            await fleet.terminate([machines[0].id])


async def leaving_terminates_every_machine(subject: Subject) -> None:
    async with _opened(subject) as fleet:
        await _launch(subject, fleet, 2)
    _check(await subject.alive() == 0, "machines are left after the context")


async def leaving_by_an_error_terminates_and_raises_it(subject: Subject) -> None:
    mark = RuntimeError("the body's own")
    try:
        async with subject.provider.open("contract", subject.entry_points) as fleet:
            await _launch(subject, fleet, 2)
            raise mark
    except* RuntimeError as group:
        _check(group.subgroup(lambda each: each is mark) is not None, f"the body's error became {group!r}")
    _check(await subject.alive() == 0, "machines are left after an error")


async def cancelling_at_any_await_leaves_nothing(subject: Subject) -> None:
    async def use() -> None:
        async with subject.provider.open("contract", subject.entry_points) as fleet:
            await fleet.launch(subject.request, 2)

    async def nothing_is_left(step: int) -> None:
        _check(await subject.alive() == 0, f"cancelled at await {step}, machines are left")

    await cancel_at_every_step(use, nothing_is_left)


async def one_provider_serves_several_pools(subject: Subject) -> None:
    async with subject.provider.open("one", subject.entry_points) as one:
        async with subject.provider.open("two", subject.entry_points) as two:
            (mine,) = await _launch(subject, one, 1)
            (other,) = await _launch(subject, two, 1)
            _check(mine.id != other.id, "machines of two pools have one id")
            await one.terminate([other.id])
            _check(await subject.alive() == 2, "one pool's fleet terminated another's machine")
        _check(await subject.alive() == 1, "leaving one pool's context touched another's machine")
    _check(await subject.alive() == 0, "machines are left after two pools")


async def a_quote_is_a_price_or_none(subject: Subject) -> None:
    async with _opened(subject) as fleet:
        if isinstance(fleet, Quoting):
            with anyio.fail_after(subject.within_s):
                price = await fleet.quote(subject.request)
            _check(price is None or price >= 0, f"a machine costs {price!r} USD per hour")


Check = Callable[[Subject], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    launch_gives_distinct_machines_that_become_reachable,
    a_machine_that_ends_is_reported_gone,
    terminate_is_confirmed_and_idempotent,
    terminating_one_that_ended_by_itself_is_fine,
    leaving_terminates_every_machine,
    leaving_by_an_error_terminates_and_raises_it,
    cancelling_at_any_await_leaves_nothing,
    one_provider_serves_several_pools,
    a_quote_is_a_price_or_none,
)


# --- cancelling at every await ----------------------------------------------------------------------------------------


async def cancel_at_every_step(
    use: Callable[[], Coroutine[Any, Any, object]], after: Callable[[int], Awaitable[None]]
) -> int:
    """Run ``use`` repeatedly: cancel run number n at its n-th await, until a run ends uncancelled.

    Tasks that ``use`` starts are not cancelled directly, but only as ``use`` itself cancels them.

    Args:
        use: Returns the coroutine to run.
        after: Called after each run, with the number of the await.

    Returns:
        The number of the last run.
    """
    for step in count(1):
        with anyio.CancelScope() as scope:
            await _Stepped(use(), step, scope)
        await after(step)
        if not scope.cancel_called:
            return step
        _check(step < STEPS_AT_MOST, "it never ends")
    raise AssertionError("unreachable")


class _Stepped:
    """An awaitable that runs a coroutine, and cancels ``scope`` when the coroutine suspends for the ``at``-th time."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], at: int, scope: anyio.CancelScope) -> None:
        self._coroutine, self._at, self._scope = coroutine, at, scope

    def __await__(self) -> Generator[Any, Any, object]:
        steps = 0
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._coroutine.send(answer) if error is None else self._coroutine.throw(error)
            except StopIteration as done:
                return done.value
            steps += 1
            if steps == self._at:
                self._scope.cancel()
            answer, error = None, None
            try:
                answer = yield waits_for
            except BaseException as thrown:  # noqa: BLE001 (passed on, like `yield from`)
                error = thrown


# --- helpers ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(subject: Subject) -> AsyncIterator[Fleet]:
    async with subject.provider.open("contract", subject.entry_points) as fleet:
        yield fleet
    _check(await subject.alive() == 0, "machines are left after the context")


async def _launch(subject: Subject, fleet: Fleet, machines: int) -> Sequence[Machine]:
    with anyio.fail_after(subject.within_s):
        return await fleet.launch(subject.request, machines)


async def _all_reachable(subject: Subject, fleet: Fleet, machines: Sequence[Machine]) -> Sequence[Machine]:
    """Wait until all machines have an address. Return the machines with their addresses."""
    reached = {machine.id: machine for machine in machines}

    def all_are(event: MachineEvent) -> bool:
        if isinstance(event, MachineReachable):
            _check(event.machine.address is not None, "a reachable machine has no address")
            if event.machine.id in reached:
                reached[event.machine.id] = event.machine
        return all(machine.address is not None for machine in reached.values())

    if any(machine.address is None for machine in machines):
        await _event(subject, fleet, all_are)
    return list(reached.values())


async def _event(subject: Subject, fleet: Fleet, wanted: Callable[[MachineEvent], bool]) -> MachineEvent:
    events = fleet.events()
    try:
        with anyio.fail_after(subject.within_s):
            async for event in events:
                if wanted(event):
                    return event
        raise AssertionError("the events ended")
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
