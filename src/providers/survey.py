"""The protocol of surveyors: they find and end machines of any pool, for `outrider ps` and `outrider gc`.

A provider whose machines outlive their client has a `Surveyor`; `registry` lists them. A place is where a
provider has machines, such as a region, an account or a host. It is described by a mapping of texts, such as
``{"region": "us-east-1"}``, which the provider's fleets write into the `journal`.
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
    """The machines and other resources that a surveyor has found in one place (such as a region, an account or a host).

    ``error``: why the place did not answer; if set, nothing is known about the place.
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
        """Return whether the place (such as a region, an account or a host) may belong to this provider.

        Callers need this if the files of a pool are lost: only these files name the pool's provider.
        """
        ...

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find every resource with the tag of any pool in a place (such as a region, an account or a host).

        ``known``: the journal's records of creations; find their machines even if these have no tags.
        """
        ...

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> str | None:
        """End everything of the pool in a place (such as a region, an account or a host).

        Wait until the end is confirmed, and record in the journal that nothing of the pool is left there.

        Return a remark for the user, or None. ``lease_s``: the lease of the pool's machines in seconds; None: unknown.
        """
        ...

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> str | None:
        """End all resources in a place (such as a region) that have the pool's tag, but by the journal are not the
        pool's own, such as copies. Wait until the end is confirmed.

        Return a remark for the user, or None.
        """
        ...

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places to which the credentials of ``place`` give access, such as all regions of an account."""
        ...
