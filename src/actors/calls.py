"""What the pool asks of its provider and of others, each in a task of its own; what they say comes back as messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

import anyio

from ..providers.base import Fleet as Provider
from ..providers.base import LaunchRequest, Machine, MachineId
from ..providers.errors import ProviderError
from . import events as ev
from .events import Observe
from .messages import Launched, LaunchFailed, PoolMessage, Signal
from .ports import Witness

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

TERMINATE_TRIES = 4  # and somebody should know
TERMINATE_AGAIN_S = 2.0
TERMINATE_AGAIN_LIMIT_S = 60.0
ASK_AGAIN_S = 2.0  # whether anybody answers, while all nodes are silent


class Calls:
    def __init__(
        self,
        tasks: TaskGroup,
        tell: Callable[[PoolMessage], None],
        provider: Provider,
        request: LaunchRequest,
        observe: Observe,
    ) -> None:
        self._tasks, self._tell = tasks, tell
        self._provider, self._request, self._observe = provider, request, observe
        self._launching: set[anyio.CancelScope] = set()
        self._asking = False

    def launch(self, machines: int) -> None:
        """Answered by `Launched` or `LaunchFailed`."""
        self._tasks.start_soon(self._launch, machines)

    def terminate(self, machine: MachineId) -> None:
        """As often as it takes, while the pool lives: a machine costs money until its provider confirms."""
        self._tasks.start_soon(self._terminate, machine)

    def ask_others(self, witness: Witness, unheard: Callable[[], Sequence[Machine] | None]) -> None:
        """Until one answers, which is told by `Signal.ANSWERED`, or ``unheard`` says that it is of no use any more."""
        if not self._asking:
            self._asking = True
            self._tasks.start_soon(self._ask_others, witness, unheard)

    def close(self) -> None:
        """Launches under way are not waited for."""
        for launching in self._launching:
            launching.cancel()

    async def _launch(self, machines: int) -> None:
        with anyio.CancelScope() as scope:
            self._launching.add(scope)
            try:
                launched = await self._provider.launch(self._request, machines)
            except ProviderError as error:
                self._tell(LaunchFailed(machines, error))
            except Exception as error:  # noqa: BLE001  providers are others' code as well
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
                await self._provider.terminate([machine])
            except Exception as error:  # noqa: BLE001  also by a defect: the machine costs all the same
                if attempt == TERMINATE_TRIES:
                    told = str(error) if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}"
                    self._observe(ev.TerminateFailed((machine,), told))
                await anyio.sleep(max(pause_s, getattr(error, "retry_after_s", None) or 0.0))
                pause_s = min(2 * pause_s, TERMINATE_AGAIN_LIMIT_S)
            else:
                return

    async def _ask_others(self, witness: Witness, unheard: Callable[[], Sequence[Machine] | None]) -> None:
        try:
            while (machines := unheard()) is not None:
                if await witness(machines):
                    self._tell(Signal.ANSWERED)
                    return
                await anyio.sleep(ASK_AGAIN_S)
        finally:
            self._asking = False
