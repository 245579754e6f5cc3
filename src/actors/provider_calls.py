"""The calls to the provider (launch, terminate, watch) and to the reachability probe, each in a task of its own.

Each call sends its result to the pool's actor as a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

import anyio

from ..providers.base import Machine, MachineEvent, MachineId
from ..providers.errors import ProviderError
from ..providers.shared.watching import Watching
from . import events as ev
from .interfaces import Dependencies, ReachabilityProbe
from .kernel import Context
from .messages import Happened, PoolMessage

TERMINATE_TRIES = 4  # number of failed tries to terminate a machine after which the event `TerminateFailed` is sent
TERMINATE_AGAIN_S = 2.0
TERMINATE_AGAIN_LIMIT_S = 60.0
ASK_AGAIN_S = 2.0  # seconds between two calls of the reachability probe while all nodes are silent


class ProviderResults(Protocol):
    """The methods that the pool's actor calls with the results of the provider's calls; `Machines` has them."""

    def launched(self, requested: int, machines: Sequence[Machine], now: float) -> None: ...

    def launch_failed(self, requested: int, error: ProviderError, now: float) -> None: ...

    def reported(self, event: MachineEvent, now: float) -> None: ...


class ProviderCalls:
    def __init__(self, context: Context[PoolMessage], dependencies: Dependencies, pool: ProviderResults) -> None:
        self._tasks, self._tell, self._pool = context.tasks, context.ref.tell, pool
        self._fleet, self._request = dependencies.fleet, dependencies.request
        self._observe = dependencies.observe
        self._launching: set[anyio.CancelScope] = set()
        self._asking = False
        self._tasks.start_soon(self._watch)

    def launch(self, machines: int) -> None:
        self._tasks.start_soon(self._launch, machines)

    def terminate(self, machine: MachineId, confirmed: Callable[[float], None]) -> None:
        """Terminate a machine: retry until the provider confirms, then call ``confirmed``.

        Only the end of the pool stops the retries, as the machine costs money until the provider confirms.
        """
        self._tasks.start_soon(self._terminate, machine, confirmed)

    def ask_others(
        self,
        probe: ReachabilityProbe,
        unheard: Callable[[], Sequence[Machine] | None],
        answered: Callable[[float], None],
    ) -> None:
        """Call the reachability ``probe`` until any host answers, then call ``answered``. ``unheard`` returns the
        machines to test, or None to stop.
        """
        if not self._asking:
            self._asking = True
            self._tasks.start_soon(self._ask_others, probe, unheard, answered)

    def close(self) -> None:
        for launching in self._launching:
            launching.cancel()

    async def _launch(self, machines: int) -> None:
        with anyio.CancelScope() as scope:
            self._launching.add(scope)
            try:
                launched = await self._fleet.launch(self._request, machines)
            except ProviderError as error:
                self._happened(partial(self._pool.launch_failed, machines, error))
            except Exception as error:  # noqa: BLE001  providers may be third-party code
                defect = ProviderError(f"the provider's launch raised {type(error).__name__}: {error}")
                defect.__cause__ = error
                self._happened(partial(self._pool.launch_failed, machines, defect))
            else:
                self._happened(partial(self._pool.launched, machines, launched))
            finally:
                self._launching.discard(scope)

    async def _terminate(self, machine: MachineId, confirmed: Callable[[float], None]) -> None:
        pause_s = TERMINATE_AGAIN_S
        for attempt in count(1):
            try:
                await self._fleet.terminate([machine])
            except Exception as error:  # noqa: BLE001  a defect is retried too, because the machine costs money
                if attempt == TERMINATE_TRIES:
                    reason = str(error) if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}"
                    self._observe(ev.TerminateFailed((machine,), reason))
                await anyio.sleep(max(pause_s, getattr(error, "retry_after_s", None) or 0.0))
                pause_s = min(2 * pause_s, TERMINATE_AGAIN_LIMIT_S)
            else:
                self._happened(confirmed)
                return

    async def _ask_others(
        self,
        probe: ReachabilityProbe,
        unheard: Callable[[], Sequence[Machine] | None],
        answered: Callable[[float], None],
    ) -> None:
        try:
            while (machines := unheard()) is not None:
                if await probe(machines):
                    self._happened(answered)
                    return
                await anyio.sleep(ASK_AGAIN_S)
        finally:
            self._asking = False

    async def _watch(self) -> None:
        """Read the stream of the provider's events about its machines; open it again when it fails (WATCH-1)."""
        watching = Watching("the machines")
        while True:
            try:
                async for event in self._fleet.events():
                    self._report(watching.succeeded(anyio.current_time()))
                    self._report(event)
                return
            except Exception as error:  # noqa: BLE001  WATCH-1
                self._report(watching.failed(error, anyio.current_time()))
            await anyio.sleep(watching.pause_s)

    def _report(self, event: MachineEvent | None) -> None:
        if event is not None:
            self._happened(partial(self._pool.reported, event))

    def _happened(self, handle: Callable[[float], None]) -> None:
        self._tell(Happened(handle))
