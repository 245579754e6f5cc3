"""The faults of the EC2 test cloud: those of all test clouds, and EC2's own."""

from __future__ import annotations

from ....lazy_dataclass import dataclass
from ...cloud.testing.faults import (
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
    """A limit for the vCPUs of the quota ``code`` (such as ``L-1216C47A``), whatever `Behaviour.quotas` says."""

    code: str
    vcpus: int
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class ExpiredToken(OfAction):
    """Expired credentials: RequestExpired (EC2), ExpiredTokenException (others).

    ``key``: only this access key has expired, so that new credentials work.
    """

    key: str | None = None
    times: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSkew:
    """The cloud's clock is ahead: requests that were signed more than 300 s ago are refused."""

    seconds: float = 600.0
    times: int | None = None
    after: int = 0
