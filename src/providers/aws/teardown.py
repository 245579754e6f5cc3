"""Everything of a pool found by its tag, ended, and confirmed to be gone: for a pool that closes, and for a dead one's.

The machines first, because they cost the most and hold the rest; then what they were made with. Nothing is believed
that EC2 has not shown: a machine is gone when it is shown as terminated, or when nothing shows it for `GRACE_S`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from ..errors import ProviderError
from ..journal import Journal
from . import network, tags
from .api import Api
from .seen import GRACE_S, Sight, change, sights

T = TypeVar("T")

FLEET = "fleet"  # the kind of intent that makes machines
CONFIRM_S = 900.0  # large machines with many devices take minutes from shutting-down to terminated
BATCH = 500  # "TerminateInstances", EC2 API Reference: at most 1000, and fewer are quicker
AGAIN_S = (0.2, 0.4, 0.8, 1.0)  # between looks; the last one stays
IN_USE_S = 120.0  # what a terminated machine had is let go a little later


@dataclass(frozen=True, slots=True)
class Swept:
    """What was there, and is confirmed to be gone."""

    pool: str
    machines: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    placement_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineSeen:
    id: str
    type: str
    zone: str
    market: str  # "spot" or "on-demand"
    state: str
    launched_at: datetime
    address: str  # public, else private, else empty


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool as its tags in one region show it."""

    name: str
    owner: str  # user@host
    region: str
    machines: tuple[MachineSeen, ...] = ()  # without those that are terminated
    security_groups: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    placement_groups: tuple[str, ...] = ()


def place_of(api: Api) -> dict[str, str]:
    """Where a pool is, as the journal has it."""
    place = {"region": api.region, "endpoint_url": api.endpoint_url, "profile": api.profile}
    return {key: value for key, value in place.items() if value}


# --- a pool's end -----------------------------------------------------------------------------------------------------


async def sweep(
    api: Api, pool: str, *, journal: Journal | None, known: Iterable[str] = (), unsure_s: float = 0.0
) -> Swept:
    """End everything of ``pool`` in this region, and return when EC2 confirms it; then the journal is settled there.

    ``known``: machines that a stale answer may not show yet; those in the journal are known, too. ``unsure_s``: for so
    long something may appear that nobody was told of. Doing it twice does no harm, nor does cancelling.

    Raises:
        ProviderError: it is not confirmed; says what is left.
    """
    place, now = place_of(api), anyio.current_time()
    since = dict.fromkeys(known, now)
    if journal is not None:
        written, written_s = await anyio.to_thread.run_sync(_written, journal, pool, place)
        since = {machine: now - age_s for machine, age_s in written.items()} | since
        unsure_s = max(unsure_s, written_s)
    machines = await _end_all(api, pool, since, unsure_s)
    templates = await _each_removed(api, await templates_of(api, pool), _delete_template)
    groups = await _each_removed(api, await placement_groups_of(api, pool), _delete_placement_group)
    await _until_free(lambda: network.remove(api, pool))
    if journal is not None:
        await anyio.to_thread.run_sync(journal.settled, pool, place)
    return Swept(pool, tuple(machines), templates, groups)


def _written(journal: Journal, pool: str, place: dict[str, str]) -> tuple[dict[str, float], float]:
    """The machines that the journal knows, with the seconds since they were created, and for how long those of calls
    without an answer may yet appear.
    """
    try:
        record = journal.record(pool)
    except ProviderError:  # the tags find them all, only later
        record = None
    ages = {
        intent: time.time() - intent.at
        for intent in (record.intents if record is not None else ())
        if intent.kind == FLEET and dict(intent.place) == place
    }
    machines = {machine: age_s for intent, age_s in ages.items() for machine in intent.ids or ()}
    return machines, max((GRACE_S - age_s for intent, age_s in ages.items() if intent.ids is None), default=0.0)


