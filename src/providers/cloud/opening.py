"""The life cycle of a pool's fleet of machines: ownership of the pool, its journal, its task group, its teardown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ..journal import Journal
from ..threads import uninterrupted
from .port import O, P
from .recorder import Recorder

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .fleet import CloudFleet


@asynccontextmanager
async def open_fleet(
    pool: str, provider: str, place: Mapping[str, str], make: Callable[[Recorder, TaskGroup], CloudFleet[P, O]]
) -> AsyncIterator[CloudFleet[P, O]]:
    """Open the fleet that ``make`` returns. When the block ends, everything of the pool in this place is ended and
    confirmed, shielded from cancellation.

    Raises:
        BadRequest: The pool has another owner.
        JournalError: The journal cannot be written.
        NotGone: At the end of the block: something may still exist.
    """
    journal = await uninterrupted(Journal.open)
    ownership = await uninterrupted(partial(journal.own, pool, provider, dict(place)))
    try:
        async with anyio.create_task_group() as tasks:
            fleet = make(Recorder(journal, pool, place), tasks)
            fleet.start()
            try:
                yield fleet
            finally:
                with anyio.CancelScope(shield=True):
                    await fleet.close()
                tasks.cancel_scope.cancel()
    finally:
        await uninterrupted(ownership.close)
