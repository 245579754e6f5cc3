"""Limits that the user sets for a pool: each limit has a watch, which raises an error when the limit is reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Never

from ..api.errors import BudgetExceeded, PoolIdle

Watch = Callable[[], Coroutine[Any, Any, Never]]


@asynccontextmanager
async def ended_by(*watches: Watch) -> AsyncIterator[Callable[[], object]]:
    """Run the block with these watches, and cancel it when a watch raises. Yield a function that stops the watches.

    Raises:
        BudgetExceeded, PoolIdle: the error of the watch, raised at the end of the block; other errors are its cause.
    """
    if not watches:
        yield lambda: None
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(watch(), name="outrider-limit") for watch in watches]

            def stop() -> None:
                for task in running:
                    task.cancel()

            try:
                yield stop
            finally:
                stop()
    except BaseExceptionGroup as group:
        reached, rest = group.split((BudgetExceeded, PoolIdle))
        if reached is None:
            raise
        raise reached.exceptions[0] from rest
