"""Records each creation of one pool in the journal, before the request is sent.

RECORDED-1: no create call leaves this process before its intent (the journal's record of the call) is on the disk.
RECORDED-2: an intent without an outcome belongs to a call without an answer: resources may exist that nobody knows.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import anyio

from ..errors import JournalError, NotAuthorized, ProviderError
from ..journal import Intent, Journal
from ..resource_ownership import Claim
from ..threads import in_thread
from .failures import is_lost
from .written import written_of

T = TypeVar("T")


class Recorder:
    """Records which resources a pool creates in one place."""

    def __init__(self, journal: Journal, pool: str, place: Mapping[str, str]) -> None:
        self.journal, self.pool, self.place = journal, pool, dict(place)
        self._intents: dict[str, Intent] = {}

    @property
    def intents(self) -> list[Intent]:
        """The intents (records of create calls) that this process has written."""
        return list(self._intents.values())

    async def claim(self) -> Claim:
        """The pool's claim in this place: it tells which resources are the pool's."""
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
