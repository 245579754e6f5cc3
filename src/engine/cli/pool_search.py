"""The search for pools, for `outrider ps` and `outrider gc`: in the places of the journal, and in places that the user
names.

The journal is the list of machines that programs of this computer have requested. `ask` sends queries to clouds and
clusters: each provider whose machines can outlive their client has a `Surveyor` (it finds and ends existing machines),
which ``providers.registry`` lists. `verdict` decides, from the journal and from tags, which cloud resources have no
living owner (orphans); it does no I/O.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Literal

import anyio
from cyclopts import Parameter

from ...lazy_dataclass import dataclass
from ...providers.errors import ProviderError
from ...providers.registry import surveyors
from ...providers.shared.journal import Intent, Journal, PoolRecord
from ...providers.shared.pool_lock import Place
from ...providers.shared.resource_ownership import Claim, Thing
from ...providers.survey import FoundMachine, PlaceAnswer, Surveyor
from ..api.language import worded
from ..api.printable import plain
from .common import UNKNOWN, Flag, defect

Standing = Literal["alive", "dead", "elsewhere", "unknown"]


@dataclass(frozen=True, slots=True)
class FoundPool:
    """All resources of one pool in one place, such as a region of a cloud.

    ``standing``: the state of the pool's owner (the program that opened the pool). "unknown": a resource's tag names
    the pool, but the journal (this computer's list of requested machines) does not list the resource.
    """

    pool: str
    provider: str
    place: Place
    owner: str
    standing: Standing
    machines: tuple[FoundMachine, ...] = ()
    others: tuple[str, ...] = ()
    unsettled: int = 0  # number of the pool's resources here that may exist, by the journal of requests
    error: str = ""
    tagged: bool = False  # the resources' tag names a pool that the journal knows
    unsaid: bool = False  # some resources have no tag that names their owner

    @property
    def hourly_usd(self) -> float | None:
        """The price of all machines of the pool, in USD per hour; None: the price of a machine is unknown."""
        prices = [machine.hourly_usd for machine in self.machines]
        return None if None in prices else sum(price for price in prices if price is not None)

    def outlived(self, now: float) -> bool:
        """Return whether the pool has machines, and the lifetime of each machine is known and over."""
        return bool(self.machines) and all(each.until is not None and each.until < now for each in self.machines)

    @property
    def ours(self) -> bool:
        """Return whether the pool may be left over from this computer: it has no living owner here, and is in the
        journal or has no tag of another owner.
        """
        return self.standing in ("dead", "elsewhere") or (self.tagged and self.unsaid)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of `outrider gc` about a pool, and the reason as a part of a sentence for users."""

    remove: bool
    why: str


def known_pools(records: Sequence[PoolRecord], answers: Sequence[PlaceAnswer]) -> list[FoundPool]:
    """Return a `FoundPool` for each pool and each place (such as a region) where it may have resources.

    The pools and places are named by the journal (this computer's list of requested machines) and by tags in the
    cloud. Each resource is in exactly one `FoundPool`. The result is sorted by the pool's name.
    """
    rows = [
        _of_record(record, place, next((each for each in answers if _is_of(each, record, place)), None))
        for record in records
        for place in record.places or ({},)
    ]
    for answer in answers:
        rows += _of_others(answer, [record.claim(answer.place) for record in records])
    return sorted(rows, key=lambda each: (each.pool, sorted(each.place.items()), each.standing == "unknown"))


def verdict(pool: FoundPool, *, foreign: bool, now: float) -> Verdict:
    """Decide whether `gc` removes a pool. ``now``: unix time.

    GC-1: resources of a living owner on this computer are never touched. Resources of another computer are touched only
    with ``foreign``, or when the lifetime that their owner has set is over.
    GC-2: resources of another owner, whatever their tags are, do not prevent the removal of this computer's resources.
    GC-3: each resource that was found with a pool's tag or id is in exactly one `FoundPool`.
    """
    if pool.error:
        return Verdict(False, f"its cloud could not be asked: {pool.error}")
    match pool.standing:
        case "alive":
            return Verdict(False, f"its owner is alive: {pool.owner}")
        case "dead":
            return Verdict(True, f"its owner is dead: {pool.owner or 'unknown'}")
        case "elsewhere":
            why = f"its owner may be alive on another computer: {pool.owner}"
        case "unknown" if pool.tagged:
            whose = pool.owner or "nobody that a tag names"
            why = f"it has the tags of a pool here and is not that pool's; its own say: {whose}"
        case "unknown":
            why = f"the journal here does not know it, and its owner may be alive: {pool.owner}"
    if pool.outlived(now):
        return Verdict(True, "its max_lifetime is over, as its machines say themselves")
    return Verdict(foreign, why if foreign else f"{why}; if nobody uses it, --foreign removes it")


def _is_of(answer: PlaceAnswer, record: PoolRecord, place: Place) -> bool:
    return answer.place == place and record.provider in ("", answer.provider)


def _of_record(record: PoolRecord, place: Place, answer: PlaceAnswer | None) -> FoundPool:
    """Return the `FoundPool` of a pool that is in the journal.

    A pool without resources in the cloud's answer is kept, because the answer may be out of date.
    """
    claim, answer = record.claim(place), answer or PlaceAnswer(record.provider, place)
    return FoundPool(
        record.pool,
        record.provider or answer.provider,
        place,
        "" if record.owner is None else str(record.owner),
        record.standing,
        tuple(each for each in answer.machines if claim.has(each)),
        tuple(each.id for each in answer.others if claim.has(each)),
        sum(each.place == place for each in record.intents),
        answer.error,
    )


def _of_others(answer: PlaceAnswer, claims: Sequence[Claim]) -> list[FoundPool]:
    """Return a `FoundPool` for each pool that only tags name: its resources belong to no pool in the journal."""

    def is_other(thing: Thing) -> bool:
        return bool(thing.pool) and not any(claim.has(thing) for claim in claims)

    machines, others = list(filter(is_other, answer.machines)), list(filter(is_other, answer.others))
    things = [*machines, *others]
    return [
        FoundPool(
            pool,
            answer.provider,
            answer.place,
            ", ".join(sorted({each.owner for each in things if each.pool == pool and each.owner})),
            "unknown",
            tuple(each for each in machines if each.pool == pool),
            tuple(each.id for each in others if each.pool == pool),
            tagged=any(claim.pool == pool for claim in claims),
            unsaid=any(not each.owner for each in things if each.pool == pool),
        )
        for pool in sorted({each.pool for each in things})
    ]


AT_A_TIME = 8  # at most so many places (such as regions) of a provider are queried at the same time
ANSWER_S = 60.0  # seconds to wait for a place's answer; the regions of a large account answer within some seconds

SURVEYORS: Mapping[str, Surveyor] = surveyors()


async def ask(
    records: Sequence[PoolRecord],
    places: Sequence[tuple[str, Place]],
    *,
    everywhere: tuple[str, Place] | None,
) -> list[PlaceAnswer]:
    """Query all places (such as regions) in the journal of requested machines, and ``places``, at the same time.

    ``places``: (provider, place). ``everywhere``: a provider, of which all places are queried, and the access to it,
    such as a profile. A place that does not answer within `ANSWER_S` gets an answer with an error, and delays no other
    place.
    """
    answers: list[PlaceAnswer] = []
    started: list[tuple[str, Place]] = []
    at_once: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(AT_A_TIME))

    async def one(provider: str, place: Place) -> None:
        intents = [each for record in records for each in record.intents if each.place == place]
        async with at_once[provider]:
            answers.append(await _ask(provider, place, intents))

    async def all_of(provider: str, access: Place) -> None:
        there: list[Place] = []

        async def find() -> PlaceAnswer:
            there.extend(await SURVEYORS[provider].everywhere(access))
            return PlaceAnswer(provider, access)

        answer = await _answered(provider, access, find)
        answers.extend([answer] if answer.error else [])
        for place in there:
            begin(provider, place)

    def begin(provider: str, place: Place) -> None:
        if (provider, place) not in started:
            started.append((provider, place))
            tasks.start_soon(one, provider, place)

    async with anyio.create_task_group() as tasks:
        for record in records:
            for place in record.places:
                begin(provider_of(record, place), place)
        for named in places:
            begin(*named)
        if everywhere is not None:
            tasks.start_soon(all_of, *everywhere)
    return answers


