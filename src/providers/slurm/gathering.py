"""Launches that are asked for within a moment, as one: nodes that were lost together get one job in their place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, Machine
from ..errors import ProviderError

GATHER_S = 0.05  # the nodes of a job that ends are told to be gone, and asked for again, one by one


@dataclass(slots=True, eq=False)
class _Launch:
    request: LaunchRequest
    count: int
    machines: Sequence[Machine] | None = None
    error: ProviderError | None = None
    over: anyio.Event = field(default_factory=anyio.Event)

    def share(self, first: int, count: int) -> Sequence[Machine]:
        if self.error is not None:
            raise self.error
        if self.machines is None:
            raise ProviderError("the call that was to submit the job was cancelled", retry_after_s=0.0)
        return self.machines[first : first + count]


class Gathering:
    """Calls ``launch`` for all who ask meanwhile. The first of them waits for the others, and makes the call: if it is
    cancelled, the others fail with an error after which they may ask again.
    """

    def __init__(self, launch: Callable[[LaunchRequest, int], Awaitable[Sequence[Machine]]]) -> None:
        self._launch = launch
        self._open: _Launch | None = None

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Return ``count`` machines of a launch.

        Raises:
            ProviderError: as ``launch`` has raised it, for each who has asked.
        """
        joined = self._open
        if joined is not None and joined.request == request:
            first = joined.count
            joined.count += count
            await joined.over.wait()
            return joined.share(first, count)
        self._open = call = _Launch(request, count)
        try:
            try:
                await anyio.sleep(GATHER_S)
            finally:
                self._open = None if self._open is call else self._open
            call.machines = await self._launch(request, call.count)
        except ProviderError as error:
            call.error = error
        finally:
            call.over.set()
        return call.share(0, count)
