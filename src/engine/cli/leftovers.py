"""What is left of pools, by the journal and by tags, and which of it nobody owns: decisions alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...providers.journal import PoolRecord
from ...providers.owners import Place
from ...providers.whose import Claim, Thing

Standing = Literal["alive", "dead", "elsewhere", "unknown"]


@dataclass(frozen=True, slots=True)
class MachineLeft(Thing):
    """One machine as its cloud shows it."""

    kind: str  # "g5.xlarge"
    market: str
    zone: str
    state: str
    launched_at: float  # unix time
    address: str = ""
    hourly_usd: float | None = None  # None: nobody knows


@dataclass(frozen=True, slots=True)
class Asked:
    """One place, and what it answered. ``error``: why it did not; then nothing is known of it."""

    provider: str
    place: Place
    machines: tuple[MachineLeft, ...] = ()
    others: tuple[Thing, ...] = ()  # security groups and such, that cost nothing
    error: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """What there is of one owner's pool in one place: of one that the journal here knows, or (``standing`` "unknown")
    whatever has the tag of a pool and is not that one's.
    """

    pool: str
    provider: str
    place: Place
    owner: str
    standing: Standing
    machines: tuple[MachineLeft, ...] = ()
    others: tuple[str, ...] = ()
    unsettled: int = 0  # things that the journal says may exist there
    error: str = ""
    tagged: bool = False  # it has the tag of a pool that the journal knows
    unsaid: bool = False  # of some of it, no tag says whose it is

    @property
    def hourly_usd(self) -> float | None:
        """Of all its machines; None: of one, nobody knows."""
        prices = [machine.hourly_usd for machine in self.machines]
        return None if None in prices else sum(price for price in prices if price is not None)

    @property
    def ours(self) -> bool:
        """Nobody here owns it, and it is this computer's to remove, or may be."""
        return self.standing in ("dead", "elsewhere") or (self.tagged and self.unsaid)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `outrider gc` does with it, and why, as a clause for people."""

    remove: bool
    why: str


def left(records: Sequence[PoolRecord], answers: Sequence[Asked]) -> list[Left]:
    """Every pool in every place that the journal or its tags know of, by name; each thing is judged by itself."""
    found = [
        _of_record(record, place, next((each for each in answers if _key(each.place) == _key(place)), None))
        for record in records
        for place in record.places or ({},)
    ]
    for asked in answers:
        found += _of_others(asked, [record.claim(asked.place) for record in records])
    return sorted(found, key=lambda each: (each.pool, _key(each.place), each.standing == "unknown"))


def verdict(pool: Left, *, foreign: bool) -> Verdict:
    """GC-1: what a living owner on this computer has is never touched, nor another computer's unless ``foreign``.

    GC-2: what somebody else has, under whatever tags, keeps nothing of this computer's from being removed. GC-3: of all
    that was seen with a pool's tag or id, each thing is in one row.
    """
    if pool.error:
        return Verdict(False, f"its cloud could not be asked: {pool.error}")
    match pool.standing:
        case "alive":
            return Verdict(False, f"its owner is alive: {pool.owner}")
        case "dead":
            return Verdict(True, f"its owner is dead: {pool.owner or 'unknown'}")
        case "elsewhere":
            return Verdict(foreign, f"its owner may be alive on another computer: {pool.owner}")
        case "unknown" if pool.tagged:
            whose = pool.owner or "nobody that a tag names"
            return Verdict(foreign, f"it has the tags of a pool here and is not that pool's; its own say: {whose}")
        case "unknown":
            return Verdict(foreign, f"the journal here does not know it, and its owner may be alive: {pool.owner}")


def _of_record(record: PoolRecord, place: Place, asked: Asked | None) -> Left:
    """What is the pool's; nothing seen of it may mean that the answer is an old one."""
    claim, asked = record.claim(place), asked or Asked(record.provider or "aws", place)
    return Left(
        record.pool,
        record.provider or asked.provider,
        place,
        "" if record.owner is None else str(record.owner),
        record.standing,
        tuple(each for each in asked.machines if claim.has(each)),
        tuple(each.id for each in asked.others if claim.has(each)),
        sum(dict(each.place) == dict(place) for each in record.intents),
        asked.error,
    )


def _of_others(asked: Asked, claims: Sequence[Claim]) -> list[Left]:
    """What is of none of the pools that the journal knows, by the pool that its tag names."""

    def is_other(thing: Thing) -> bool:
        return bool(thing.pool) and not any(claim.has(thing) for claim in claims)

    machines, others = list(filter(is_other, asked.machines)), list(filter(is_other, asked.others))
    things = [*machines, *others]
    return [
        Left(
            pool,
            asked.provider,
            asked.place,
            ", ".join(sorted({each.owner for each in things if each.pool == pool and each.owner})),
            "unknown",
            tuple(each for each in machines if each.pool == pool),
            tuple(each.id for each in others if each.pool == pool),
            tagged=any(claim.pool == pool for claim in claims),
            unsaid=any(not each.owner for each in things if each.pool == pool),
        )
        for pool in sorted({each.pool for each in things})
    ]


def _key(place: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(place.items()))
