"""Read the provider's events about its machines and pass them on to the pool."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from ..providers.base import Fleet, Warned
from ..providers.watching import Watching
from .kernel import ActorStopped, Context
from .messages import MachineReport, PoolMessage


class WatchActor:
    """Actor that reads the provider's event stream and reopens it when it fails, while the pool lives (WATCH-1)."""

    def __init__(self, context: Context[object], fleet: Fleet, tell: Callable[[PoolMessage], None]) -> None:
        self._fleet = fleet
        self._tell = tell
        context.tasks.start_soon(self._read)

    def receive(self, message: object) -> None:
        raise AssertionError(message)

    def stopped(self, error: Exception | None) -> None:
        pass

    async def _read(self) -> None:
        watching = Watching("the machines")
        while True:
            try:
                async for event in self._fleet.events():
                    self._warn(watching.succeeded(anyio.current_time()))
                    self._tell(MachineReport(event))
                return
            except ActorStopped:
                raise  # the pool's actor has ended: nobody listens
            except Exception as error:  # noqa: BLE001  WATCH-1
                self._warn(watching.failed(error, anyio.current_time()))
            await anyio.sleep(watching.pause_s)

    def _warn(self, warned: Warned | None) -> None:
        if warned is not None:
            self._tell(MachineReport(warned))
