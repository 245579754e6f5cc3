"""Everything of a pool found, ended, and confirmed to be gone: for a pool that closes, and for a dead one's.

The machines first, because they cost the most and hold the rest; then what they were made with. Nothing is believed
that EC2 has not shown: a machine is gone when it is shown as terminated, or when nothing shows it for `GRACE_S`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import anyio

from ..errors import ProviderError
from ..journal import Intent, Journal
from ..threads import in_thread
from ..whose import Claim, Others, Thing
from . import inventory, network
from .api import Api
from .seen import GRACE_S, Sight, change, sights

FLEET = "fleet"  # the kind of intent that makes machines
FLEET_S = 90.0  # CreateFleet answers when its machines are placed: some seconds for tens of them
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
    security_groups: tuple[str, ...] = ()


def place_of(api: Api) -> dict[str, str]:
    """Where a pool is, as the journal has it."""
    place = {"region": api.region, "endpoint_url": api.endpoint_url, "profile": api.profile}
    return {key: value for key, value in place.items() if value}


# --- a pool's end -----------------------------------------------------------------------------------------------------


async def sweep(
    api: Api,
    pool: str,
    *,
    journal: Journal | None,
    made: Sequence[Intent] = (),
    known: Iterable[str] = (),
    unsure_s: float = 0.0,
) -> Swept:
    """End everything of ``pool`` in this region, and return when EC2 confirms it; then the journal is settled there.
    What only looks like the pool's is left as it is: see `whose`.

    ``made``: what its living owner knows, besides the journal. ``known``: machines that a stale answer may not show
    yet; those in the journal are known, too. ``unsure_s``: for so long something may appear that nobody was told of.
    Doing it twice does no harm, nor does cancelling.

    Raises:
        ProviderError: it is not confirmed; says what is left.
    """
    written = await written_of(api, pool, journal, made)
    now = anyio.current_time()
    since = {machine: now - age_s for machine, age_s in written.machines.items()} | dict.fromkeys(known, now)
    swept = await _removed_all(api, written.claim, since, max(unsure_s, written.unsure_s), written)
    await settle(api, pool, journal)
    return swept


async def sweep_others(api: Api, pool: str, *, journal: Journal) -> Swept:
    """End what has the tag of ``pool`` and is not its own: for people who know that nobody uses it.

    Raises:
        ProviderError: it is not confirmed; says what is left.
    """
    written = await written_of(api, pool, journal)
    return await _removed_all(api, Others(written.claim), {}, 0.0, Written(written.claim))


async def _removed_all(
    api: Api, what: Claim | Others, since: Mapping[str, float], unsure_s: float, written: Written
) -> Swept:
    def names(kind: str, shown: Sequence[Thing]) -> list[str]:
        return sorted({*(each.id for each in shown if what.has(each)), *written.names(kind)})

    machines = await _end_all(api, what, since, unsure_s)
    templates = names("launch-template", await inventory.templates(api, what.pool))
    groups = names("placement-group", await inventory.placement_groups(api, what.pool))
    return Swept(
        what.pool,
        tuple(machines),
        templates=tuple([each for each in templates if await _removed(api, _delete_template, each)]),
        placement_groups=tuple([each for each in groups if await _removed(api, _delete_group, each)]),
        security_groups=tuple(await network.remove(api, what, known=written.names("security-group"))),
    )


async def written_of(api: Api, pool: str, journal: Journal | None, made: Sequence[Intent] = ()) -> Written:
    """What is known of the pool in this region: the journal's, as far as it can be read, and ``made``."""
    place, record = place_of(api), None
    known = journal is not None
    if journal is not None:
        try:
            record = await in_thread(journal.record, pool)
        except ProviderError:  # the tags find it all, only later
            known = False
    hosts = record.hosts if record is not None else () if known else (socket.gethostname(),)
    intents = [] if record is None else [each for each in record.intents if dict(each.place) == place]
    return Written(Claim.of(pool, [*intents, *made], hosts), intents, time.time())


async def elsewhere(api: Api, pool: str, journal: Journal | None) -> str:
    """Where the pool's machines are, as the journal knows; empty: here, whoever asked for them, or nobody knows."""
    record = None if journal is None else await in_thread(journal.record, pool)
    intents = () if record is None else record.intents
    places = {(each.place.get("region"), each.place.get("endpoint_url")) for each in intents if each.kind == FLEET}
    if (api.region, api.endpoint_url or None) in places:
        return ""
    return " and ".join(sorted(" ".join(filter(None, place)) for place in places))


