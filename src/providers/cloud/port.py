"""The port of a cloud: what its own modules do, and all else of a pool's machines is done here for every cloud.

`Cloud` finds and ends machines, for living pools and for dead ones. `Launcher` is the half of it that creates them, for
one living pool. ``docs/providers/writing-one.md`` says how to write both.
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
    """The end of a pool's things of one kind. ``left``: the names of those that may still be there."""

    gone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    errors: tuple[ProviderError, ...] = ()


@dataclass(frozen=True, slots=True)
class Leftover:
    """A kind of things that a pool makes besides machines, and that cost nothing: ``"launch-template"``.

    ``remove`` is given whose they are and the names that the journal has, and raises nothing. ``has_machines``: such a
    thing cannot be removed before the machines have ended.
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
        """The place, as the journal stores it: texts by which the cloud is opened again."""
        ...

    def where(self, place: Mapping[str, str]) -> str:
        """Name a place that the journal has, for people. Two places of one name have the same machines."""
        ...

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        """List the machines that say that they are of ``pool``, and those of ``also``; of these what ``of`` claims.

        Raises:
            ProviderError: the cloud did not answer, or refused.
        """
        ...

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        """Ask the cloud to end machines, at most `end_at_most`; return what it says of them. Idempotent.

        Raises:
            ProviderError: nothing is known of any of them.
        """
        ...

    @property
    def end_at_most(self) -> int:
        """The number of machines in one call."""
        ...

    def is_unknown_machine(self, error: ProviderError) -> bool:
        """Return whether `end` failed since there is no machine of one of the ids."""
        ...

    @property
    def leftovers(self) -> Sequence[Leftover]:
        """The kinds of things that a pool makes besides machines, in the order in which they are removed."""
        ...


# --- launching --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The rounds of offers for one request at present. The next round is for when one gives nothing.

    ``region``: the one that the offers' zones are in; empty: each zone is a region of its own.
    """

    request: LaunchRequest
    rounds: Sequence[Sequence[Offer]]
    extras_usd: Mapping[Architecture, float]  # USD per hour besides a type's price
    region: str = ""


@dataclass(slots=True, kw_only=True)
class Order:
    """One call that makes machines, which is repeated with the same token until there is an answer."""

    token: str
    offers: Sequence[Offer]
    count: int
    hourly_usd: float  # the most that one machine costs
    at: float  # when it was first asked for
    lost: bool = False  # a try of it got no answer
    carried_out: bool = False  # the cloud has said so: whatever fails after that, its machines are not known


@dataclass(frozen=True, slots=True)
class Created:
    """A machine that was created. ``user`` may log in."""

    machine: Machine
    offer: Offer
    user: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The cloud's answer to an order. ``refusals``: offers that it could not provide, and why."""

    created: Sequence[Created]
    refusals: Sequence[tuple[Sequence[Offer], ProviderError]] = ()


P = TypeVar("P", bound=Plan)
O = TypeVar("O", bound=Order)  # noqa: E741 (an order)


class Launcher(Protocol[P, O]):
    """The part of a cloud that creates the machines of one pool."""

    def start(self) -> None:
        """Begin to prepare what needs no request."""
        ...

    async def stop(self) -> None:
        """Stop creating anything, and wait for what is under way."""
        ...

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> P:
        """Choose offers. ``living``: (type, zone) of the pool's machines.

        Raises:
            ProviderError: there are none.
        """
        ...

    async def order(self, plan: P, chosen: Sequence[Offer], count: int) -> O:
        """Prepare a call for up to ``count`` machines of these offers: all that it needs exists when this returns.

        Raises:
            ProviderError: something that it needs cannot be had.
        """
        ...

    async def create(self, order: O) -> Answer:
        """Make the call, written down in the journal before. The same order never makes more machines than one.

        Raises:
            ProviderError: as `failures.is_lost` says, it may have been carried out.
        """
        ...

    def is_unknown_yet(self, error: ProviderError) -> bool:
        """Return whether the error is about something that `order` has just made, and that is not known everywhere."""
        ...

    def forget(self, order: O) -> None:
        """Forget what `order` has made: somebody has removed it."""
        ...


class PlainLauncher:
    """The methods of a launcher that prepares nothing in the background, and creates nothing but machines."""

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def is_unknown_yet(self, error: ProviderError) -> bool:  # noqa: ARG002
        return False

    def forget(self, order: Any) -> None:
        pass
