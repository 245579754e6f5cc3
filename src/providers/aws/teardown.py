"""Find and end everything of a pool, and confirm that it is gone: for a pool that closes, and for a dead one.

Machines come first, because they cost the most and use the rest; then the resources they were made with. Only EC2's
answers count: a machine is gone when it is shown as terminated, or is not shown for `GRACE_S`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

import anyio

from ...lazy_dataclass import dataclass
from ..cloud.end_tracker import CONFIRM_S, EndTracker, Unsure
from ..cloud.instance_inventory import GRACE_S, InstanceView
from ..errors import NotGone, ProviderError
from ..journal import Intent, Journal
from ..resource_ownership import Claim, Others, Thing
from ..threads import in_thread
from . import listing, network
from .api import Api

FLEET = "fleet"  # the kind of intents that make machines
FLEET_S = 90.0  # CreateFleet answers when machines are placed: some seconds for tens of them
BATCH = 500  # "TerminateInstances", EC2 API Reference: at most 1000, and fewer are faster
AGAIN_S = (0.2, 0.4, 0.8, 1.0)  # pauses between requests; the last one repeats
IN_USE_S = 120.0  # resources of a terminated machine are released a little later


Warn = Callable[[str], object]


def _unheard(text: str) -> None:
    """Drop warnings, for callers that wait for the end anyway."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The resources that existed, and are confirmed to be gone."""

    pool: str
    machines: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    placement_groups: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()


def place_of(api: Api) -> dict[str, str]:
    """The place of a pool, as the journal stores it."""
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
    """End everything of ``pool`` in this region; return when EC2 confirms it and the journal is settled there.

    Resources that only look like the pool's are left alone: see `resource_ownership`.

    ``made``: intents that its living owner knows, besides the journal. ``known``: machines that an outdated answer may
    not show; those in the journal are known too, except those that have ``ended``. ``lost``: tokens of launches without
    an answer, with the seconds for which their machines may still appear; once as many have appeared as were asked for,
    nothing is waited for. ``patience_s``: transient errors are waited out for so long, with a call of ``warn``.
    ``lease_s``: seconds after which machines end themselves without their client. Idempotent; safe to cancel.

    Raises:
        NotGone: the end is not confirmed; says what is left.
    """
    written = await written_of(api, pool, journal, made)
    now = anyio.current_time()
    since = {machine: now - age_s for machine, age_s in written.machines.items()} | dict.fromkeys(known, now)
    answered = {each.token for each in made if each.ids is not None}
    unsure = {token: each for token, each in written.unsure(lost or {}).items() if token not in answered}
    tracker = EndTracker(
        {machine: at for machine, at in since.items() if machine not in {*ended}},
        began=now,
        unsure=unsure,
        patience_s=patience_s,
        lease_s=lease_s,
        all_known=bool(made),
    )
    swept = await _removed_all(api, written.claim, tracker, written, warn)
    await settle(api, pool, journal)
    return swept


async def sweep_others(api: Api, pool: str, *, journal: Journal) -> Swept:
    """End resources that have the tag of ``pool`` and are not its own, if the user knows that nobody uses them.

    Raises:
        ProviderError: the end is not confirmed; says what is left.
    """
    written = await written_of(api, pool, journal)
    return await _removed_all(
        api, Others(written.claim), EndTracker({}, began=anyio.current_time()), Written(written.claim)
    )


async def _removed_all(
    api: Api, what: Claim | Others, tracker: EndTracker, written: Written, warn: Warn = _unheard
) -> Swept:
    """Remove everything that ``what`` claims; failures are collected, and raised at the end.

    Raises:
        NotGone: something is left, or may be.
    """
    rest, machines, running = _OtherResources(api, what, written), list[str](), None
    try:
        machines = await _end_all(api, what, tracker, warn)
    except NotGone as error:
        running = error
    swept = Swept(
        what.pool,
        tuple(machines),
        templates=await rest.removed("launch-template", listing.templates, _delete_template),
        placement_groups=await rest.removed("placement-group", listing.placement_groups, _delete_group)
        if running is None
        else rest.kept("placement-group"),  # it still has machines
        security_groups=await rest.removed_groups() if running is None else rest.kept("security-group"),
    )
    if running is not None:
        raise running.beside(rest.left) from running.__cause__
    if rest.errors:
        first = rest.errors[0]
        raise NotGone(str(first), left=rest.left, code=first.code) from first
    return swept


class _OtherResources:
    """A pool's resources besides machines; they cost nothing. A failure to remove one does not stop the others."""

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
    """A resource's kind and name in words for people."""
    words = kind.replace("-", " ")
    return f"perhaps a {words}" if name == "perhaps" else f"{words} {name}"


