"""Records of a pool's creations in the journal: `Recorder` writes each one before the request, `written_of` reads them.

An intent is the record of one create call. A claim follows from a pool's intents, and tells which resources are the
pool's.

RECORDED-1: no create call leaves this process before its intent is on the disk.
RECORDED-2: if an intent has no outcome, its call got no answer, and may have created resources with unknown ids.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, TypeVar

import anyio

from ...lazy_dataclass import dataclass
from ..errors import JournalError, NotAuthorized, ProviderError
from ..shared.journal import Intent, Journal
from ..shared.resource_ownership import Claim
from ..shared.threads import in_thread
from .calls import is_lost
from .inventory import GRACE_S, Unsure

if TYPE_CHECKING:
    from .port import Cloud


T = TypeVar("T")


class Recorder:
    """Records in the journal which resources a pool creates in one place: a region, project or account of a cloud."""

    def __init__(self, journal: Journal, pool: str, place: Mapping[str, str]) -> None:
        self.journal, self.pool, self.place = journal, pool, dict(place)
        self._intents: dict[str, Intent] = {}

    @property
    def intents(self) -> list[Intent]:
        """The intents (records of create calls) that this process has written."""
        return list(self._intents.values())

    async def claim(self) -> Claim:
        """The claim, which tells which of the cloud's resources are the pool's."""
        return (await written_of(self.place, self.pool, self.journal, self.intents)).claim

    async def create(
        self,
        kind: str,
        token: str,
        facts: Mapping[str, str],
        ask: Callable[[], Awaitable[T]],
        ids_in: Callable[[T], Sequence[str] | None],
    ) -> T:
        """Record a create call in the journal, make the call, and return its response. Shielded from cancellation.

        ``token``: a label that the created resources have from the beginning. ``ids_in``: returns the ids of the
        created resources in a response; None: the response has no ids.

        Raises:
            JournalError: The intent could not be recorded, so nothing was created.
            ProviderError: Raised by ``ask``, which makes the call.
        """
        with anyio.CancelScope(shield=True):
            repeated = token in self._intents and self._intents[token].ids is None
            intent = await self._intend(kind, token, facts)
            try:
                answer = await ask()
            except ProviderError as error:
                # a refusal for missing permissions concerns only this try: an earlier try may have created something
                if not (is_lost(error) or (repeated and isinstance(error, NotAuthorized))):
                    await self._happened(intent, [])
                raise
            ids = ids_in(answer)
            if ids is not None:
                await self._happened(intent, ids)
            return answer
        raise AssertionError("nothing cancels this scope")

    async def learnt(self, kind: str, token: str, ids: Sequence[str]) -> None:
        """Record which resources a call created, if its own response did not say so."""
        await self._happened(Intent(self.pool, kind, token, self.place, at=time.time()), ids)

    async def _intend(self, kind: str, token: str, facts: Mapping[str, str]) -> Intent:
        intent = await in_thread(self.journal.intend, self.pool, kind, token, self.place, facts)
        self._intents.setdefault(token, intent)
        return intent

    async def _happened(self, intent: Intent, ids: Sequence[str]) -> None:
        self._intents[intent.token] = replace(intent, ids=tuple(ids))
        try:
            await in_thread(self.journal.happened, intent, ids)
        except JournalError:
            pass  # no error: the intent is in the journal, and tags identify the created resources


# --- reading a pool's records -----------------------------------------------------------------------------------------


FLEET = "fleet"  # the kind of the intents for create calls of machines
FLEET_S = 90.0  # a create call is answered within so many seconds; creating tens of machines takes some seconds


@dataclass(frozen=True, slots=True)
class Written:
    """The journal's records about one pool in one region, project or account of a cloud.

    ``claim``: tells which resources are the pool's.
    """

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

        ``lost``: these seconds, by token, for launches of which the caller knows them. For other launches, the time is
        longer, because they may have been repeated for a while.
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
    """Return the records of a pool's create calls in ``place``: a region, project or account of a cloud.

    They are those in the journal, if it is readable; the claim also counts this process's ``own_intents``.
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
    """Return the regions or accounts in which the pool has machines, according to the journal.

    Empty: the pool has machines where ``cloud`` is, or the journal does not know any.
    """
    record = None if journal is None else await in_thread(journal.record, pool)
    intents = () if record is None else record.intents
    places = {cloud.where(each.place) for each in intents if each.kind == FLEET}
    return "" if cloud.where(cloud.place) in places else " and ".join(sorted(places))


async def settle(place: Mapping[str, str], pool: str, journal: Journal | None) -> None:
    """Record that nothing of the pool is left in ``place``: a region, project or account of a cloud.

    Raises:
        JournalError: The journal cannot be written.
    """
    if journal is not None:
        await in_thread(journal.settled, pool, dict(place))
