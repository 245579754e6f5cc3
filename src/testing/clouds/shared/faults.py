"""The faults that tests can cause in test clouds, a frozen type for each, and the list of active faults.

``times``: how often the fault happens; None: without a limit. ``after``: how many matching calls succeed before the
first fault.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal, Protocol, TypeVar

from ....lazy_dataclass import dataclass

Market = Literal["spot", "on-demand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCapacity:
    """No room for machines of a type, zone and market.

    Args:
        type: The type. None: any.
        zone: The zone. None: any.
        market: ``"spot"`` or ``"on-demand"``. None: any.
        machines: The number of machines at a time; further ones are refused.
        times: How often the fault happens; each refused machine counts. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    type: str | None = None
    zone: str | None = None
    market: Market | None = None
    machines: int = 0
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class OfAction:
    """The base class of faults of calls.

    Args:
        action: The call, as the cloud names it. None: any call.
    """

    action: str | None = None  # the cloud's name of the call; None: any call


@dataclass(frozen=True, slots=True)
class Throttle(OfAction):
    """The call is refused because calls come too often, whatever the rate limits allow.

    Args:
        action: The call, as the cloud names it. None: any.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class LostAnswer(OfAction):
    """The call takes effect; the connection is cut before the first byte of the answer.

    Args:
        action: The call, as the cloud names it. None: any.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class HalfAnswer(OfAction):
    """The call takes effect; only half of the answer's body arrives, XML or JSON.

    Args:
        action: The call, as the cloud names it. None: any.
        valid_http: True: the headers give the length of the half, so that only its content shows the cut. False: they
            give the whole length, and the connection is cut.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    valid_http: bool = True
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class LostRequest(OfAction):
    """The connection is cut and the call has no effect.

    Args:
        action: The call, as the cloud names it. None: any.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Slow(OfAction):
    """The call takes effect at once; its answer comes later.

    Args:
        action: The call, as the cloud names it. None: any.
        seconds: The delay of the answer.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    seconds: float = 1.0
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class CallRefused(OfAction):
    """The call has no effect, and returns any of the cloud's errors, with its status.

    Args:
        action: The call, as the cloud names it. None: any.
        code: The code of the error.
        message: The text of the error.
        status: The HTTP status.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    code: str = "InternalError"
    message: str = "An internal error has occurred"
    status: int = 500
    times: int | None = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Unauthorized(OfAction):
    """The credentials do not allow the call. On EC2, CreateFleet returns a refused RunInstances in its list of errors.

    Args:
        action: The call, as the cloud names it. None: any.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBoot:
    """A launched machine ends before it runs, by an internal error of the cloud.

    Args:
        type: The type. None: any.
        zone: The zone. None: any.
        times: How often the fault happens. None: without a limit.
        after: The number of matching machines that are spared first.
    """

    type: str | None = None
    zone: str | None = None
    times: int | None = 1
    after: int = 0


class Fault(Protocol):
    """Any fault, including those of a single cloud."""

    @property
    def times(self) -> int | None: ...

    @property
    def after(self) -> int: ...


class CallFault(Fault, Protocol):
    """A fault of calls."""

    @property
    def action(self) -> str | None: ...


F = TypeVar("F", bound=Fault)
W = TypeVar("W", bound=CallFault)


class Faults:
    """The active faults. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # pairs: a fault, and how many calls succeed before it and how often it still happens
        self._left: list[tuple[Fault, list[int]]] = []

    def add(self, *faults: Fault) -> None:
        """Activate faults."""
        with self._lock:
            self._left += [(each, [each.after, -1 if each.times is None else each.times]) for each in faults]

    def clear(self, *faults: Fault) -> None:
        """Remove these faults; without arguments, remove all."""
        with self._lock:
            self._left = [(each, left) for each, left in self._left if faults and each not in faults]

    def __iter__(self) -> Iterator[Fault]:
        with self._lock:
            return iter([each for each, (_, times) in self._left if times != 0])

    def of(self, kind: type[F]) -> list[F]:
        """Return the active faults of this type."""
        return [each for each in self if isinstance(each, kind)]

    def happens(self, fault: Fault) -> bool:
        """Return whether the fault happens now. If so, its number of ``times`` decreases."""
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
        """Return the first fault of this type that happens to this call; None: no fault happens."""
        for fault in self.of(kind):
            if fault.action in (None, action) and self.happens(fault):
                return fault
        return None
