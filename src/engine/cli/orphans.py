"""Decides, from the journal and from tags, which cloud resources have no living owner (orphans). No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...lazy_dataclass import dataclass
from ...providers.shared.journal import PoolRecord
from ...providers.shared.pool_lock import Place
from ...providers.shared.resource_ownership import Claim, Thing
from ...providers.survey import FoundMachine, PlaceAnswer

Standing = Literal["alive", "dead", "elsewhere", "unknown"]


@dataclass(frozen=True, slots=True)
class FoundPool:
    """All resources of one pool in one place.

    ``standing``: the state of the pool's owner. "unknown": a resource's tag names the pool, but the journal does not
    list the resource.
    """

    pool: str
    provider: str
    place: Place
    owner: str
    standing: Standing
    machines: tuple[FoundMachine, ...] = ()
    others: tuple[str, ...] = ()
    unsettled: int = 0  # number of resources that may exist in the place, according to the journal
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
    """Return a `FoundPool` for each pool in each place that the journal or a tag names, sorted by the pool's name.

    Each resource is in exactly one `FoundPool`.
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
