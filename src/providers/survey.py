"""The surveyor protocol for `outrider ps` and `outrider gc`, which find machines that they do not own.

A provider whose machines outlive their client has a `Surveyor`; `registry` lists them. A place is what the provider's
fleets wrote into the `journal`: texts that let the provider find the place again, such as ``{"region": "us-east-1"}``.
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
    """A machine that exists, or waits in a queue. ``pool``, ``owner`` and ``launch`` are from the machine's own
    tags.
    """

    kind: str  # "g5.xlarge"; for a pool with several kinds, each kind with its count
    market: str  # "spot" or "on-demand"; empty: neither
    zone: str
    state: str  # the provider's own state: "running", "pending: Priority, expected 14:20"
    launched_at: float  # unix time
    address: str = ""
    hourly_usd: float | None = None  # None: unknown
    until: float | None = None  # unix time at which the pool's max_lifetime ends; None: the machine has no such tag


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """The answer of one place. ``error``: why the place did not answer; if set, nothing is known about the place."""

    provider: str
    place: Place
    machines: tuple[FoundMachine, ...] = ()
    others: tuple[Thing, ...] = ()  # resources that cost nothing, such as security groups
    error: str = ""


class Surveyor(Protocol):
    """One provider, for commands that know of its machines only by the journal and by tags.

    Each method raises `ProviderError` if the provider does not answer or refuses; `NotGone` names what may still exist.
    """

    def has(self, place: Place) -> bool:
        """Return whether the place may belong to this provider. Needed if a pool's files, which name its provider, are
        lost.
        """
        ...

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find every resource with any pool's tag in a place, and the machines of the ``known`` intents, which may lack
        tags.
        """
        ...

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> str | None:
        """End everything of the pool in a place, confirmed, and mark it as settled in the journal. Return a remark for
        the user, or None.

        ``lease_s``: the lease of the pool's machines; None: unknown.
        """
        ...

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> str | None:
        """End, confirmed, all resources in a place with the pool's tag that are not the pool's. Return as `sweep`
        does.
        """
        ...

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places that can be reached with the credentials of this one."""
        ...
