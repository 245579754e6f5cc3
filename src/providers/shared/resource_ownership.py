"""Decide who owns a resource in a cloud: the pool, a stranger, or unknown. Each resource is decided by itself. No I/O.

WHOSE-1: a resource that the journal names, by its id or by the token of a call whose answer was lost, is the pool's,
whatever its other tags are, and even if its tags are gone.
WHOSE-2: the pool's tag alone proves nothing: the cloud console's "launch more like this" copies the tag.
WHOSE-3: if the answer of a call is known and does not name a resource with the call's token, that resource is such a
copy.
WHOSE-4: a former owner of the pool remains a known owner, even if the computer's name has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY
from typing import Literal, Protocol

from ...lazy_dataclass import dataclass

Whose = Literal["journal", "owner", "stranger", "unknown"]
OURS: frozenset[Whose] = frozenset({"journal", "owner"})


class Answered(Protocol):
    """The fields of the journal's `Intent` (the record of a creation) that are needed to make a `Claim`."""

    @property
    def token(self) -> str: ...

    @property
    def ids(self) -> tuple[str, ...] | None: ...


@dataclass(frozen=True, slots=True)
class Thing:
    """A resource in a cloud, with its tags. An empty field: the tag is missing."""

    id: str  # the resource's id, as the journal has it
    _: KW_ONLY
    pool: str = ""
    owner: str = ""  # user@host
    launch: str = ""  # the token of the call that created the resource


@dataclass(frozen=True, slots=True)
class Claim:
    """The resources of a pool in one place (such as a region), as the journal and the pool's owner know them."""

    pool: str
    ids: frozenset[str] = frozenset()  # ids of created resources, from the answers of the create calls
    # Tokens of calls whose answer is known: ``ids`` has all resources of these calls.
    answered: frozenset[str] = frozenset()
    # Tokens of calls whose answer was lost: the ids of their resources are unknown.
    unanswered: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()  # names of the computers of all owners that the pool has had

    @classmethod
    def of(cls, pool: str, intents: Iterable[Answered], hosts: Iterable[str] = ()) -> Claim:
        """Make the claim from ``intents``, the journal's records of create calls. If several have the same token, the
        token counts as answered as soon as one of them has an answer.

        A call that was refused should have created nothing. A resource with its token is still the pool's: an earlier
        try of the call was carried out, and its answer was lost.
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
        """Return whether the resource is one of the pool's."""
        return whose(thing, self) in OURS


def whose(thing: Thing, claim: Claim) -> Whose:
    """Decide who owns a resource.

    ``"journal"`` and ``"owner"`` both mean the pool: the journal names the resource, or its tag names an owner of the
    pool. ``"unknown"``: the resource has the pool's tag, but the journal does not name it, and it has no owner's tag.
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
    """The resources that have a pool's tag but are not this pool's: copies, and resources of a pool that the journal
    does not know.
    """

    claim: Claim

    @property
    def pool(self) -> str:
        return self.claim.pool

    def has(self, thing: Thing) -> bool:
        return thing.pool == self.pool and not self.claim.has(thing)