async def written_of(api: Api, pool: str, journal: Journal | None, made: Sequence[Intent] = ()) -> Written:
    """Collect what is known of the pool in this region: the journal's intents, as far as readable, and ``made``."""
    place, record = place_of(api), None
    known = journal is not None
    if journal is not None:
        try:
            record = await in_thread(journal.record, pool)
        except ProviderError:  # tags find the same, only later
            known = False
    hosts = record.hosts if record is not None else () if known else (socket.gethostname(),)
    intents = [] if record is None else [each for each in record.intents if dict(each.place) == place]
    return Written(Claim.of(pool, [*intents, *made], hosts), intents, time.time())


async def elsewhere(api: Api, pool: str, journal: Journal | None) -> str:
    """The places of the pool's machines according to the journal; "" if they are here, or nobody knows."""
    record = None if journal is None else await in_thread(journal.record, pool)
    intents = () if record is None else record.intents
    places = {(each.place.get("region"), each.place.get("endpoint_url")) for each in intents if each.kind == FLEET}
    if (api.region, api.endpoint_url or None) in places:
        return ""
    return " and ".join(sorted(" ".join(filter(None, place)) for place in places))


async def settle(api: Api, pool: str, journal: Journal | None) -> None:
    """Record that nothing of the pool is left in this region.

    Raises:
        JournalError: the journal cannot be written.
    """
    if journal is not None:
        await in_thread(journal.settled, pool, place_of(api))


@dataclass(frozen=True, slots=True)
class Written:
    """The journal's record of one pool in one place."""

    claim: Claim
    intents: Sequence[Intent] = ()
    now: float = 0.0

    @property
    def machines(self) -> dict[str, float]:
        """The machines that were created, each with the seconds since then."""
        return {
            each: self.now - intent.at for intent in self.intents if intent.kind == FLEET for each in intent.ids or ()
        }

    def unsure(self, lost: Mapping[str, float]) -> dict[str, Unsure]:
        """The launches without an answer, each with the seconds for which machines may still appear.

        For those in ``lost``, the living owner knows the seconds; others may have been repeated for a while.
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


async def _end_all(api: Api, what: Claim | Others, tracker: EndTracker, warn: Warn) -> list[str]:
    """End every machine that ``what`` claims; return their ids when all ends are confirmed.

    Raises:
        NotGone: an end is not confirmed.
    """
    pauses, told = _pauses(), False
    while True:
        asked_at = anyio.current_time()
        try:
            shown = await listing.instances(api, what.pool, also=tracker.hidden)
            tracker.full_answer(listing.views_of(shown, what), asked_at)
            if tracker.to_end:
                tracker.partial_answer(await end(api, tracker.to_end))
        except ProviderError as error:
            now = anyio.current_time()
            again_s = tracker.again_s(error, now)
            if again_s is None:
                raise tracker.given_up(str(error), now, time.time(), code=error.code) from error
            if not told:
                told = True
                which = ", ".join(sorted(tracker.left)) or "the pool's machines"
                warn(f"the end of {which} is not confirmed yet, and is asked for again ({error})")
            await anyio.sleep(again_s)
            continue
        now = anyio.current_time()
        if tracker.done(now):
            return sorted(tracker.ended)
        if tracker.overdue(now):
            why = f"EC2 has not confirmed their end within {CONFIRM_S / 60:.0f} minutes"
            raise tracker.given_up(why, now, time.time())
        await anyio.sleep(next(pauses))


async def end(api: Api, machines: Sequence[str]) -> list[InstanceView]:
    """Ask EC2 to end these machines; return its answers. A machine that EC2 does not know is no error.

    Raises:
        ProviderError: some calls failed; all were tried.
    """
    said: list[InstanceView] = []
    failed: list[ProviderError] = []
    for start in range(0, len(machines), BATCH):
        try:
            said += await _end_batch(api, machines[start : start + BATCH])
        except ProviderError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return said


async def _end_batch(api: Api, batch: Sequence[str]) -> list[InstanceView]:
    """End a batch. An unknown id fails the whole call, so its halves are tried."""
    try:
        answer = await api.call("terminate_instances", InstanceIds=list(batch))
    except ProviderError as error:
        if not error.code.startswith("InvalidInstanceID"):
            raise
        if len(batch) == 1:
            return []
        middle = len(batch) // 2
        return [*await _end_batch(api, batch[:middle]), *await _end_batch(api, batch[middle:])]
    return [listing.change(each) for each in answer.get("TerminatingInstances") or ()]


# --- deleting ---------------------------------------------------------------------------------------------------------


async def _delete_template(api: Api, name: str) -> None:
    await api.call("delete_launch_template", LaunchTemplateName=name)


async def _delete_group(api: Api, name: str) -> None:
    await api.call("delete_placement_group", GroupName=name)


async def _removed(api: Api, delete: Callable[[Api, str], Awaitable[None]], name: str) -> bool:
    """Delete a resource; False where it did not exist. Resources stay in use for a while after a machine's end.

    Raises:
        ProviderError: it is still in use after `IN_USE_S`, or EC2 refused.
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