async def _end_all(api: Api, pool: str, known: Mapping[str, float], unsure_s: float) -> list[str]:
    """Returns when every machine of the pool is confirmed to have ended, with their ids."""
    book = _Ending(known)
    started, pauses = anyio.current_time(), _pauses()
    try:
        while True:
            asked_at = anyio.current_time()
            book.see(sights(await instances_of(api, pool, also=book.hidden), pool), asked_at)
            if book.to_end:
                book.told(await end(api, book.to_end))
            lasted_s = anyio.current_time() - started
            if not book.left and lasted_s >= unsure_s:
                return sorted(book.ended)
            if lasted_s > CONFIRM_S + unsure_s:
                raise ProviderError(f"EC2 has not confirmed their end within {CONFIRM_S / 60:.0f} minutes")
            await anyio.sleep(next(pauses))
    except ProviderError as error:
        left = ", ".join(sorted(book.left)) or "perhaps some"
        raise type(error)(
            f"machines of the pool {pool} in {api.region} may still be running ({left}): `outrider gc --apply` ends "
            f"them; {error}",
            code=error.code,
        ) from error


class _Ending:
    """Which machines are left. ``known``: those that must have existed, and when they were last known to."""

    def __init__(self, known: Mapping[str, float]) -> None:
        self.ended: set[str] = set()
        self._at = dict(known)
        self._shown: set[str] = set()
        self._on: set[str] = set(known)  # and not asked to end, as far as EC2 has said

    @property
    def left(self) -> set[str]:
        return self._at.keys() - self.ended

    @property
    def hidden(self) -> list[str]:
        """Those that the last answer did not show."""
        return sorted(self.left - self._shown)

    @property
    def to_end(self) -> list[str]:
        return sorted(self._on & self.left)

    def see(self, shown: Sequence[Sight], asked_at: float) -> None:
        self._shown = {sight.id for sight in shown}
        for sight in shown:
            if sight.state == "terminated":
                self._end(sight)
            elif sight.id not in self.ended:
                if sight.id not in self._at and not sight.ends:
                    self._on.add(sight.id)
                self._at[sight.id] = asked_at
        for machine in list(self.left - self._shown):
            if asked_at - self._at[machine] >= GRACE_S:
                self.ended.add(machine)

    def told(self, changes: Sequence[Sight]) -> None:
        for sight in changes:
            if sight.state == "terminated":
                self._end(sight)
            elif sight.ends:
                self._on.discard(sight.id)

    def _end(self, sight: Sight) -> None:
        self._at.setdefault(sight.id, 0.0)
        self.ended.add(sight.id)


async def end(api: Api, machines: Sequence[str]) -> list[Sight]:
    """Ask EC2 to end these, and return what it says of those that it knows: one that it does not know is no trouble.

    Raises:
        ProviderError
    """
    said: list[Sight] = []
    for start in range(0, len(machines), BATCH):
        said += await _end_batch(api, machines[start : start + BATCH])
    return said


async def _end_batch(api: Api, batch: Sequence[str]) -> list[Sight]:
    """One unknown id fails the whole call, so those of its halves are looked for."""
    try:
        answer = await api.call("terminate_instances", InstanceIds=list(batch))
    except ProviderError as error:
        if not error.code.startswith("InvalidInstanceID"):
            raise
        if len(batch) == 1:
            return []
        middle = len(batch) // 2
        return [*await _end_batch(api, batch[:middle]), *await _end_batch(api, batch[middle:])]
    return [change(each) for each in answer.get("TerminatingInstances") or ()]


# --- what there is ----------------------------------------------------------------------------------------------------


async def instances_of(api: Api, pool: str, *, also: Sequence[str] = ()) -> list[dict[str, Any]]:
    """As DescribeInstances shows them; ``also``: by their ids, because the tags come later than the machine."""
    found = await _instances(api, tags.of(pool))
    for start in range(0, len(also), 200):  # as many values as a filter takes
        more = await _instances(api, {"Name": "instance-id", "Values": list(also[start : start + 200])})
        shown = {instance["InstanceId"] for instance in found}
        found += [instance for instance in more if instance["InstanceId"] not in shown]
    return found


