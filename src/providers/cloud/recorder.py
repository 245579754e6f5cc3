"""The journal of one pool's creations, each recorded before its request.

RECORDED-1: no create call leaves this process before its intent is on the disk.
RECORDED-2: an intent without an outcome is one whose answer never came: something may exist that nobody knows.
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
    """Records what a pool creates in one place."""

    def __init__(self, journal: Journal, pool: str, place: Mapping[str, str]) -> None:
        self.journal, self.pool, self.place = journal, pool, dict(place)
        self._intents: dict[str, Intent] = {}

    @property
    def intents(self) -> list[Intent]:
        """The intents that this process has recorded."""
        return list(self._intents.values())

    async def claim(self) -> Claim:
        """The pool's claim on resources in this place."""
        return (await written_of(self.place, self.pool, self.journal, self.intents)).claim

    async def create(
        self,
        kind: str,
        token: str,
        facts: Mapping[str, str],
        ask: Callable[[], Awaitable[T]],
        ids_in: Callable[[T], Sequence[str] | None],
    ) -> T:
        """Make a call that creates things, shielded from cancellation; return its response.

        ``token``: the created things carry it from their first moment. ``ids_in``: returns the ids in a response; None:
        the response has no ids.

        Raises:
            JournalError: The intent could not be recorded, so nothing was created.
            ProviderError: Raised by ``ask``.
        """
        with anyio.CancelScope(shield=True):
            repeated = token in self._intents and self._intents[token].ids is None
            intent = await self._intend(kind, token, facts)
            try:
                answer = await ask()
            except ProviderError as error:
                # A refusal for missing permissions says nothing about an earlier try.
                if not (is_lost(error) or (repeated and isinstance(error, NotAuthorized))):
                    await self._happened(intent, [])
                raise
            ids = ids_in(answer)
            if ids is not None:
                await self._happened(intent, ids)
            return answer
        raise AssertionError("nothing cancels this scope")

    async def learnt(self, kind: str, token: str, ids: Sequence[str]) -> None:
        """Record the outcome of a call whose own response did not have it."""
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
            pass  # the intent is recorded, and tags identify the created things
