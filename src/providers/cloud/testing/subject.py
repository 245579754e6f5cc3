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
from ...base import EntryPoints, Fleet, LaunchRequest, Machine
from ...errors import ProviderError
from ...resource_ownership import Thing
from ..api_key import ApiKeys, account_of
from ..provider import CloudProvider
from ..surveyor import CloudSurveyor
from .faults import CallRefused
from .front import CloudFront
from .machines import FrontMachine, State

E = TypeVar("E", bound=Exception)
EVENT = TypeVar("EVENT")

WITHIN_S = 60.0
GRACE_S = 0.3  # replaces the minute for which lists may lack a machine


class Front(Protocol):
    """A test cloud. ``left`` names everything that was created and still exists."""

    def left(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A cloud under test.

    Args:
        front: The opened test cloud, which accepts only the key in the environment.
        provider: Makes a provider that uses the test cloud, with further options.
        request: A request for one machine; the test cloud has capacity for several.
        launch: The front's name of the operation that creates a machine.
        call: That operation as in errors, such as ``"POST /pods"``.
        makes: The front's name of the operation by which a pool creates other resources; empty: there is none.
        end_refused: A fault by which no machine can be ended.
        no_room: The text of a refusal for missing capacity.
        take: Ends a machine, by its id, as the cloud may do; the reported reason is ``cause``.
        whose: Returns the owner marks of a machine of the front.
        mark: Marks a machine, by its id, as belonging to an owner's pool.
        account: The account in a place.
        survey_options: Provider options for the survey; ``kind``, ``market`` and ``hourly_usd`` are the expected
            results.
        ends_itself_s: Seconds after its launch by which an unreached machine of ``request`` has ended itself and costs
            nothing. None: it costs money until it is ended.
        ended: States of machines in the front that count as ended.
        before: Python code for a client that is killed; it removes the limits on requests.
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
        """Name everything that exists in the test cloud."""
        return [*cast("Front", self.front).left()]

    def open(self, pool: str = "pool", **options: Any) -> Any:
        """Open a fleet."""
        return self.provider(**{**self.options, **options}).open(pool, EntryPoints())

    @property
    def hashes_keys(self) -> bool:
        """Return whether the account is a hash of the user's key, since the cloud has no call that returns the
        account.
        """
        return self.account == account_of(os.environ[self.keys.variable])

    @property
    def place(self) -> dict[str, str]:
        """The place of the pools."""
        return {"account": self.account, "endpoint_url": self.front.endpoint_url}


async def launched(fleet: Fleet, request: LaunchRequest, count: int) -> Sequence[Machine]:
    """Launch, with repetitions as by a pool, within `WITHIN_S`.

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
    """Return the next event of this kind; earlier events are dropped.

    Raises:
        TimeoutError: There was none within `WITHIN_S`.
    """
    with anyio.fail_after(WITHIN_S):
        async with aclosing(fleet.events()) as events:  # type: ignore[type-var]  # it is a generator
            async for each in events:
                if isinstance(each, kind):
                    return each
    raise AssertionError("the events have ended")


@contextmanager
def short(*modules: ModuleType, to_s: float = GRACE_S) -> Iterator[None]:
    """Set ``GRACE_S`` of modules, the time for which lists may lack a machine, to ``to_s`` within the block."""
    with ExitStack() as changed:
        for each in modules:
            changed.enter_context(mock.patch.object(each, "GRACE_S", to_s))
        yield


@contextmanager
def raises(kind: type[E], *words: str) -> Iterator[list[E]]:
    """Check that the block raises an error of this kind whose text has ``words``; the list contains it afterwards."""
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
