"""The ownership of a thing in a cloud: the pool's, a stranger's, or unknown. Each thing is decided by itself. Pure.

WHOSE-1: what the journal has, by its id or by the token of a call whose answer it lacks, is the pool's, whatever its
tags say besides, and also when they are gone.
WHOSE-2: the pool's tag alone makes nothing the pool's: whoever launches "more like this" copies it.
WHOSE-3: of a call whose answer is known, nothing is the pool's that the answer does not name: it is such a copy.
WHOSE-4: whoever has owned the pool once remains a known owner: what the computer is called today decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .journal import Intent

Whose = Literal["journal", "owner", "stranger", "unknown"]
OURS: frozenset[Whose] = frozenset({"journal", "owner"})


@dataclass(frozen=True, slots=True)
class Thing:
    """Something in a cloud, as it and its tags show it; what has no such tag has the empty text."""

    id: str  # by which the journal knows it
    _: KW_ONLY
    pool: str = ""
    owner: str = ""  # user@host
    launch: str = ""  # the token of the call that created it


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim: what those who have owned a pool know of it in one place."""

    pool: str
    ids: frozenset[str] = frozenset()  # what was created
    answered: frozenset[str] = frozenset()  # the tokens of calls all of whose things are among the ids
    unanswered: frozenset[str] = frozenset()  # the tokens of all other calls: nobody knows what they created
    hosts: frozenset[str] = frozenset()  # what its owners' computers were called

    @classmethod
    def of(cls, pool: str, intents: Iterable[Intent], hosts: Iterable[str] = ()) -> Claim:
        """Return the claim that follows from ``intents``. An answer outweighs a missing answer to the same token.

        A call that was refused has created nothing. If a thing has its token all the same, the thing is the call's own:
        an earlier try was carried out, and its answer lost.
        """
        book = list(intents)
        answered = frozenset(each.token for each in book if each.ids)
        return cls(
            pool,
            frozenset(name for each in book for name in each.ids or ()),
            answered,
            frozenset(each.token for each in book) - answered,
            frozenset(hosts),
        )

    def has(self, thing: Thing) -> bool:
        """Return whether ``thing`` is the pool's."""
        return whose(thing, self) in OURS


def whose(thing: Thing, claim: Claim) -> Whose:
    """``"journal"`` and ``"owner"``: the pool's, by what is written down, or by the tags of somebody who had the pool.
    ``"unknown"``: it has the pool's tag, and neither the journal nor an owner's tag says more.
    """
    if thing.id in claim.ids or thing.launch in claim.unanswered:
        return "journal"
    if thing.pool != claim.pool or thing.launch in claim.answered:
        return "stranger"
    if not thing.owner:
        return "unknown"
    return "owner" if thing.owner.rpartition("@")[2] in claim.hosts else "stranger"


@dataclass(frozen=True, slots=True)
class Others:
    """The things that carry a pool's tag but are not the pool's: copies, and all things of a pool unknown here."""

    claim: Claim

    @property
    def pool(self) -> str:
        return self.claim.pool

    def has(self, thing: Thing) -> bool:
        return thing.pool == self.pool and not self.claim.has(thing)
