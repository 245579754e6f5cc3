"""The protocol of surveyors: they find and end machines of any pool, for `outrider ps` and `outrider gc`.

A provider whose machines outlive their client has a `Surveyor`; `registry` lists them. A place is a mapping of texts
that the provider's fleets wrote into the `journal`, and by which the provider finds the place again, such as
``{"region": "us-east-1"}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..lazy_dataclass import dataclass
from .shared.resource_ownership import Thing

if TYPE_CHECKING:
    from .shared.journal import Intent, Journal
    from .shared.pool_lock import Place


@dataclass(frozen=True, slots=True)
class FoundMachine(Thing):
    """A machine that exists or waits in a queue. ``pool``, ``owner`` and ``launch`` come from the machine's own
    tags.
    """

    kind: str  # the type: "g5.xlarge"; for a job whose machines have several types, each type with its count
    market: str  # "spot" or "on-demand"; empty: the provider has no such markets
    zone: str
    state: str  # the state in the provider's own words: "running", "pending: Priority, expected 14:20"
    launched_at: float  # unix time
    address: str = ""
    hourly_usd: float | None = None  # USD per hour; None: unknown
    until: float | None = None  # unix time at which the pool's max_lifetime ends; None: the machine has no such tag


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """The findings of a surveyor in one place. ``error``: why the place did not answer; if set, nothing is known about
    the place.
    """

    provider: str
    place: Place
    machines: tuple[FoundMachine, ...] = ()
    others: tuple[Thing, ...] = ()  # resources that cost nothing, such as security groups
    error: str = ""


class Surveyor(Protocol):
    """Access to one provider, for commands that know its machines only by the journal and by tags.

    Each method raises `ProviderError` if the provider does not answer or refuses. `NotGone` names what may still exist.
    """

    def has(self, place: Place) -> bool:
        """Return whether the place may belong to this provider. Needed if the pool's files are lost, which name the
        provider.
        """
        ...

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find every resource in a place that has the tag of any pool, and the machines of the ``known`` intents, even
        without tags.
        """
        ...

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> str | None:
        """End everything of the pool in a place, wait for the confirmed end, and record in the journal that nothing is
        left there.

        Return a remark for the user, or None. ``lease_s``: the lease of the pool's machines in seconds; None: unknown.
        """
        ...

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> str | None:
        """End all resources in a place that have the pool's tag but are not the pool's, and wait for the confirmed end.

        Return a remark for the user, or None.
        """
        ...

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places that the credentials of this place give access to."""
        ...
