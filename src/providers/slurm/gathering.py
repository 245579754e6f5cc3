"""Combine launches: one job replaces all nodes that were lost together, if their replacements are requested at nearly
the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, Machine
from ..errors import ProviderError

# Seconds to gather requests: the pool reports the losses of one job's nodes, and requests replacements, one by one.
GATHER_S = 0.05


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
    """Combines concurrent requests into one call of ``launch``. The first caller waits for further requests, then makes
    the call. If the first caller is cancelled, the other callers get an error that allows a retry.
    """

    def __init__(self, launch: Callable[[LaunchRequest, int], Awaitable[Sequence[Machine]]]) -> None:
        self._launch = launch
        self._open: _Launch | None = None

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Return ``count`` of the machines that the combined launch has created.

        Raises:
            ProviderError: The combined launch failed; each caller gets this error.
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
