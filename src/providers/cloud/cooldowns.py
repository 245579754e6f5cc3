"""The offers that a cloud recently refused or interrupted, and how long to avoid them. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from math import inf
from typing import Protocol, TypeVar

from ...lazy_dataclass import dataclass
from ..errors import ProviderError
from .vendor import Vendor

FIRST_WAIT_S = 15.0
LONGEST_WAIT_S = 600.0
FORGET_AFTER_S = 900.0  # after so many seconds without a failure, a failure starts again with the first cooldown
# seconds to avoid a type in a zone after an interruption, as a new machine there may be interrupted, too
INTERRUPTED_S = 600.0
LASTING_S = 3600.0


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Offered(Protocol):
    """The parts of an `offers.Offer` by which its failures are remembered."""

    @property
    def type(self) -> Named: ...

    @property
    def zone(self) -> str: ...

    @property
    def market(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Wait:
    length: float
    until: float
    error: ProviderError | None = None


@dataclass(slots=True)
class Cooldowns:
    """A record of offers that lacked capacity or were interrupted recently. One per pool. Callers pass the time."""

    vendor: Vendor
    _failed: dict[tuple[str, str, str], _Wait] = field(default_factory=dict)
    _interrupted: dict[tuple[str, str], _Wait] = field(default_factory=dict)

    def failed(self, offer: Offered, error: ProviderError, now: float) -> None:
        """Record that the cloud refused this offer. After repeated refusals, each cooldown is twice as long as the one
        before. If an account's quota is exhausted, the cooldown applies to the type in all zones.
        """
        key = (offer.type.name, "" if error.code in self.vendor.quotas else offer.zone, offer.market)
        first = LASTING_S if error.code in self.vendor.lasting else FIRST_WAIT_S
        _extend(self._failed, key, now, first, max(first, LONGEST_WAIT_S), error=error)

    def worked(self, offer: Offered) -> None:
        """Record that this offer gave a machine. This ends the offer's cooldown."""
        for zone in ("", offer.zone):
            self._failed.pop((offer.type.name, zone, offer.market), None)

    def interrupted(self, type: str, zone: str, now: float) -> None:  # noqa: A002 (clouds' own word)
        """Record that a spot machine of this type in this zone was interrupted, or will be."""
        _extend(self._interrupted, (type, zone), now, INTERRUPTED_S, 8 * INTERRUPTED_S)

    def refused_until(self, offer: Offered) -> float:
        """Return the time from which the offer may be requested; minus infinity without a cooldown."""
        wait = self._wait(offer)
        return -inf if wait is None else wait.until

    def refusal(self, offer: Offered) -> ProviderError | None:
        """Return the error that caused the offer's cooldown; None: the offer has no cooldown."""
        wait = self._wait(offer)
        return None if wait is None else wait.error

    def wait_s(self, offers: Iterable[Offered], now: float) -> float:
        """Return the seconds until the cooldown of one of these offers is over."""
        return max(0.0, min(map(self.refused_until, offers)) - now)

    def interrupted_until(self, offer: Offered) -> float:
        """Return the time until which launches prefer other offers; minus infinity without an interruption."""
        wait = self._interrupted.get((offer.type.name, offer.zone)) if offer.market == "spot" else None
        return -inf if wait is None else wait.until

    def _wait(self, offer: Offered) -> _Wait | None:
        waits = [self._failed.get((offer.type.name, zone, offer.market)) for zone in ("", offer.zone)]
        return max((wait for wait in waits if wait is not None), key=lambda wait: wait.until, default=None)


_Key = TypeVar("_Key")


def _extend(
    waits: dict[_Key, _Wait], key: _Key, now: float, first: float, longest: float, *, error: ProviderError | None = None
) -> None:
    last = waits.get(key)
    if last is not None and now < last.until:
        return  # calls that ran at the same time and failed in the same way count as one failure
    again = last is not None and now < last.until + FORGET_AFTER_S
    length = min(2 * last.length, longest) if last is not None and again else first
    waits[key] = _Wait(length, now + length, error)
