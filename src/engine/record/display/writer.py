"""The thread that writes to the terminal for a sink.

A stopped terminal or a full pipe blocks that thread, but never the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

PATIENCE_S = 0.02
BACKLOG_CHARS = 16 * 1024 * 1024


class Writer:
    """A thread that writes text, so that a slow terminal does not block the event loop.

    The thread calls ``write`` for each item that `put` adds, ``refresh`` every ``interval_s`` seconds (None: never),
    and ``finish`` at the end.

    `put` waits up to `PATIENCE_S` until the item is written, so that a task's lines appear before the lines that the
    client prints about the task's result. If this wait ends too early, later calls of `put` do not wait until all items
    are written.

    If more than `BACKLOG_CHARS` characters wait, `put` drops further items. The next call of ``write`` gets the number
    of dropped lines (with stream 0 if no item follows).

    PRINTS-1: every line that `put` gets is either written, or counted as lost: in the argument of a successful call of
        ``write``, or in `unshown`, the result of `close`.
    """

    def __init__(
        self,
        # arguments: text, stream, number of lines that were dropped before the text
        write: Callable[[str, int, int], None],
        *,
        refresh: Callable[[], None] = lambda: None,
        finish: Callable[[], None] = lambda: None,
        interval_s: float | None = None,
    ) -> None:
        self._write = write
        self._refresh = refresh
        self._finish = finish
        self._interval_s = interval_s
        self._items: deque[tuple[str, int, int]] = deque()
        self._backlog = 0
        self._dropped = 0
        self._writing = 0  # number of lines of the item that is being written
        self.unshown = 0  # number of lines for which `write` failed, or that were not written before the end
        self.error: Exception | None = None  # last error that `write` raised
        self._behind = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, text: str, stream: int) -> None:
        with self._changed:
            if self._closing:
                self.unshown += text.count("\n")
                return
            if self._backlog + len(text) > BACKLOG_CHARS and self._items:
                self._dropped += text.count("\n")
                return
            self._items.append((text, stream, self._dropped))
            self._dropped = 0
            self._backlog += len(text) + 1
            self.start()
            self._changed.notify_all()
            if not self._behind:
                self._behind = not self._changed.wait_for(self._idle, PATIENCE_S)

    def catch_up(self, within_s: float) -> None:
        """Wait until all items are written, but at most ``within_s`` seconds."""
        with self._changed:
            self._changed.wait_for(self._idle, within_s)

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="outrider-console", daemon=True)
            self._thread.start()

    @property
    def is_behind(self) -> bool:
        """True while items wait to be written, or are being written."""
        return self._backlog > 0 or self._dropped > 0

    def close(self, within_s: float = 2.0) -> int:
        """Write the remaining items, for at most ``within_s`` seconds. May be called again.

        Returns:
            The number of lines that were not written. The lines that are being written when the time is over count,
            too.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(within_s)
        with self._changed:
            left, self._dropped, self._writing = self._dropped + self._writing, 0, 0
            while self._items:
                text, _, dropped = self._items.popleft()
                left += text.count("\n") + dropped
            self.unshown += left
            return self.unshown

    def _idle(self) -> bool:
        return self._backlog == 0

    def _run(self) -> None:
        due = time.monotonic()
        while (item := self._next(due)) is not None or not self._closing:
            if item is not None:
                written = self._guarded(self._write, *item)
                with self._changed:
                    if not written:
                        self.unshown += self._writing
                    self._writing = 0
                    self._backlog -= len(item[0]) + 1
                    if self._idle():
                        self._behind = False
                        self._changed.notify_all()
            if self._interval_s is not None and time.monotonic() >= due:
                self._guarded(self._refresh)
                due = time.monotonic() + self._interval_s
        self._guarded(self._finish)

    def _next(self, due: float) -> tuple[str, int, int] | None:
        """Return the next item to write.

        None: it is time for a refresh, or the writer is closing and no items are left.
        """
        with self._changed:
            wait_s = None if self._interval_s is None else max(0.0, due - time.monotonic())
            self._changed.wait_for(lambda: self._items or self._dropped or self._closing, wait_s)
            if self._items:
                text, stream, dropped = self._items.popleft()
                self._writing = text.count("\n") + dropped
                return text, stream, dropped
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._writing = dropped
                self._backlog += 1
                return "", 0, dropped
            return None

    def _guarded(self, step: Callable[..., None], *arguments: object) -> bool:
        """Call ``step``, and return whether it succeeded. Errors are logged: a closed stdout must not harm the pool."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - the edge
            self.error = error
            logging.getLogger("outrider").debug("console: %r", error)
            return False
        return True
