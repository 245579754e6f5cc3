"""The preemption watcher: hears what will become of this machine and its peers, and tells the client.

Every task learns it from the notice page.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Iterable

from ...wire.messages import Asked, Doomed, Notice, StopAt
from ..notice_page import Doom, NoticePage, World
from .pending import NAME_CHARS, Pending, bounded
from .source import NoticeSource

AGAIN_S = 10.0  # after a source has failed
SETTLE_S = 0.01  # by then every rank that asked before it could see the notice has counted


class PreemptionWatcher:
    def __init__(self, board: NoticePage, say: Callable[[Notice | Asked], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._board = board
        self._say = say
        self._pending = Pending()
        self._from_client: set[str] = set()  # sources
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, sources: Iterable[NoticeSource]) -> None:
        for source in sources:
            task = self._loop.create_task(self._watch(source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def notice(self, source: str, seconds: float | None) -> None:
        """Handle a notice: this machine will be taken in ``seconds``; None: not for this source's reason (any more)."""
        if self._learned(source, seconds):
            self._from_client.discard(source)
            self._say(Notice(source[:NAME_CHARS], None if seconds is None else bounded(seconds)))

    def heard(self, message: Notice | Doomed | StopAt) -> None:
        """Handle a message of the client."""
        match message:
            case Notice(source, seconds):  # it learned this from the provider, and needs not be told
                if self._learned(source, seconds):
                    self._from_client.add(source)
            case Doomed():
                self._doomed(message)
            case StopAt():
                self._stop_at(message)

    def greeted(self) -> None:
        """Send our notices to a client that was away: it heard of them so long ago that the seconds are wrong."""
        now = time.monotonic()
        for source, doom in self._pending.known.items():
            if source not in self._from_client:
                self._say(Notice(source, max(0.0, doom.at - now)))

    # --- the other machines of a world -----------------------------------------------------------------------------

    def _doomed(self, message: Doomed) -> None:
        """Handle news that a machine of a generation here will be taken, or (None) that none will be any more."""
        job, generation, number, node, source, seconds = message
        doom = None
        if seconds is not None:
            doom = Doom(number, source[:64], seconds, time.monotonic() + seconds, node)
        known = self._world(job, generation)
        self._post(job, World(generation, doom, None if known is None else known.stop_at))
        if doom is not None:
            self._loop.call_later(SETTLE_S, self._count, job, generation, number)

    def _stop_at(self, message: StopAt) -> None:
        job, generation, asked = message
        known = self._world(job, generation)
        self._post(job, World(generation, None if known is None else known.doom, asked))

    def _world(self, job: int, generation: int) -> World | None:
        known = self._board.read().worlds.get(job)
        return known if known is not None and known.generation == generation else None

    def _post(self, job: int, world: World) -> None:
        word = self._board.read()
        worlds = {each: of for each, of in word.worlds.items() if each != job}
        self._board.post(word._replace(worlds={**worlds, job: world}))

    def _count(self, job: int, generation: int, number: int) -> None:
        if not self._board.closed:
            self._say(Asked(job, generation, number, self._board.counted(job, generation)))

    # --- this machine ----------------------------------------------------------------------------------------------

    def _learned(self, source: str, seconds: float | None) -> bool:
        news = self._pending.heard(source, seconds, time.monotonic())
        if self._board.read().own != self._pending.holds:
            self._board.post(self._board.read()._replace(own=self._pending.holds))
        return news

    async def _watch(self, source: NoticeSource) -> None:
        """Run a source. If it fails, a defect of ours, log that once and begin again: its notices are still to come."""
        told: set[type[Exception]] = set()
        while True:
            try:
                await source.watch(lambda seconds: self.notice(source.name, seconds))
                return
            except Exception as error:  # noqa: BLE001 - the edge
                if type(error) not in told:
                    told.add(type(error))
                    print(f"notices: {source.name} has failed, and begins again", file=sys.stderr)
                    traceback.print_exc()
            await asyncio.sleep(AGAIN_S)
