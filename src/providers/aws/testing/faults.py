"""What can go wrong in the test cloud, one frozen type each, and the book of what is going wrong now.

``times``: so often, None for as long as it is in the book. ``after``: so many matching calls are spared first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

Market = Literal["spot", "on-demand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCapacity:
    """InsufficientInstanceCapacity for machines of that type, zone and market (None: any).

    ``machines``: so many at a time there are, the others are refused. A `times` is one machine that is refused.
    """

    type: str | None = None
    zone: str | None = None
    market: Market | None = None
    machines: int = 0
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Only so many vCPUs of the quota ``code`` (as ``L-1216C47A``) at a time, whatever `Behaviour.quotas` says."""

    code: str
    vcpus: int
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class _OfAction:
    action: str | None = None  # as "RunInstances"; None: any


@dataclass(frozen=True, slots=True)
class Throttle(_OfAction):
    """RequestLimitExceeded, whatever the buckets say."""

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class LostAnswer(_OfAction):
    """The call takes effect; the connection is cut before a byte of the answer."""

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class HalfAnswer(_OfAction):
    """The call takes effect; half of the answer's body comes, be it XML or JSON.

    ``valid_http``: the half has its own length, so that only who reads it can tell. Otherwise it has the whole's, and
    the connection is cut.
    """

    valid_http: bool = True
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class LostRequest(_OfAction):
    """The connection is cut, and the call has no effect."""

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Slow(_OfAction):
    """The call takes effect at once; its answer comes ``seconds`` later."""

    seconds: float = 1.0
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Refused(_OfAction):
    """That error instead of an effect: InternalError and Unavailable with their 5xx, or what a test is about."""

    code: str = "InternalError"
    message: str = "An internal error has occurred"
    status: int = 500
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Unauthorized(_OfAction):
    """UnauthorizedOperation; a CreateFleet without the right to RunInstances has it among its errors."""

    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class ExpiredToken(_OfAction):
    """From now on the credentials are too old: RequestExpired (EC2), ExpiredTokenException (others).

    ``key``: only this access key is, so that new credentials work.
    """

    key: str | None = None
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBoot:
    """An instance that was launched comes to its end while it is pending: Server.InternalError."""

    type: str | None = None
    zone: str | None = None
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSkew:
    """The cloud's clock is ahead of everybody's: requests are refused that were signed more than 300 s ago."""

    seconds: float = 600.0
    times: int | None = None
    after: int = 0


Wire = Throttle | LostAnswer | HalfAnswer | LostRequest | Slow | Refused | Unauthorized | ExpiredToken
Fault = NoCapacity | Quota | NoBoot | ClockSkew | Wire
F = TypeVar("F", bound=Fault)
W = TypeVar("W", bound=Wire)


class Faults:
    """Those in force. Safe to change at any time, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[Fault, list[int]]] = []  # with how many calls are spared, and how many are hit

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._left += [(each, [each.after, -1 if each.times is None else each.times]) for each in faults]

    def clear(self, *faults: Fault) -> None:
        """End these; without any, all."""
        with self._lock:
            self._left = [(each, left) for each, left in self._left if faults and each not in faults]

    def __iter__(self) -> Iterator[Fault]:
        with self._lock:
            return iter([each for each, (_, times) in self._left if times != 0])

    def of(self, kind: type[F]) -> list[F]:
        """Those of a kind that have not happened as often as they will."""
        return [each for each in self if isinstance(each, kind)]

    def strikes(self, fault: Fault) -> bool:
        """Whether it hits this time, which is then one of its times."""
        with self._lock:
            for each, left in self._left:
                if each is fault and left[1] != 0:
                    if left[0] > 0:
                        left[0] -= 1
                        return False
                    left[1] -= left[1] > 0
                    return True
            return False

    def hits(self, kind: type[W], action: str) -> W | None:
        """The first fault of that kind which hits this call."""
        for fault in self.of(kind):
            if fault.action in (None, action) and self.strikes(fault):
                return fault
        return None
