"""Everything of a pool found, ended, and confirmed to be gone: for a pool that closes, and for a dead one's.

The machines first, because they cost the most and hold the rest; then what they were made with. Nothing is believed
that EC2 has not shown: a machine is gone when it is shown as terminated, or when nothing shows it for `GRACE_S`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import anyio

from ..errors import NotGone, ProviderError
from ..journal import Intent, Journal
from ..threads import in_thread
from ..whose import Claim, Others, Thing
from . import inventory, network
from .api import Api
from .ending import CONFIRM_S, Ending, Unsure
from .seen import GRACE_S, Sight, change, sights

FLEET = "fleet"  # the kind of intent that makes machines
FLEET_S = 90.0  # CreateFleet answers when its machines are placed: some seconds for tens of them
BATCH = 500  # "TerminateInstances", EC2 API Reference: at most 1000, and fewer are quicker
AGAIN_S = (0.2, 0.4, 0.8, 1.0)  # between looks; the last one stays
IN_USE_S = 120.0  # what a terminated machine had is let go a little later


Warn = Callable[[str], object]


def _unheard(text: str) -> None:
    """Whoever asked waits for the end."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The things that were there, and are confirmed to be gone."""

    pool: str
    machines: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    placement_groups: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()


def place_of(api: Api) -> dict[str, str]:
    """Return the place of a pool, as the journal writes it."""
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
    ended: Iterable[str] = (),
    lost: Mapping[str, float] | None = None,
    lease_s: float | None = None,
    patience_s: float = 0.0,
    warn: Warn = _unheard,
) -> Swept:
    """End everything of ``pool`` in this region, and return when EC2 confirms it; then the journal is settled there.
    What only looks like the pool's is left as it is: see `whose`.

    ``made``: what its living owner knows, besides the journal. ``known``: machines that a stale answer may not show
    yet; those in the journal are known, too, but for those that have ``ended``. ``lost``: tokens of launches without an
    answer, with the seconds for which machines of them may yet appear; once as many have shown as were asked for,
    nothing is waited for. ``patience_s``: for so long trouble that may pass is waited out, which ``warn`` is told.
    ``lease_s``: after the machines' last word from their client they end themselves. Doing it twice
    does no harm, nor does cancelling.

    Raises:
        NotGone: it is not confirmed; says what is left.
    """
    written = await written_of(api, pool, journal, made)
    now = anyio.current_time()
    since = {machine: now - age_s for machine, age_s in written.machines.items()} | dict.fromkeys(known, now)
    answered = {each.token for each in made if each.ids is not None}
    unsure = {token: each for token, each in written.unsure(lost or {}).items() if token not in answered}
    book = Ending(
        {machine: at for machine, at in since.items() if machine not in {*ended}},
        began=now,
        unsure=unsure,
        patience_s=patience_s,
        lease_s=lease_s,
        all_known=bool(made),
    )
    swept = await _removed_all(api, written.claim, book, written, warn)
    await settle(api, pool, journal)
    return swept


async def sweep_others(api: Api, pool: str, *, journal: Journal) -> Swept:
    """End what has the tag of ``pool`` and is not its own: for people who know that nobody uses it.

    Raises:
        ProviderError: it is not confirmed; says what is left.
    """
    written = await written_of(api, pool, journal)
    return await _removed_all(
        api, Others(written.claim), Ending({}, began=anyio.current_time()), Written(written.claim)
    )


async def _removed_all(api: Api, what: Claim | Others, book: Ending, written: Written, warn: Warn = _unheard) -> Swept:
    """Everything is tried, and what failed is raised at the end.

    Raises:
        NotGone
    """
    rest, machines, running = _Rest(api, what, written), list[str](), None
    try:
        machines = await _end_all(api, what, book, warn)
    except NotGone as error:
        running = error
    swept = Swept(
        what.pool,
        tuple(machines),
        templates=await rest.removed("launch-template", inventory.templates, _delete_template),
        placement_groups=await rest.removed("placement-group", inventory.placement_groups, _delete_group)
        if running is None
        else rest.kept("placement-group"),  # machines are in it
        security_groups=await rest.removed_groups() if running is None else rest.kept("security-group"),
    )
    if running is not None:
        raise running.beside(rest.left) from running.__cause__
    if rest.errors:
        first = rest.errors[0]
        raise NotGone(str(first), left=rest.left, code=first.code) from first
    return swept


