"""The end of a run whose ranks handle SIGTERM.

They first get SIGTERM and some time to save their state, and are killed after that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..api.compute import compute
from ..api.errors import OutriderError, RunStopped
from ..node import rank_signals

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ..client.open_pool import OpenPool

LOOK_S = 0.05
PATIENCE_S = 1.0  # after this many seconds of waiting, a message says what the run waits for
ANSWER_S = 5.0  # further seconds beyond the ranks' time to save, in case a node does not respond


@compute
def terminate_ranks(grace_s: float) -> None:
    """Send SIGTERM to those programs of this node's ranks that handle it, and wait until they have ended.

    ``grace_s``: the longest wait, in seconds.
    """
    waited_for = rank_signals.terminate()
    until = time.monotonic() + grace_s
    while time.monotonic() < until and any(rank_signals.still_handling(pid) for pid in waited_for):
        time.sleep(LOOK_S)


class GentleEnd:
    """Runs the ranks of a script. On cancellation or `request`, it gives them time to save before their end."""

    def __init__(self, core: OpenPool, grace_s: float) -> None:
        self._core, self._grace_s = core, grace_s
        self._ranks: asyncio.Future[Any] | None = None
        self._impatient = asyncio.Event()
        self._requested = False

    async def run(self, broadcast: Coroutine[Any, Any, object]) -> None:
        """Run the broadcast of the script, and return when all ranks have ended.

        On cancellation, ranks that handle SIGTERM get time to save.

        Raises:
            RunStopped: The end was requested by `request`.
            OutriderError: As for `Pool.broadcast`.
        """
        self._ranks = asyncio.ensure_future(broadcast)
        try:
            await asyncio.shield(self._ranks)
        except asyncio.CancelledError:
            if not self._ranks.done():
                await self._let_save()
            raise
        finally:
            self._ranks.cancel()
            await asyncio.gather(self._ranks, return_exceptions=True)
        if self._requested:
            raise RunStopped("The pool was ended from outside, by `outrider stop`.")

    async def request(self) -> None:
        """Let ranks that handle SIGTERM save and end. `outrider stop` requests this before it ends the pool."""
        self._requested = True
        if self._ranks is not None and not self._ranks.done():
            await self._let_save()

    def hurry(self) -> None:
        """Stop waiting for the ranks, because the user has pressed Ctrl-C again."""
        self._impatient.set()

    async def _let_save(self) -> None:
        assert self._ranks is not None
        if self._grace_s <= 0:
            return
        ending = asyncio.ensure_future(self._terminate())
        impatient = asyncio.ensure_future(self._impatient.wait())
        waited: Iterable[asyncio.Future[Any]] = {ending, impatient, self._ranks}
        try:
            done, _ = await asyncio.wait(waited, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                text = f"waiting up to {self._grace_s:g} s for ranks that handle SIGTERM; Ctrl-C again ends them now"
                print(f"outrider: {text}", file=sys.stderr, flush=True)
                await asyncio.wait(waited, timeout=self._grace_s + ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (ending, impatient):
                each.cancel()
            await asyncio.gather(ending, impatient, return_exceptions=True)

    async def _terminate(self) -> None:
        from ..client.file_transfer import places

        nodes = places(self._core, leaving=True)
        await asyncio.gather(
            *(self._quietly(place.run(terminate_ranks(self._grace_s), "the end of the ranks")) for place in nodes)
        )

    @staticmethod
    async def _quietly(running: Coroutine[Any, Any, None]) -> None:
        with suppress(OutriderError):  # the node was lost, and with it its ranks
            await running
