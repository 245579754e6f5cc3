"""The calls to the provider and the reachability probe: each runs in its own task and sends its result as a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

import anyio

from ..providers.base import Fleet, LaunchRequest, Machine, MachineId
from ..providers.errors import ProviderError
from . import events as ev
from .events import Observe
from .messages import Launched, LaunchFailed, PoolMessage, Signal
from .ports import ReachabilityProbe

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

TERMINATE_TRIES = 4  # after so many failed tries `TerminateFailed` is reported
TERMINATE_AGAIN_S = 2.0
TERMINATE_AGAIN_LIMIT_S = 60.0
ASK_AGAIN_S = 2.0  # pause between calls of the probe while all nodes are silent


class Calls:
    def __init__(
        self,
        tasks: TaskGroup,
        tell: Callable[[PoolMessage], None],
        fleet: Fleet,
        request: LaunchRequest,
        observe: Observe,
    ) -> None:
        self._tasks, self._tell = tasks, tell
        self._fleet, self._request, self._observe = fleet, request, observe
        self._launching: set[anyio.CancelScope] = set()
        self._asking = False

    def launch(self, machines: int) -> None:
        """Ask the provider for ``machines`` machines; the answer is a `Launched` or `LaunchFailed` message."""
        self._tasks.start_soon(self._launch, machines)

    def terminate(self, machine: MachineId) -> None:
        """Retry until the provider confirms or the pool ends: a machine costs money until then."""
        self._tasks.start_soon(self._terminate, machine)

    def ask_others(self, probe: ReachabilityProbe, unheard: Callable[[], Sequence[Machine] | None]) -> None:
        """Call ``probe`` until it hears an answer, then send `Signal.ANSWERED`; end if ``unheard`` returns None."""
        if not self._asking:
            self._asking = True
            self._tasks.start_soon(self._ask_others, probe, unheard)

    def close(self) -> None:
        """Cancel the launches under way."""
        for launching in self._launching:
            launching.cancel()

    async def _launch(self, machines: int) -> None:
        with anyio.CancelScope() as scope:
            self._launching.add(scope)
            try:
                launched = await self._fleet.launch(self._request, machines)
            except ProviderError as error:
                self._tell(LaunchFailed(machines, error))
            except Exception as error:  # noqa: BLE001  providers may be third-party code
                defect = ProviderError(f"the provider's launch raised {type(error).__name__}: {error}")
                defect.__cause__ = error
                self._tell(LaunchFailed(machines, defect))
            else:
                self._tell(Launched(machines, launched))
            finally:
                self._launching.discard(scope)

    async def _terminate(self, machine: MachineId) -> None:
        pause_s = TERMINATE_AGAIN_S
        for attempt in count(1):
            try:
                await self._fleet.terminate([machine])
            except Exception as error:  # noqa: BLE001  a defect is retried too: the machine costs money all the same
                if attempt == TERMINATE_TRIES:
                    told = str(error) if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}"
                    self._observe(ev.TerminateFailed((machine,), told))
                await anyio.sleep(max(pause_s, getattr(error, "retry_after_s", None) or 0.0))
                pause_s = min(2 * pause_s, TERMINATE_AGAIN_LIMIT_S)
            else:
                return

    async def _ask_others(self, probe: ReachabilityProbe, unheard: Callable[[], Sequence[Machine] | None]) -> None:
        try:
            while (machines := unheard()) is not None:
                if await probe(machines):
                    self._tell(Signal.ANSWERED)
                    return
                await anyio.sleep(ASK_AGAIN_S)
        finally:
            self._asking = False
