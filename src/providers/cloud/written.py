"""The journal's data about a pool in one place: intents (records of create calls), and the claim that follows."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..errors import ProviderError
from ..journal import Intent, Journal
from ..resource_ownership import Claim
from ..threads import in_thread
from .end_tracker import Unsure
from .instance_inventory import GRACE_S

if TYPE_CHECKING:
    from .port import Cloud

FLEET = "fleet"  # the kind of the intents for create calls of machines
FLEET_S = 90.0  # a create call is answered within so many seconds; creating tens of machines takes some seconds


@dataclass(frozen=True, slots=True)
class Written:
    """The journal's records about one pool in one place. ``claim``: tells which resources are the pool's."""

    claim: Claim
    intents: Sequence[Intent] = ()
    now: float = 0.0

    @property
    def machines(self) -> dict[str, float]:
        """Return the created machines, each with the seconds since its creation."""
        return {
            each: self.now - intent.at for intent in self.intents if intent.kind == FLEET for each in intent.ids or ()
        }

    def unsure(self, lost: Mapping[str, float]) -> dict[str, Unsure]:
        """Return the launches without a response, each with the seconds for which its machines may still appear.

        ``lost``: these seconds for the launches that the living owner knows. Other launches may have been repeated for
        a while, so their time is longer.
        """
        launches = [intent for intent in self.intents if intent.kind == FLEET and intent.ids is None]
        return {
            each.token: Unsure(
                lost.get(each.token, each.at + FLEET_S + GRACE_S - self.now), float(each.facts.get("count", inf))
            )
            for each in launches
        }

    def names(self, kind: str) -> list[str]:
        return [each for intent in self.intents if intent.kind == kind for each in intent.ids or ()]


async def written_of(
    place: Mapping[str, str], pool: str, journal: Journal | None, own_intents: Sequence[Intent] = ()
) -> Written:
    """Return the pool's intents in this place: those in the journal, if it is readable, and ``own_intents`` of this
    process.
    """
    record = None
    known = journal is not None
    if journal is not None:
        try:
            record = await in_thread(journal.record, pool)
        except ProviderError:  # the journal is not readable: tags find the same machines, only later
            known = False
    hosts = record.hosts if record is not None else () if known else (socket.gethostname(),)
    intents = [] if record is None else [each for each in record.intents if dict(each.place) == dict(place)]
    return Written(Claim.of(pool, [*intents, *own_intents], hosts), intents, time.time())


async def elsewhere(cloud: Cloud, pool: str, journal: Journal | None) -> str:
    """Return where the pool has machines according to the journal; empty: in this place, or unknown."""
    record = None if journal is None else await in_thread(journal.record, pool)
    intents = () if record is None else record.intents
    places = {cloud.where(each.place) for each in intents if each.kind == FLEET}
    return "" if cloud.where(cloud.place) in places else " and ".join(sorted(places))


async def settle(place: Mapping[str, str], pool: str, journal: Journal | None) -> None:
    """Record that nothing of the pool is left in this place.

    Raises:
        JournalError: the journal cannot be written.
    """
    if journal is not None:
        await in_thread(journal.settled, pool, dict(place))