class _Rest:
    """The things that a pool had beside its machines; they cost nothing. A failure to remove one stops no other."""

    def __init__(self, api: Api, what: Claim | Others, written: Written) -> None:
        self._api, self._what, self._written = api, what, written
        self.left: list[str] = []
        self.errors: list[ProviderError] = []

    async def removed(
        self,
        kind: str,
        shown: Callable[[Api, str], Awaitable[Sequence[Thing]]],
        delete: Callable[[Api, str], Awaitable[None]],
    ) -> tuple[str, ...]:
        names = {*self._written.names(kind)}
        try:
            names |= {each.id for each in await shown(self._api, self._what.pool) if self._what.has(each)}
        except ProviderError as error:
            self._failed(kind, "" if names else "perhaps", error)
        gone: list[str] = []
        for name in sorted(names):
            try:
                if await _removed(self._api, delete, name):
                    gone.append(name)
            except ProviderError as error:
                self._failed(kind, name, error)
        return tuple(gone)

    async def removed_groups(self) -> tuple[str, ...]:
        known = self._written.names("security-group")
        try:
            return tuple(await network.remove(self._api, self._what, known=known))
        except ProviderError as error:
            self._failed("security-group", ", ".join(known) or "perhaps", error)
            return ()

    def kept(self, kind: str) -> tuple[str, ...]:
        self.left += [_said(kind, name) for name in self._written.names(kind)]
        return ()

    def _failed(self, kind: str, name: str, error: ProviderError) -> None:
        self.errors.append(error)
        if name:
            self.left.append(_said(kind, name))


def _said(kind: str, name: str) -> str:
    """Return a resource's kind and name in words for people."""
    words = kind.replace("-", " ")
    return f"perhaps a {words}" if name == "perhaps" else f"{words} {name}"


async def written_of(api: Api, pool: str, journal: Journal | None, made: Sequence[Intent] = ()) -> Written:
    """Return what is known of the pool in this region: the journal's intents, as far as readable, and ``made``."""
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
    """Return where the journal has the pool's machines. Empty: here, whoever asked for them, or nobody knows where."""
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
    """The written record of one pool in one place."""

    claim: Claim
    intents: Sequence[Intent] = ()
    now: float = 0.0

    @property
    def machines(self) -> dict[str, float]:
        """Return the machines that were created, each with the seconds since then."""
        return {
            each: self.now - intent.at for intent in self.intents if intent.kind == FLEET for each in intent.ids or ()
        }

    def unsure(self, lost: Mapping[str, float]) -> dict[str, Unsure]:
        """The launches without an answer. Each may have been sent again for a while; of those that are ``lost``, their
        owner knows better for how many seconds machines may yet appear.
        """
        asked = [intent for intent in self.intents if intent.kind == FLEET and intent.ids is None]
        return {
            each.token: Unsure(
                lost.get(each.token, each.at + FLEET_S + GRACE_S - self.now), float(each.facts.get("count", inf))
            )
            for each in asked
        }

    def names(self, kind: str) -> list[str]:
        return [each for intent in self.intents if intent.kind == kind for each in intent.ids or ()]


async def _end_all(api: Api, what: Claim | Others, book: Ending, warn: Warn) -> list[str]:
    """Returns when every machine among ``what`` is confirmed to have ended, with their ids.

    Raises:
        NotGone: they are not.
    """
    pauses, told = _pauses(), False
    while True:
        asked_at = anyio.current_time()
        try:
            book.see(sights(await inventory.instances(api, what.pool, also=book.hidden), what), asked_at)
            if book.to_end:
                book.told(await end(api, book.to_end))
        except ProviderError as error:
            now = anyio.current_time()
            again_s = book.again_s(error, now)
            if again_s is None:
                raise book.given_up(str(error), now, time.time(), code=error.code) from error
            if not told:
                told = True
                which = ", ".join(sorted(book.left)) or "the pool's machines"
                warn(f"the end of {which} is not confirmed yet, and is asked for again ({error})")
            await anyio.sleep(again_s)
            continue
        now = anyio.current_time()
        if book.done(now):
            return sorted(book.ended)
        if book.overdue(now):
            why = f"EC2 has not confirmed their end within {CONFIRM_S / 60:.0f} minutes"
            raise book.given_up(why, now, time.time())
        await anyio.sleep(next(pauses))


async def end(api: Api, machines: Sequence[str]) -> list[Sight]:
    """Ask EC2 to end these, and return what it says of those that it knows: one that it does not know is no trouble.

    Raises:
        ProviderError: some could not be; all were tried.
    """
    said: list[Sight] = []
    failed: list[ProviderError] = []
    for start in range(0, len(machines), BATCH):
        try:
            said += await _end_batch(api, machines[start : start + BATCH])
        except ProviderError as error:
            failed.append(error)
    if failed:
        raise failed[0]
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
