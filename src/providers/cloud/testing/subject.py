"""A cloud under test, for `checks`: `Subject`, and how its pools are used."""

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
GRACE_S = 0.3  # in place of the minute for which lists may lack a machine


class Front(Protocol):
    """A test cloud. ``left`` names all that somebody made and that still exists."""

    def left(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A cloud under test.

    ``front``: its test cloud, open, which accepts the key in the environment alone. ``provider``: makes a provider that
    uses it, with further options. ``request``: for one machine, of which there is room for several. ``launch``: the
    front's name of the operation that makes a machine, and ``call``: as errors have it, as in ``"POST /pods"``.
    ``makes``: its name of the operation by which a pool makes things besides machines; empty: there is none.
    ``end_refused``: a fault by which no machine is ended. ``no_room``: what a refusal for want of room says. ``take``:
    ends a machine, by its id, as the cloud may do, of which ``cause`` is told. ``whose``: how a machine of the front is
    marked; ``mark``: marks one, by its id, as a pool's of an owner's. ``account``: what a place says of it.
    ``survey_options``: options, ``kind``, ``market`` and ``hourly_usd``: of the machines that a surveyor has to find.
    ``ends_itself_s``: so many seconds after its launch a machine of ``request`` that nobody has reached has ended
    itself at the latest, and costs nothing; None: it costs money until it is ended. ``ended``: states of machines
    in the front that are as good as ended. ``before``: Python in a client that is killed, which lifts the limits of
    requests.
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
        """Name all that exists in the test cloud."""
        return [*cast("Front", self.front).left()]

    def open(self, pool: str = "pool", **options: Any) -> Any:
        """Open a fleet."""
        return self.provider(**{**self.options, **options}).open(pool, EntryPoints())

    @property
    def hashes_keys(self) -> bool:
        """Return whether a hash of the user's key is the account, as the cloud has no call that tells it."""
        return self.account == account_of(os.environ[self.keys.variable])

    @property
    def place(self) -> dict[str, str]:
        """The place of the pools."""
        return {"account": self.account, "endpoint_url": self.front.endpoint_url}


async def launched(fleet: Fleet, request: LaunchRequest, count: int) -> Sequence[Machine]:
    """Launch, again and again as a pool does, within `WITHIN_S`.

    Raises:
        ProviderError: one after which a pool gives up.
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
    """Return the next event of this kind. Those before it are dropped.

    Raises:
        TimeoutError: none came within `WITHIN_S`.
    """
    with anyio.fail_after(WITHIN_S):
        async with aclosing(fleet.events()) as events:  # type: ignore[type-var]  # it is a generator
            async for each in events:
                if isinstance(each, kind):
                    return each
    raise AssertionError("the events have ended")


@contextmanager
def short(*modules: ModuleType, to_s: float = GRACE_S) -> Iterator[None]:
    """Let ``GRACE_S`` of modules, for which lists may lack a machine, be ``to_s``, within the block."""
    with ExitStack() as changed:
        for each in modules:
            changed.enter_context(mock.patch.object(each, "GRACE_S", to_s))
        yield


@contextmanager
def raises(kind: type[E], *words: str) -> Iterator[list[E]]:
    """Check that the block raises an error of this kind that says ``words``; the list has it afterwards."""
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
