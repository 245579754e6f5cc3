"""The preemption watcher: it polls the sources of preemption notices, and writes the notices to the notice page.

The watcher reports notices about this machine to the client. The client sends it the notices about other machines of a
broadcast. Tasks read all these notices from the notice page, which is shared memory.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from ...wire.messages import Peer, PreemptionNotice, StopAt, StopChecks
from ..notice_page import NoticePage, PostedNotice, World
from .sources import NoticeSource

SAME_S = 1.0  # ends that differ by less are the same: ends computed from two answers of a cloud differ by rounding
LONGEST_S = 30 * 86400.0
NAME_CHARS = 64
# delay from the posting of a notice to the reading of the stop checks' counts: a check that began before the posting
# has been counted then
SETTLE_S = 0.01


class PreemptionWatcher:
    def __init__(
        self,
        page: NoticePage,
        send: Callable[[PreemptionNotice | StopChecks], None],
        noticed: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a watcher that polls nothing yet.

        Args:
            page: the notice page to write to.
            send: sends a message to the client.
            noticed: called when this machine has a new or changed notice.
        """
        self._loop = asyncio.get_running_loop()
        self._page = page
        self._send = send
        self._noticed = noticed
        self._pending = Pending()
        self._from_client: set[str] = set()  # sources whose latest notice the client has sent
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
        """Handle a notice of a source on this machine: ``seconds`` until its end; None: the notice is withdrawn."""
        if self._record(source, seconds):
            self._from_client.discard(source)
            self._send(PreemptionNotice(source[:NAME_CHARS], None if seconds is None else bounded(seconds)))

    def received(self, message: PreemptionNotice | StopAt) -> None:
        match message:
            case PreemptionNotice(source, seconds, None):  # the provider sent this notice to the client
                if self._record(source, seconds):
                    self._from_client.add(source)
            case PreemptionNotice(source, seconds, Peer() as peer):
                self._post_notice(source, seconds, peer)
            case StopAt(job, generation, check):
                self._update(job, generation, stop_at=check)

    def greeted(self) -> None:
        """Send this machine's notices again, with the current time left, to a client that has reconnected."""
        now = time.monotonic()
        for source, notice in self._pending.known.items():
            if source not in self._from_client:
                self._send(PreemptionNotice(source, max(0.0, notice.at - now)))

    def _post_notice(self, source: str, seconds: float | None, peer: Peer) -> None:
        """Write the notice about the machine of ``peer`` (a node of a broadcast); ``seconds`` None: erase it."""
        job, generation, number, node = peer
        if seconds is None:
            self._update(job, generation, notice=None)
            return
        notice = PostedNotice(number, source[:NAME_CHARS], seconds, time.monotonic() + seconds, node)
        self._update(job, generation, notice=notice)
        self._loop.call_later(SETTLE_S, self._count, job, generation, number)

    def _update(self, job: int, generation: int, **changes: Any) -> None:
        """Change the notice page's entry for a job (a broadcast), which has only one entry: its latest generation's.

        A generation is one run of a broadcast on a fixed set of nodes.
        """
        text = self._page.read()
        world = text.worlds.get(job)
        if world is None or world.generation != generation:
            world = World(generation, None, None)
        others = {each: of for each, of in text.worlds.items() if each != job}
        self._page.post(text._replace(worlds={**others, job: world._replace(**changes)}))

    def _count(self, job: int, generation: int, number: int) -> None:
        if not self._page.closed:
            self._send(StopChecks(job, generation, number, self._page.counted(job, generation)))

    def _record(self, source: str, seconds: float | None) -> bool:
        changed = self._pending.record(source, seconds, time.monotonic())
        if self._page.read().own != self._pending.holds:
            self._page.post(self._page.read()._replace(own=self._pending.holds))
            if self._pending.holds is not None:
                self._noticed()
        return changed

    async def _watch(self, source: NoticeSource) -> None:
        try:
            await source.watch(lambda seconds: self.notice(source.name, seconds))
        except Exception:  # noqa: BLE001 - for example, a signal that cannot be caught: other sources continue
            print(f"notices: {source.name} has failed", file=sys.stderr)
            traceback.print_exc()


class Pending:
    """The current notices of all sources about this machine. ``holds``: the notice that tasks see.

    No I/O and no clock: time is an argument.
    PENDING-1: tasks see the notice with the earliest end in the future; if all ends are past, the notice with the
    latest end.
    PENDING-2: a notice keeps its number until its source withdraws it; the source's next notice has another number.
    PENDING-3: tasks see no notice exactly while no source has a notice.
    PENDING-4: `record` returns True only if a source gets a notice, withdraws it, or changes its time.
    """

    def __init__(self) -> None:
        self.known: dict[str, PostedNotice] = {}  # source -> its current notice
        self.holds: PostedNotice | None = None
        self._last = 0

    def record(self, source: str, seconds: float | None, now: float) -> bool:
        """Record a source's notice, or (``seconds`` None) that it has none any more; return whether that is new."""
        source = source[:NAME_CHARS]
        known = self.known.get(source)
        if seconds is None:
            changed = self.known.pop(source, None) is not None
        else:
            seconds = bounded(seconds)
            changed = known is None or abs(now + seconds - known.at) >= SAME_S
            if changed:
                self._last += known is None
                self.known[source] = PostedNotice(
                    self._last if known is None else known.number, source, seconds, now + seconds
                )
        self.holds = self._soonest(now)
        return changed

    def _soonest(self, now: float) -> PostedNotice | None:
        ahead = [notice for notice in self.known.values() if notice.at > now]
        if ahead:
            return min(ahead, key=lambda notice: (notice.at, notice.number))
        return max(self.known.values(), key=lambda notice: (notice.at, notice.number), default=None)


def bounded(seconds: float) -> float:
    """Return ``seconds``, limited to the range from 0 to `LONGEST_S`; not-a-number becomes 0."""
    return min(max(seconds, 0.0), LONGEST_S) if seconds == seconds else 0.0  # noqa: PLR0124 (not a number)
