"""The part of a provider for `outrider ps` and `outrider gc`, which own none of the machines that they find.

A provider whose machines outlive their client has a `Surveyor`. `registry` has the list of them.
Places are as its fleets have written them into the `journal`: texts by which the same provider finds them again, as in
``{"region": "us-east-1"}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..lazy_dataclass import dataclass
from .resource_ownership import Thing

if TYPE_CHECKING:
    from .journal import Intent, Journal
    from .pool_lock import Place


@dataclass(frozen=True, slots=True)
class FoundMachine(Thing):
    """A machine that exists, or waits in a queue. ``pool``, ``owner`` and ``launch`` are what it says of itself."""

    kind: str  # "g5.xlarge"; of several kinds in one pool each is counted
    market: str  # "spot" or "on-demand"; empty: neither
    zone: str
    state: str  # in the provider's words: "running", "pending: Priority, expected 14:20"
    launched_at: float  # unix time
    address: str = ""
    hourly_usd: float | None = None  # None: unknown
    until: float | None = None  # unix time at which its pool's max_lifetime is over, if the machine says so


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """The answer of one place. ``error``: why it did not answer; nothing is known of it then."""

    provider: str
    place: Place
    machines: tuple[FoundMachine, ...] = ()
    others: tuple[Thing, ...] = ()  # security groups and the like, which cost nothing
    error: str = ""


class Surveyor(Protocol):
    """One provider, for commands that know of its machines by the journal and by their tags alone.

    Each method raises `ProviderError` where the provider does not answer or refuses; `NotGone` says what may be left.
    """

    def has(self, place: Place) -> bool:
        """Return whether this may be one of its places: when a pool's files are gone, nobody else knows whose it is."""
        ...

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find everything with a pool's tag in a place, and the machines of ``known`` intents, which may lack tags."""
        ...

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> str | None:
        """End everything of the pool in a place, confirmed, and mark it as settled in the journal. Return what is to be
        said of it all the same, for people.

        ``lease_s``: the lease of its machines; None: not known.
        """
        ...

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> str | None:
        """End everything in a place that has the pool's tag and yet is not the pool's, confirmed. As `sweep`."""
        ...

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places that can be reached with the credentials of this one."""
        ...
