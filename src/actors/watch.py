"""Reads what the provider says of its machines and passes it on."""

from __future__ import annotations

from collections.abc import Callable

from ..providers.base import Fleet
from .kernel import Context
from .messages import MachineNews, PoolMessage


class WatchActor:
    """Restarted when the provider's stream fails: it is read anew from where it is."""

    def __init__(self, context: Context[object], fleet: Fleet, tell: Callable[[PoolMessage], None]) -> None:
        self._fleet = fleet
        self._tell = tell
        context.tasks.start_soon(self._read)

    def receive(self, message: object) -> None:
        raise AssertionError(message)

    def stopped(self, error: Exception | None) -> None:
        pass

    async def _read(self) -> None:
        async for event in self._fleet.events():
            self._tell(MachineNews(event))