async def settle(api: Api, pool: str, journal: Journal | None) -> None:
    """Nothing of the pool is left in this region.

    Raises:
        JournalError: it could not be written down.
    """
    if journal is not None:
        await in_thread(journal.settled, pool, place_of(api))


@dataclass(frozen=True, slots=True)
class Written:
    """What is written down of a pool in one place."""

    claim: Claim
    intents: Sequence[Intent] = ()
    now: float = 0.0

    @property
    def machines(self) -> dict[str, float]:
        """With the seconds since they were created."""
        return {
            each: self.now - intent.at for intent in self.intents if intent.kind == FLEET for each in intent.ids or ()
        }

    @property
    def unsure_s(self) -> float:
        """For how long machines of a call without an answer may yet appear: it may have been sent again for a while."""
        asked = [intent.at for intent in self.intents if intent.kind == FLEET and intent.ids is None]
        return max((at + FLEET_S + GRACE_S - self.now for at in asked), default=0.0)

    def names(self, kind: str) -> list[str]:
        return [each for intent in self.intents if intent.kind == kind for each in intent.ids or ()]


async def _end_all(api: Api, what: Claim | Others, known: Mapping[str, float], unsure_s: float) -> list[str]:
    """Returns when every machine among ``what`` is confirmed to have ended, with their ids."""
    book = _Ending(known)
    started, pauses = anyio.current_time(), _pauses()
    try:
        while True:
            asked_at = anyio.current_time()
            book.see(sights(await inventory.instances(api, what.pool, also=book.hidden), what), asked_at)
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
            f"machines of the pool {what.pool} in {api.region} may still be running ({left}): "
            f"`outrider gc --apply` ends them; {error}",
            code=error.code,
        ) from error


class _Ending:
    """Which machines are left. ``known``: those that must have existed, and when they were last known to."""

    def __init__(self, known: Mapping[str, float]) -> None:
        self._at = dict(known)  # when each was last shown
        self._shown: set[str] = set()
        self._asked: set[str] = set()  # to end, as EC2 has said itself
        self._terminated: set[str] = set()
        self._vanished: set[str] = set()

    @property
    def ended(self) -> set[str]:
        return self._terminated | self._vanished

    @property
    def left(self) -> set[str]:
        return self._at.keys() - self.ended

    @property
    def hidden(self) -> list[str]:
        """Those that the last answer did not show."""
        return sorted(self.left - self._shown)

    @property
    def to_end(self) -> list[str]:
        return sorted(self.left - self._asked)

    def see(self, shown: Sequence[Sight], asked_at: float) -> None:
        """An answer to the question for all of them."""
        self._shown = {sight.id for sight in shown}
        self._at |= dict.fromkeys(self._shown, asked_at)
        self.told(shown)
        self._vanished = {each for each, at in self._at.items() if asked_at - at >= GRACE_S}

    def told(self, some: Sequence[Sight]) -> None:
        """What EC2 says of some of them. It does not take an end back: what says so is an older answer."""
        self._asked |= {sight.id for sight in some if sight.ends}
        self._terminated |= {sight.id for sight in some if sight.state == "terminated"}


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


# --- means ------------------------------------------------------------------------------------------------------------


async def _delete_template(api: Api, name: str) -> None:
    await api.call("delete_launch_template", LaunchTemplateName=name)


async def _delete_group(api: Api, name: str) -> None:
    await api.call("delete_placement_group", GroupName=name)


async def _removed(api: Api, delete: Callable[[Api, str], Awaitable[None]], name: str) -> bool:
    """False: it was gone. What hangs on a machine is in use for a while after its end.

    Raises:
        ProviderError: it still is after `IN_USE_S`.
    """
    pauses, last = _pauses(), anyio.current_time() + IN_USE_S
    while True:
        try:
            await delete(api, name)
        except ProviderError as error:
            if "NotFound" in error.code or error.code.endswith(".Unknown"):
                return False
            if not error.code.endswith(".InUse") or anyio.current_time() > last:
                raise
        else:
            return True
        await anyio.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    yield from AGAIN_S
    while True:
        yield AGAIN_S[-1]
