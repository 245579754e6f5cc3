"""The faults of the test cloud, one frozen type each, and the list of those in force.

``times``: how often the fault happens, None without a limit. ``after``: how many matching calls are spared first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal, TypeVar

from ....lazy_dataclass import dataclass

Market = Literal["spot", "on-demand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCapacity:
    """InsufficientInstanceCapacity for machines of a type, zone and market (None: any).

    ``machines``: how many there are at a time; further ones are refused. Each refused machine counts as one of `times`.
    """

    type: str | None = None
    zone: str | None = None
    market: Market | None = None
    machines: int = 0
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A limit for the vCPUs of the quota ``code`` (such as ``L-1216C47A``), whatever `Behaviour.quotas` says."""

    code: str
    vcpus: int
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class _OfAction:
    action: str | None = None  # such as "RunInstances"; None: any


@dataclass(frozen=True, slots=True)
class Throttle(_OfAction):
    """RequestLimitExceeded, whatever the rate limits say."""

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class LostAnswer(_OfAction):
    """The call takes effect; the connection is cut before the first byte of the answer."""

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class HalfAnswer(_OfAction):
    """The call takes effect; only half of the answer's body arrives, XML or JSON.

    ``valid_http``: the headers give the half's length, so that only its content shows that it is cut. Otherwise they
    give the whole length, and the connection is cut.
    """

    valid_http: bool = True
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class LostRequest(_OfAction):
    """The connection is cut and the call has no effect."""

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Slow(_OfAction):
    """The call takes effect at once; its answer comes ``seconds`` later."""

    seconds: float = 1.0
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class CallRefused(_OfAction):
    """An error instead of an effect: InternalError, Unavailable and others with their status."""

    code: str = "InternalError"
    message: str = "An internal error has occurred"
    status: int = 500
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Unauthorized(_OfAction):
    """UnauthorizedOperation. For RunInstances, a CreateFleet lists it among its errors."""

    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class ExpiredToken(_OfAction):
    """Expired credentials: RequestExpired (EC2), ExpiredTokenException (others).

    ``key``: only this access key has expired, so that new credentials work.
    """

    key: str | None = None
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBoot:
    """A launched instance ends while it is pending: Server.InternalError."""

    type: str | None = None
    zone: str | None = None
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSkew:
    """The cloud's clock is ahead: requests that were signed more than 300 s ago are refused."""

    seconds: float = 600.0
    times: int | None = None
    after: int = 0


Wire = Throttle | LostAnswer | HalfAnswer | LostRequest | Slow | CallRefused | Unauthorized | ExpiredToken
Fault = NoCapacity | Quota | NoBoot | ClockSkew | Wire
F = TypeVar("F", bound=Fault)
W = TypeVar("W", bound=Wire)


class Faults:
    """The faults in force. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[Fault, list[int]]] = []  # (fault, [calls to spare, times left])

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._left += [(each, [each.after, -1 if each.times is None else each.times]) for each in faults]

    def clear(self, *faults: Fault) -> None:
        """Remove these faults; without arguments, all."""
        with self._lock:
            self._left = [(each, left) for each, left in self._left if faults and each not in faults]

    def __iter__(self) -> Iterator[Fault]:
        with self._lock:
            return iter([each for each, (_, times) in self._left if times != 0])

    def of(self, kind: type[F]) -> list[F]:
        """The faults of a kind that have times left."""
        return [each for each in self if isinstance(each, kind)]

    def happens(self, fault: Fault) -> bool:
        """Return whether the fault happens now, which uses up one of its times."""
        with self._lock:
            for each, left in self._left:
                if each is fault and left[1] != 0:
                    if left[0] > 0:
                        left[0] -= 1
                        return False
                    left[1] -= left[1] > 0
                    return True
            return False

    def first_of(self, kind: type[W], action: str) -> W | None:
        """The first fault of a kind that happens to this call."""
        for fault in self.of(kind):
            if fault.action in (None, action) and self.happens(fault):
                return fault
        return None
