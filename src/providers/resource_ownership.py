"""Decide who owns a resource in a cloud: the pool, a stranger, or unknown. Each resource is decided alone. No I/O.

WHOSE-1: a resource that the journal has, by its id or by the token of a call without an answer, is the pool's,
whatever its other tags say, and also when they are gone.
WHOSE-2: the pool's tag alone makes nothing the pool's: the console's "launch more like this" copies the tag.
WHOSE-3: where a call's answer is known, a resource with its token that the answer does not name is such a copy.
WHOSE-4: a past owner of the pool remains a known owner, even if the computer's name has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Literal

from ..lazy_dataclass import dataclass

if TYPE_CHECKING:
    from .journal import Intent

Whose = Literal["journal", "owner", "stranger", "unknown"]
OURS: frozenset[Whose] = frozenset({"journal", "owner"})


@dataclass(frozen=True, slots=True)
class Thing:
    """A resource in a cloud with its tags; "" stands for a missing tag."""

    id: str  # the id of the resource in the journal
    _: KW_ONLY
    pool: str = ""
    owner: str = ""  # user@host
    launch: str = ""  # the token of the call that created the resource


@dataclass(frozen=True, slots=True)
class Claim:
    """The journal's and the owner's knowledge of a pool's resources in one place."""

    pool: str
    ids: frozenset[str] = frozenset()  # ids of the created resources
    answered: frozenset[str] = frozenset()  # tokens of calls whose answer is known: all their resources are in ``ids``
    # Tokens of calls without an answer: the ids of their resources are unknown.
    unanswered: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()  # names of the computers of the pool's owners

    @classmethod
    def of(cls, pool: str, intents: Iterable[Intent], hosts: Iterable[str] = ()) -> Claim:
        """Return the claim that follows from ``intents``. If one intent of a token has an answer, the token is
        answered.

        A refused call should have created nothing. A resource with its token is the pool's all the same: an earlier try
        of the call was carried out, and its answer was lost.
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
        """Return whether the resource is the pool's."""
        return whose(thing, self) in OURS


def whose(thing: Thing, claim: Claim) -> Whose:
    """Decide who owns a resource.

    ``"journal"`` and ``"owner"`` both mean the pool: by the journal, or by the tag of one of the pool's owners.
    ``"unknown"``: the resource has the pool's tag, but neither the journal nor a known owner's tag.
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
    """The resources with a pool's tag that are not the pool's: copies, and resources of a pool unknown here."""

    claim: Claim

    @property
    def pool(self) -> str:
        return self.claim.pool

    def has(self, thing: Thing) -> bool:
        return thing.pool == self.pool and not self.claim.has(thing)
