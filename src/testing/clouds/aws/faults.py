"""The faults of the EC2 test cloud: those of all test clouds, and EC2's own."""

from __future__ import annotations

from ....lazy_dataclass import dataclass
from ..shared.faults import (
    CallRefused,
    Fault,
    Faults,
    HalfAnswer,
    LostAnswer,
    LostRequest,
    Market,
    NoBoot,
    NoCapacity,
    OfAction,
    Slow,
    Throttle,
    Unauthorized,
)

__all__ = [
    "CallRefused",
    "ClockSkew",
    "ExpiredToken",
    "Fault",
    "Faults",
    "HalfAnswer",
    "LostAnswer",
    "LostRequest",
    "Market",
    "NoBoot",
    "NoCapacity",
    "Quota",
    "Slow",
    "Throttle",
    "Unauthorized",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A limit for the vCPUs of a quota, in place of `Behaviour.quotas`.

    Args:
        code: The code of the quota, such as ``L-1216C47A``.
        vcpus: The limit.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    code: str
    vcpus: int
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class ExpiredToken(OfAction):
    """Expired credentials: RequestExpired (EC2), ExpiredTokenException (others).

    Args:
        action: The call, as EC2 names it. None: any.
        key: Only this access key has expired, so that new credentials work. None: all keys.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    key: str | None = None
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSkew:
    """The cloud's clock is ahead: requests that were signed more than 300 s ago are refused.

    Args:
        seconds: How much the clock is ahead.
        times: How often the fault happens. None: without a limit.
        after: The number of matching calls that are spared first.
    """

    seconds: float = 600.0
    times: int | None = None
    after: int = 0
