"""What is left of pools, by the journal and by tags, and which of it nobody owns: decisions alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...providers.journal import PoolRecord
from ...providers.owners import Place

Standing = Literal["alive", "dead", "elsewhere", "unknown"]


@dataclass(frozen=True, slots=True)
class MachineLeft:
    """One machine as its cloud shows it."""

    id: str
    kind: str  # "g5.xlarge"
    market: str
    zone: str
    state: str
    launched_at: float  # unix time
    address: str = ""
    hourly_usd: float | None = None  # None: nobody knows


@dataclass(frozen=True, slots=True)
class Seen:
    """A pool as its tags in one place show it."""

    pool: str
    owner: str  # user@host
    machines: tuple[MachineLeft, ...] = ()
    others: tuple[str, ...] = ()  # security groups and such, that cost nothing


@dataclass(frozen=True, slots=True)
class Asked:
    """One place, and what it answered. ``error``: why it did not; then nothing is known of it."""

    provider: str
    place: Place
    seen: tuple[Seen, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """A pool in one place. ``standing``: of its owner; "unknown": this computer's journal has never heard of it."""

    pool: str
    provider: str
    place: Place
    owner: str
    standing: Standing
    machines: tuple[MachineLeft, ...] = ()
    others: tuple[str, ...] = ()
    unsettled: int = 0  # things that the journal says may exist there
    error: str = ""
    namesake: str = ""  # who has another pool of this name there, which nothing but its owner tells from this one

    @property
    def hourly_usd(self) -> float | None:
        """Of all its machines; None: of one, nobody knows."""
        prices = [machine.hourly_usd for machine in self.machines]
        return None if None in prices else sum(price for price in prices if price is not None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `outrider gc` does with it, and why, as a clause for people."""

    remove: bool
    why: str


def left(records: Sequence[PoolRecord], answers: Sequence[Asked]) -> list[Left]:
    """Every pool in every place that the journal or its tags know of, by name."""
    found: list[Left] = []
    of = {record.pool: record for record in records}
    told: set[tuple[str, object]] = set()
    namesakes: dict[tuple[str, object], str] = {}
    for asked in answers:
        for seen in asked.seen:
            record, key = of.get(seen.pool), (seen.pool, _key(asked.place))
            if record is not None and _is_of(seen, record):
                told.add(key)
                found.append(_left(record, seen, asked))
            else:
                namesakes[key] = seen.owner
                found.append(_left(None, seen, asked))
    errors = {_key(asked.place): asked.error for asked in answers}
    for record in records:
        for place in record.places or ({},):
            if (record.pool, _key(place)) not in told:
                asked = Asked(record.provider or "aws", place, error=errors.get(_key(place), ""))
                found.append(_left(record, Seen(record.pool, ""), asked))
    for at, each in enumerate(found):
        if each.standing != "unknown":
            found[at] = replace(each, namesake=namesakes.get((each.pool, _key(each.place)), ""))
    return sorted(found, key=lambda each: (each.pool, _key(each.place)))


def verdict(pool: Left, *, foreign: bool) -> Verdict:
    """GC-1: what a living owner on this computer has is never touched, nor another computer's unless ``foreign``."""
    if pool.error:
        return Verdict(False, f"its cloud could not be asked: {pool.error}")
    if pool.namesake:
        return Verdict(False, f"{pool.namesake} has a pool of the same name there")
    match pool.standing:
        case "alive":
            return Verdict(False, f"its owner is alive: {pool.owner}")
        case "dead":
            return Verdict(True, f"its owner is dead: {pool.owner or 'unknown'}")
        case "elsewhere":
            return Verdict(foreign, f"its owner may be alive on another computer: {pool.owner}")
        case "unknown":
            return Verdict(foreign, f"the journal here does not know it, and its owner may be alive: {pool.owner}")


def _left(record: PoolRecord | None, seen: Seen, asked: Asked) -> Left:
    owner = seen.owner if record is None or record.owner is None else str(record.owner)
    unsettled = 0 if record is None else sum(dict(each.place) == dict(asked.place) for each in record.intents)
    standing: Standing = "unknown" if record is None else record.standing
    return Left(
        seen.pool,
        asked.provider,
        asked.place,
        owner,
        standing,
        seen.machines,
        seen.others,
        unsettled,
        asked.error,
    )


def _is_of(seen: Seen, record: PoolRecord) -> bool:
    """A pool of the same name may be another computer's."""
    if record.owner is None or not seen.owner:
        return True
    return seen.owner.rpartition("@")[2] == record.owner.host


def _key(place: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(place.items()))
