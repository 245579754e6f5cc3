"""Launches of machines: the calls to the provider, and the reasons why nodes have not become ready.

`ProviderCalls` runs each call to the provider (launch, terminate, watch) and to the reachability probe in a task of its
own, which sends its result to the pool's actor as a message. `LaunchFailures` keeps the reasons until nodes are ready;
they are added to the error of a failed pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

import anyio

from ..providers.base import Machine, MachineEvent, MachineId
from ..providers.errors import NoCapacity, ProviderError
from ..providers.shared.watching import Watching
from . import events as ev
from .broadcasts import Broadcasts
from .events import Observe
from .fleet_controller import FleetController
from .interfaces import ConnectFailed, Dependencies, ReachabilityProbe
from .kernel import Context
from .late_nodes import LateNodes
from .membership import Member, Roster
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


class LaunchFailures:
    """The reasons why nodes have not become ready. `Broadcasts` reports the last of them if a lost node is not
    replaced.
    """

    def __init__(
        self,
        controller: FleetController,
        roster: Roster,
        broadcasts: Broadcasts,
        observe: Observe,
        *,
        boot_timeout_s: float,
    ) -> None:
        self._controller = controller
        self._roster = roster
        self._broadcasts = broadcasts
        self._observe = observe
        self._boot_timeout_s = boot_timeout_s
        self._late = LateNodes()
        self._unusable: list[ConnectFailed] = []
        self._refused: ConnectFailed | None = None  # the last error in `_unusable`; None: a node has become ready since
        self._last: Exception | None = None

    @property
    def hopeless(self) -> Exception | None:
        """Return the error because of which no further node will become ready; None: further nodes may become ready."""
        error = self._controller.final_error
        if error is None or self._controller.coming:
            return None
        if not isinstance(error, NoCapacity) or not self._unusable:
            return self._with_late(error)
        first, *others = self._unusable  # the provider had enough machines, but these machines could not be used
        return self._with_late(first, *(f"Also: {other}" for other in others))

    @property
    def last(self) -> Exception | None:
        """Return the last reason why a node did not become ready."""
        return None if self._last is None else self._with_late(self._last)

    def launch(self, error: Exception, retry_in_s: float | None) -> None:
        """Handle that a launch returned too few machines, or a node failed. ``retry_in_s``: seconds until the next try;
        None: no try follows.
        """
        if isinstance(error, NoCapacity) and error.__cause__ is None:
            # the provider may have had machines, but none was usable: attach the error of the last one
            error.__cause__ = self._refused
        self._last = error
        self._broadcasts.failure = error
        self._observe(ev.LaunchFailed(str(error), self._controller.failures, retry_in_s))

    def unreached(self, member: Member, error: ConnectFailed) -> None:
        """Handle that a node never became ready."""
        if error.late:
            self._late.add(error.late)
        # a host that the user names (it has ``patience_s``) also counts as unusable if it was only late
        if error.futile or (error.late and member.machine.patience_s is not None):
            self._unusable.append(error)
            self._refused = error

    def ready(self) -> None:
        """Handle that a node has become ready."""
        self._broadcasts.failure = self._refused = None

    def _with_late(self, error: Exception, *notes: str) -> Exception:
        """Add notes to the error with which a pool fails, among them the states of the nodes that were late."""
        ready, wanted = len(self._roster), self._controller.wanted
        late = self._late.describe(wanted=wanted, ready=ready, within_s=self._boot_timeout_s)
        if notes or late:
            error.__notes__ = [*notes, *filter(None, [late])]
        return error
