"""Decides, from the journal and from tags, which cloud machines are orphans (machines without an owner). No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...lazy_dataclass import dataclass
from ...providers.journal import PoolRecord
from ...providers.pool_lock import Place
from ...providers.resource_ownership import Claim, Thing
from ...providers.survey import FoundMachine, PlaceAnswer

Standing = Literal["alive", "dead", "elsewhere", "unknown"]


@dataclass(frozen=True, slots=True)
class FoundPool:
    """All resources of one pool in one place.

    ``standing`` is "unknown" for resources with the tag of a pool that the journal does not know.
    """

    pool: str
    provider: str
    place: Place
    owner: str
    standing: Standing
    machines: tuple[FoundMachine, ...] = ()
    others: tuple[str, ...] = ()
    unsettled: int = 0  # resources that may exist in the place according to the journal
    error: str = ""
    tagged: bool = False  # the tag names a pool that the journal knows
    unsaid: bool = False  # some resources have no tag that names an owner

    @property
    def hourly_usd(self) -> float | None:
        """Price of all its machines in USD per hour; None if the price of one is unknown."""
        prices = [machine.hourly_usd for machine in self.machines]
        return None if None in prices else sum(price for price in prices if price is not None)

    def outlived(self, now: float) -> bool:
        """Return whether the lifetimes of all its machines are known, and over."""
        return bool(self.machines) and all(each.until is not None and each.until < now for each in self.machines)

    @property
    def ours(self) -> bool:
        """Return whether this computer may have to remove the pool: no living client on this computer owns it."""
        return self.standing in ("dead", "elsewhere") or (self.tagged and self.unsaid)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of `outrider gc` on a pool, and the reason as a clause for people."""

    remove: bool
    why: str


def known_pools(records: Sequence[PoolRecord], answers: Sequence[PlaceAnswer]) -> list[FoundPool]:
    """Return a row for each pool in each place that the journal or tags name, sorted by name.

    Each resource is in exactly one row.
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

    GC-1: resources of a living owner on this computer are never touched. Those of another computer are only touched
    with ``foreign``, or if the lifetime that their owner has set is over.
    GC-2: resources of another owner, whatever their tags are, do not prevent the removal of this computer's resources.
    GC-3: each resource that was found with a pool's tag or id is in exactly one row.
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
    """Return the row of a pool in the journal.

    A row without resources is kept, because the cloud's answer may be out of date.
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
    """Return rows for resources that belong to no pool in the journal, one for each pool that their tags name."""

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