async def survey(api: Api) -> list[PoolSeen]:
    """Every pool of which there is anything in this region, whoever's it is, by name."""
    found: list[tuple[str, str, Any]] = []  # pool, kind, what it is

    async def look(kind: str, read: Awaitable[list[dict[str, Any]]]) -> None:
        found.extend((tags.told(each).get(tags.POOL, ""), kind, each) for each in await read)

    any_pool = tags.of_any_pool()
    async with anyio.create_task_group() as looks:
        looks.start_soon(look, "machine", _instances(api, any_pool))
        looks.start_soon(look, "group", api.pages("describe_security_groups", "SecurityGroups", Filters=[any_pool]))
        looks.start_soon(
            look, "template", api.pages("describe_launch_templates", "LaunchTemplates", Filters=[any_pool])
        )
        looks.start_soon(look, "place", api.pages("describe_placement_groups", "PlacementGroups", Filters=[any_pool]))
    alive = [each for each in found if each[1] != "machine" or each[2]["State"]["Name"] != "terminated"]
    alive.sort(key=lambda each: each[0])
    return [_pool(api.region, name, list(things)) for name, things in groupby(alive, key=lambda each: each[0])]


def _pool(region: str, name: str, things: Sequence[tuple[str, str, Any]]) -> PoolSeen:
    def of(kind: str) -> list[Any]:
        return [thing for _, its, thing in things if its == kind]

    owners = [tags.told(thing).get(tags.OWNER, "") for _, _, thing in things]
    return PoolSeen(
        name,
        next(filter(None, owners), ""),
        region,
        tuple(_machine(each) for each in of("machine")),
        tuple(each["GroupId"] for each in of("group")),
        tuple(each["LaunchTemplateName"] for each in of("template")),
        tuple(each["GroupName"] for each in of("place")),
    )


def _machine(instance: dict[str, Any]) -> MachineSeen:
    return MachineSeen(
        instance["InstanceId"],
        instance["InstanceType"],
        (instance.get("Placement") or {}).get("AvailabilityZone", ""),
        instance.get("InstanceLifecycle") or "on-demand",
        instance["State"]["Name"],
        instance["LaunchTime"],
        instance.get("PublicIpAddress") or instance.get("PrivateIpAddress") or "",
    )


async def templates_of(api: Api, pool: str) -> list[str]:
    found = await api.pages("describe_launch_templates", "LaunchTemplates", Filters=[tags.of(pool)])
    return [each["LaunchTemplateName"] for each in found if tags.is_of(pool, each)]


async def placement_groups_of(api: Api, pool: str) -> list[str]:
    found = await api.pages("describe_placement_groups", "PlacementGroups", Filters=[tags.of(pool)])
    return [each["GroupName"] for each in found if tags.is_of(pool, each)]


async def _instances(api: Api, which: dict[str, Any]) -> list[dict[str, Any]]:
    reservations = await api.pages("describe_instances", "Reservations", Filters=[which])
    return [instance for reservation in reservations for instance in reservation["Instances"]]


# --- means ------------------------------------------------------------------------------------------------------------


async def _delete_template(api: Api, name: str) -> None:
    await api.call("delete_launch_template", LaunchTemplateName=name)


async def _delete_placement_group(api: Api, name: str) -> None:
    await api.call("delete_placement_group", GroupName=name)


async def _each_removed(
    api: Api, names: Sequence[str], remove: Callable[[Api, str], Awaitable[None]]
) -> tuple[str, ...]:
    for name in names:

        async def this(name: str = name) -> None:
            try:
                await remove(api, name)
            except ProviderError as error:
                if not ("NotFound" in error.code or error.code == "InvalidPlacementGroup.Unknown"):
                    raise

        await _until_free(this)
    return tuple(names)


async def _until_free(remove: Callable[[], Awaitable[T]]) -> T:
    """What hangs on a machine is in use for a while after its end.

    Raises:
        ProviderError: it still is after `IN_USE_S`.
    """
    pauses, last = _pauses(), anyio.current_time() + IN_USE_S
    while True:
        try:
            return await remove()
        except ProviderError as error:
            if not (error.code == "DependencyViolation" or error.code.endswith(".InUse")):
                raise
            if anyio.current_time() > last:
                raise
        await anyio.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    yield from AGAIN_S
    while True:
        yield AGAIN_S[-1]
