"""Waiting that no cancellation cuts short."""

from __future__ import annotations

import asyncio


async def finished(task: asyncio.Task[None]) -> None:
    """Wait for ``task`` through any number of cancellations of the waiter; the first is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        raise cancelled
