"""`chaos`: inject faults into a pool that is already open."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...engine.api.errors import SpecError
from .options import Chaos

if TYPE_CHECKING:
    from ...engine.pool import Pool
    from ...engine.sync import SyncPool
    from .fault_injector import FaultInjector
    from .report import Report


class chaos:  # noqa: N801 - used like a function
    """Inject faults while the block runs: ``async with chaos(pool, mtbf=15, seed=7) as report``.

    A plain ``with`` works as well, for a pool that is used without an event loop. The end of the block undoes all
    faults that can be undone. A pool can be in one such block at a time. Tasks submitted before the block are lost if
    their node is lost; but only tasks submitted inside the block count steps and are hit by `KillRank` and `HoldGil`.

    Args:
        pool: An open pool of local nodes.
        plan: The faults, as `Chaos`.
        options: The options of `Chaos`, in place of a plan.

    Raises:
        SpecError: An option is not valid, the pool is not `Local`, or it has a fault injector already.
    """

    def __init__(self, pool: Pool | SyncPool, plan: Chaos | None = None, /, **options: Any) -> None:
        if plan is not None and options:
            raise SpecError("chaos takes a Chaos or its options, not both.")
        self._pool = pool
        self._plan = Chaos(**options) if plan is None else plan
        self._injector: FaultInjector | None = None

    async def __aenter__(self) -> Report:
        from .fault_injector import FaultInjector

        pool: Any = self._pool
        self._injector = injector = FaultInjector(self._plan, pool._opened())
        await injector.begin()
        injector.start()
        return injector.report

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._injector is not None
        await self._injector.leave()

    def __enter__(self) -> Report:
        sync: Any = self._pool
        self._pool = sync._pool
        self._wait = sync._wait
        return self._wait(self.__aenter__)  # type: ignore[no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._wait(self.__aexit__, None, None, None)
