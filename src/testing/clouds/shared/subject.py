"""`Subject`: a cloud under test, for `checks`, and helpers that use its pools."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import field
from types import ModuleType
from typing import Any, Protocol, TypeVar, cast
from unittest import mock

import anyio

from ....lazy_dataclass import dataclass
from ....providers.base import EntryPoints, Fleet, LaunchRequest, Machine
from ....providers.cloud.account import ApiKeys, account_of
from ....providers.cloud.provider import CloudProvider
from ....providers.cloud.surveyor import CloudSurveyor
from ....providers.errors import ProviderError
from ....providers.shared.resource_ownership import Thing
from .faults import CallRefused
from .front import CloudFront
from .machines import FrontMachine, State

E = TypeVar("E", bound=Exception)
EVENT = TypeVar("EVENT")

WITHIN_S = 60.0
GRACE_S = 0.3  # the checks use this instead of the minute for which lists may lack a machine


class Front(Protocol):
    """A test cloud. ``left`` names everything that was created and still exists."""

    def left(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A cloud under test.

    Args:
        front: The opened test cloud, which accepts only the key in the environment.
        provider: Returns a provider that uses the test cloud, with further options.
        request: A request for one machine; the test cloud has capacity for several.
        launch: The name, in the test cloud, of the operation that creates a machine.
        call: The same operation in error texts, such as ``"POST /pods"``.
        makes: The name, in the test cloud, of the operation by which a pool creates other resources; empty: none.
        end_refused: A fault that prevents the end of any machine.
        no_room: The text of a refusal for missing capacity.
        take: Ends a machine, by its id, in the way in which the cloud takes machines; its reason is then ``cause``.
        whose: Returns the labels of a machine of the test cloud, as a `Thing`.
        mark: Sets the labels of a machine, by its id: a pool and an owner.
        account: The account of the user in the test cloud.
        survey_options: The provider's options in the check of `outrider ps`, which expects ``kind``, ``market`` and
            ``hourly_usd``.
        ends_itself_s: Seconds from the launch of a machine until the machine ends itself and costs nothing, if no
            client ever reaches it. None: the machine costs money until a client ends it.
        ended: States of the test cloud's machines that count as ended.
        before: Python code that a client runs first, in tests that kill the client; it removes the cloud's rate limits.
    """

    front: CloudFront
    provider: Callable[..., CloudProvider[Any]]
    surveyor: CloudSurveyor[Any]
    keys: ApiKeys
    account: str
    request: LaunchRequest
    launch: str
    call: str
    end_refused: CallRefused
    no_room: str
    take: Callable[[str], object]
    cause: str
    whose: Callable[[FrontMachine], Thing]
    mark: Callable[[str, str, str], object]
    kind: str
    market: str
    hourly_usd: float
    makes: str = ""
    survey_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    ends_itself_s: float | None = None
    ended: frozenset[State] = frozenset({"terminated"})
    before: str = ""

    def left(self) -> list[str]:
        """Return the names of everything that exists in the test cloud."""
        return [*cast("Front", self.front).left()]

    def open(self, pool: str = "pool", **options: Any) -> Any:
        """Open a fleet of machines in the test cloud."""
        return self.provider(**{**self.options, **options}).open(pool, EntryPoints())

    @property
    def hashes_keys(self) -> bool:
        """Return whether the account is a hash of the user's key: the cloud has no call to request the account."""
        return self.account == account_of(os.environ[self.keys.variable])

    @property
    def place(self) -> dict[str, str]:
        """The place of the checks' pools: the user's account, and the test cloud's address."""
        return {"account": self.account, "endpoint_url": self.front.endpoint_url}


async def launched(fleet: Fleet, request: LaunchRequest, count: int) -> Sequence[Machine]:
    """Launch machines. Repeat failed launches, as a pool does, for at most `WITHIN_S`.

    Raises:
        ProviderError: An error after which a pool stops trying.
    """
    with anyio.fail_after(WITHIN_S):
        while True:
            try:
                return await fleet.launch(request, count)
            except ProviderError as error:
                if error.retry_after_s is None:
                    raise
                await anyio.sleep(min(error.retry_after_s, 0.05))


async def event(fleet: Fleet, kind: type[EVENT]) -> EVENT:
    """Return the next event of this type. Earlier events are dropped.

    Raises:
        TimeoutError: There was no such event within `WITHIN_S`.
    """
    with anyio.fail_after(WITHIN_S):
        async with aclosing(fleet.events()) as events:  # type: ignore[type-var]  # it is a generator
            async for each in events:
                if isinstance(each, kind):
                    return each
    raise AssertionError("the events have ended")


@contextmanager
def short(*modules: ModuleType, to_s: float = GRACE_S) -> Iterator[None]:
    """During the block, set ``GRACE_S`` of these modules (the time for which lists may lack a machine) to ``to_s``."""
    with ExitStack() as changed:
        for each in modules:
            changed.enter_context(mock.patch.object(each, "GRACE_S", to_s))
        yield


@contextmanager
def raises(kind: type[E], *words: str) -> Iterator[list[E]]:
    """Check that the block raises an error of this type with these texts. After the block, the yielded list has the
    error.
    """
    errors: list[E] = []
    try:
        yield errors
    except kind as error:
        errors.append(error)
        for each in words:
            check(each in str(error), f"it does not say {each!r}: {error}")
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def near(value: float | None, wanted: float, most: float) -> bool:
    return value is not None and abs(value - wanted) <= most


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
