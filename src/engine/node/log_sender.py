"""The sender of a worker's log records: it sends them every 0.25 s, after 2,000 records, and before a task's answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import NoReturn

from ..wire.log_records import BATCH, NONE, Packed, packed
from ..wire.messages import Logged, Message

EVERY_S = 0.25
FULL = 2000  # when so many records wait, they are sent without further delay
MOST = 200_000  # maximum number of records that wait while the node reads slowly; further records are dropped


class LogSender:
    """The queues of log records, one for each attempt, and the thread that sends the records.

    Args:
        lock: a reentrant lock, held while records are removed from a queue and sent. Acquire it before you raise an
            exception in a thread that may send.
        wanted: whether the client wants log records; if not, they are dropped.
    """

    def __init__(
        self, send: Callable[[Message, list[int]], None], lock: AbstractContextManager[object], *, wanted: bool = True
    ) -> None:
        self._send, self._lock, self.wanted = send, lock, wanted
        self._pid = os.getpid()
        self._waiting: dict[int, list[Packed]] = {}  # attempt -> its records that are not sent yet
        self._lost: dict[int, int] = {}  # attempt -> number of its records that were dropped
        self._awake = False  # whether the sending thread is awake, or about to wake
        self._wake, self._full = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def here(self) -> bool:
        """Return whether this process is the worker: a child that a task forks must not use the worker's pipe."""
        return os.getpid() == self._pid

    def put(self, attempt: int, record: Packed) -> None:
        """Queue a log record, without waiting.

        The record is dropped if the client keeps no records. A record beyond `MOST` waiting ones is counted as lost.
        """
        if not self.wanted:
            return
        records = self._waiting.get(attempt)
        if records is None:
            records = self._waiting.setdefault(attempt, [])
        if len(records) >= MOST:
            self._lost[attempt] = self._lost.get(attempt, 0) + 1
            return
        records.append(record)
        if not self._awake:
            self._awake = True
            self._begin()
        elif len(records) >= FULL and not self._full.is_set():
            self._full.set()

    def put_blob(self, attempt: int, record: Packed, fd: int) -> None:
        """Send a log record with its blob (of descriptor ``fd``, which is closed).

        Raises:
            OSError: no descriptors are left, so the message was not sent.
        """
        (body,) = packed([record])
        try:
            with self._lock:
                self._send(Logged(attempt, body, 0, ""), [fd])
        except OSError:
            os.close(fd)
            raise

    def tell(self, message: Message, fd: int | None = None) -> None:
        """Send a message that is no log record at once. ``fd``: the descriptor of its blob, which is closed.

        Raises:
            OSError: the message was not sent.
        """
        try:
            with self._lock:
                self._send(message, [] if fd is None else [fd])
        except OSError:
            if fd is not None:
                os.close(fd)
            raise

    def finish(self, attempt: int) -> None:
        """Send all waiting records of an attempt; its answer must follow later."""
        if attempt in self._waiting and self.here:
            with self._lock:
                self._flush(attempt)
                self._waiting.pop(attempt, None)
                if lost := self._lost.pop(attempt, 0):
                    with suppress(OSError):
                        self._send(Logged(attempt, NONE, lost), [])

    def _begin(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, daemon=True, name="outrider-log")
                    self._thread.start()
        self._wake.set()

    def _run(self) -> NoReturn:
        while True:
            self._wake.wait()
            self._full.wait(EVERY_S)
            self._full.clear()
            self._wake.clear()
            self._awake = False  # set before the records are read, so that a later record wakes this thread again
            for attempt in [*self._waiting]:
                with self._lock:
                    self._flush(attempt)

    def _flush(self, attempt: int) -> None:
        records = self._waiting.get(attempt, [])
        while records:
            batch = records[:BATCH]
            del records[: len(batch)]  # not `clear()`: other threads may append at the same time
            try:
                for body in packed(batch):
                    self._send(Logged(attempt, body, self._lost.get(attempt, 0)), [])
                    self._lost.pop(attempt, None)
            except OSError:  # a large message needs a descriptor, and none is left; or the node is ending
                self._lost[attempt] = self._lost.get(attempt, 0) + len(batch)
