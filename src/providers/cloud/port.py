"""The interfaces that each cloud implements, and through which the other modules here manage a pool's machines.

`Cloud` finds and ends machines, of living and dead pools. `Launcher` creates the machines of one living pool.
``docs/providers/writing-one.md`` explains how to implement both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest, Machine
from ..errors import ProviderError
from ..shared.resource_ownership import Claim, Others
from .inventory import InstanceView
from .offers import Cooldowns, Offer
from .vendor import Vendor


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of removing the resources of one kind.

    ``gone``: names of the removed resources. ``left``: names of the resources that may still exist.
    """

    gone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    errors: tuple[ProviderError, ...] = ()


@dataclass(frozen=True, slots=True)
class Leftover:
    """A kind of resource, such as ``"launch-template"``, that a pool creates besides machines and that costs nothing.

    ``remove`` takes a claim (it tells which resources are the pool's) and the names in the journal; it raises nothing.
    ``has_machines``: such resources can be removed only when the machines have ended.
    """

    kind: str
    remove: Callable[[Claim | Others, Sequence[str]], Awaitable[Removed]]
    has_machines: bool = False


class Cloud(Protocol):
    """One region, project or account of a cloud (its "place"), with one set of credentials."""

    @property
    def vendor(self) -> Vendor: ...

    @property
    def place(self) -> Mapping[str, str]:
        """The region, project or account, as the journal stores it: texts with which a later program can open the cloud
        again.
        """
        ...

    def where(self, place: Mapping[str, str]) -> str:
        """Return the name of a place (a region, project or account) for display. Two places with the same name have the
        same machines.
        """
        ...

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        """List the machines with the tag of ``pool`` and the machines in ``also``.

        ``of``: a claim; list only the machines that belong to it.

        Raises:
            ProviderError: The cloud did not respond, or refused.
        """
        ...

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        """Request the end of at most `end_at_most` machines. Return their states in the response. Idempotent.

        Raises:
            ProviderError: It is unknown whether any of the machines will end.
        """
        ...

    @property
    def end_at_most(self) -> int:
        """The maximum number of machines in one call of `end`."""
        ...

    def is_unknown_machine(self, error: ProviderError) -> bool:
        """Return whether `end` failed because one of the ids belongs to no machine."""
        ...

    @property
    def leftovers(self) -> Sequence[Leftover]:
        """The kinds of resources, besides machines, that a pool creates, in the order in which they must be removed."""
        ...


# --- launching --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The offers for one request, in rounds: if a round gives no machine, the next round is tried.

    ``region``: the region of the offers' zones; empty: each zone is a region of its own.
    """

    request: LaunchRequest
    rounds: Sequence[Sequence[Offer]]
    extras_usd: Mapping[Architecture, float]  # USD per hour in addition to a type's price, by architecture
    region: str = ""


@dataclass(slots=True, kw_only=True)
class Order:
    """One create call. Until there is a response, the call is repeated with the same token."""

    token: str
    offers: Sequence[Offer]
    count: int
    hourly_usd: float  # the price of one machine of the most expensive offer
    at: float  # time of the first try of the call
    lost: bool = False  # whether a try of the call got no response
    # whether the cloud has confirmed the creation; if a later step fails, the ids of the machines are unknown
    carried_out: bool = False


@dataclass(frozen=True, slots=True)
class Created:
    """A machine that was created. ``user``: its login name."""

    machine: Machine
    offer: Offer
    user: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The cloud's response to an order. ``refusals``: offers for which the cloud had no machines, with the reasons."""

    created: Sequence[Created]
    refusals: Sequence[tuple[Sequence[Offer], ProviderError]] = ()


P = TypeVar("P", bound=Plan)
O = TypeVar("O", bound=Order)  # noqa: E741 (an order)


class Launcher(Protocol[P, O]):
    """Creates the machines of one pool in a cloud."""

    def start(self) -> None:
        """Start to prepare in the background what does not depend on a request, such as an image."""
        ...

    async def stop(self) -> None:
        """Stop the creation of resources, and wait for calls in progress."""
        ...

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> P:
        """Choose the offers for a request. ``living``: (type, zone) of each of the pool's machines.

        Raises:
            ProviderError: There are no offers.
        """
        ...

    async def order(self, plan: P, chosen: Sequence[Offer], count: int) -> O:
        """Prepare a create call for up to ``count`` machines of these offers. Afterwards, all other resources for the
        call exist.

        Raises:
            ProviderError: A resource for the call cannot be created.
        """
        ...

    async def create(self, order: O) -> Answer:
        """Make the call, after recording it in the journal. A repeated order never creates its machines twice.

        Raises:
            ProviderError: The call failed; `calls.is_lost` says whether it may have been carried out.
        """
        ...

    def is_unknown_yet(self, error: ProviderError) -> bool:
        """Return whether the call failed because some part of the cloud does not yet know a resource that `order` has
        just created.
        """
        ...

    def forget(self, order: O) -> None:
        """Drop the cached resources of `order`, because somebody has deleted one of them in the cloud."""
        ...


class PlainLauncher:
    """The base class of launchers that prepare nothing in the background, and create only machines."""

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def is_unknown_yet(self, error: ProviderError) -> bool:  # noqa: ARG002
        return False

    def forget(self, order: Any) -> None:
        pass
