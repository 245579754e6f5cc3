"""The interface (port) that each cloud implements; the other modules here manage a pool's machines through it.

`Cloud` finds and ends machines, for living and for dead pools. `Launcher` creates the machines of one living pool.
``docs/providers/writing-one.md`` explains how to implement both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest, Machine
from ..errors import ProviderError
from ..resource_ownership import Claim, Others
from .cooldowns import Cooldowns
from .instance_inventory import InstanceView
from .offers import Offer
from .vendor import Vendor


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of removing one kind of a pool's resources. ``left``: the names of those that may still exist."""

    gone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    errors: tuple[ProviderError, ...] = ()


@dataclass(frozen=True, slots=True)
class Leftover:
    """A kind of resources, besides machines, that a pool creates and that cost nothing: ``"launch-template"``.

    ``remove`` takes the claim of their owner and their names in the journal, and raises nothing. ``has_machines``: such
    a resource cannot be removed before the machines have ended.
    """

    kind: str
    remove: Callable[[Claim | Others, Sequence[str]], Awaitable[Removed]]
    has_machines: bool = False


class Cloud(Protocol):
    """One place of a cloud, with one set of credentials."""

    @property
    def vendor(self) -> Vendor: ...

    @property
    def place(self) -> Mapping[str, str]:
        """Return the place, as the journal stores it: texts by which the cloud can be opened again."""
        ...

    def where(self, place: Mapping[str, str]) -> str:
        """Return the display name of a place in the journal. Two places with one name have the same machines."""
        ...

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        """List the machines tagged with ``pool``, and the machines in ``also``; with ``of``, only those that it claims.

        Raises:
            ProviderError: The cloud did not respond, or refused.
        """
        ...

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        """Request the end of machines, at most `end_at_most`; return their states in the response. Idempotent.

        Raises:
            ProviderError: Whether any of the machines ends is unknown.
        """
        ...

    @property
    def end_at_most(self) -> int:
        """Return the maximum number of machines in one call of `end`."""
        ...

    def is_unknown_machine(self, error: ProviderError) -> bool:
        """Return whether `end` failed because one of the ids belongs to no machine."""
        ...

    @property
    def leftovers(self) -> Sequence[Leftover]:
        """Return the kinds of resources, besides machines, that a pool creates, in the order of their removal."""
        ...


# --- launching --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The current rounds of offers for one request. The next round is for the case that a round gives no machine.

    ``region``: the region of the offers' zones; empty: each zone is a region of its own.
    """

    request: LaunchRequest
    rounds: Sequence[Sequence[Offer]]
    extras_usd: Mapping[Architecture, float]  # USD per hour in addition to a type's price
    region: str = ""


@dataclass(slots=True, kw_only=True)
class Order:
    """One create call. It is repeated with the same token until there is a response."""

    token: str
    offers: Sequence[Offer]
    count: int
    hourly_usd: float  # the highest price of one machine
    at: float  # time of the first try
    lost: bool = False  # a try of the call got no response
    carried_out: bool = False  # the cloud confirmed the creation; if a later step fails, the machines' ids are unknown


@dataclass(frozen=True, slots=True)
class Created:
    """A machine that was created. ``user``: its login name."""

    machine: Machine
    offer: Offer
    user: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The cloud's response to an order. ``refusals``: offers that it could not provide, with the reasons."""

    created: Sequence[Created]
    refusals: Sequence[tuple[Sequence[Offer], ProviderError]] = ()


P = TypeVar("P", bound=Plan)
O = TypeVar("O", bound=Order)  # noqa: E741 (an order)


class Launcher(Protocol[P, O]):
    """The part of a cloud that creates the machines of one pool."""

    def start(self) -> None:
        """Start to prepare everything that does not depend on a request."""
        ...

    async def stop(self) -> None:
        """Stop creating anything, and wait for calls in progress."""
        ...

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> P:
        """Choose offers. ``living``: (type, zone) of the pool's machines.

        Raises:
            ProviderError: There are no offers.
        """
        ...

    async def order(self, plan: P, chosen: Sequence[Offer], count: int) -> O:
        """Prepare a create call for up to ``count`` machines of these offers. All resources for it exist afterwards.

        Raises:
            ProviderError: A resource for the call cannot be created.
        """
        ...

    async def create(self, order: O) -> Answer:
        """Make the call, after recording it in the journal. Repeating an order never creates its machines twice.

        Raises:
            ProviderError: By `failures.is_lost`, the call may have been carried out.
        """
        ...

    def is_unknown_yet(self, error: ProviderError) -> bool:
        """Return whether the error concerns a resource that `order` has just created and that is not yet known
        everywhere.
        """
        ...

    def forget(self, order: O) -> None:
        """Drop the cached resources of `order`, because somebody has deleted one of them in the cloud."""
        ...


class PlainLauncher:
    """The base of launchers that prepare nothing in the background, and create nothing but machines."""

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def is_unknown_yet(self, error: ProviderError) -> bool:  # noqa: ARG002
        return False

    def forget(self, order: Any) -> None:
        pass