def provider_of(record: PoolRecord, place: Place) -> str:
    """Return the name of the provider to which a place (such as a region) belongs; empty: unknown."""
    return record.provider or next((name for name, each in SURVEYORS.items() if each.has(place)), "")


async def _ask(provider: str, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
    surveyor = SURVEYORS.get(provider)
    if surveyor is None:
        error = f"this version of Outrider cannot ask {provider or 'its cloud'}: use the one that has made the pool"
        return PlaceAnswer(provider, place, error=error)
    return await _answered(provider, place, lambda: surveyor.survey(place, known))


async def _answered(provider: str, place: Place, ask: Callable[[], Awaitable[PlaceAnswer]]) -> PlaceAnswer:
    """Return what ``ask`` finds in a place, such as a region. If ``ask`` fails or takes too long, return an error."""
    try:
        with anyio.move_on_after(ANSWER_S):
            return await ask()
        why = f"it has not answered within {ANSWER_S:g} s; that may pass by itself: try again"
    except ProviderError as error:
        why = _explained(error)
    except Exception as error:  # noqa: BLE001  the edge: a defect in one provider must not hide the others' machines
        why = defect(error)
    return PlaceAnswer(provider, place, error=worded(why))


def _explained(error: ProviderError) -> str:
    """Return why a place (such as a region) could not be queried, and what to do about it."""
    if error.retry_after_s is not None:
        return f"{error}; that may pass by itself: try again"
    return f"{error}. {error.advice}" if error.advice else str(error)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Places to search, in addition to those that this computer's journal lists.

    Parameters
    ----------
    region:
        An AWS region to search. Can be repeated.
    all_regions:
        Search every AWS region of the account.
    profile:
        The profile in ~/.aws to use for these regions.
    endpoint_url:
        The endpoint of another cloud with EC2's interface, to search instead of AWS.
    place:
        A place of any provider, such as aws:region=us-east-1,profile=lab. Can be repeated.
    """

    region: Annotated[list[str] | None, Flag] = None
    all_regions: Annotated[bool, Flag] = False
    profile: Annotated[str | None, Parameter(env_var="AWS_PROFILE")] = None
    endpoint_url: Annotated[str | None, Parameter(env_var="AWS_ENDPOINT_URL")] = None

    place: Annotated[list[str] | None, Flag] = None

    @property
    def places(self) -> list[tuple[str, Place]]:
        """The places, with providers, that the options ``region`` and ``place`` name. Exit with 2 if one is invalid."""
        regions: list[tuple[str, Place]] = [("aws", {"region": region, **self._access}) for region in self.region or ()]
        return regions + [_place_named(text) for text in self.place or ()]

    @property
    def everywhere(self) -> tuple[str, Place] | None:
        return ("aws", self._access) if self.all_regions else None

    @property
    def _access(self) -> dict[str, str]:
        options = {"profile": self.profile, "endpoint_url": self.endpoint_url}
        return {key: value for key, value in options.items() if value}


NO_OTHER_PLACES = SearchOptions()


def _place_named(text: str) -> tuple[str, Place]:
    provider, _, options = text.partition(":")
    pairs = [each.partition("=") for each in options.split(",")]
    place = {name.strip(): value.strip() for name, _, value in pairs}
    if provider not in SURVEYORS or not all(place) or not all(place.values()):
        known = ", ".join(SURVEYORS)
        reason = (
            f"--place takes a provider and where, as in aws:region=us-east-1, not {plain(text)!r}; providers: {known}"
        )
        print(f"outrider: {reason}", file=sys.stderr)
        raise SystemExit(UNKNOWN)
    return provider, place


def open_journal() -> Journal:
    """Open this user's journal (the local database of pools). Exit with 2 if that fails."""
    try:
        return Journal.open()
    except ProviderError as error:
        print(f"outrider: {worded(plain(str(error)))}", file=sys.stderr)
        raise SystemExit(UNKNOWN) from None


async def find_pools(journal: Journal, where: SearchOptions) -> tuple[list[FoundPool], list[PlaceAnswer]]:
    answers = await ask(journal.records(), where.places, everywhere=where.everywhere)
    return known_pools(journal.records(), answers), [answer for answer in answers if answer.error]
