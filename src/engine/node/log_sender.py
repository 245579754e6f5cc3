"""The sender of a worker's log records: a batch every 0.25 s or 2,000 records; the rest is sent before an answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import NoReturn

from ..wire.log_records import BATCH, NONE, Packed, packed
from ..wire.messages import Logged, Message

EVERY_S = 0.25
FULL = 2000  # waiting records that trigger a send at once
MOST = 200_000  # records that may wait for a slow node; more are dropped and counted


class LogSender:
    """A list of records for each attempt: the attempt's threads append to it, and the sending thread empties it.

    Args:
        lock: a reentrant lock, held while records are taken and sent; acquire it before you interrupt a thread.
        wanted: whether the client keeps records. If not, records are dropped.
    """

    def __init__(
        self, send: Callable[[Message, list[int]], None], lock: AbstractContextManager[object], *, wanted: bool = True
    ) -> None:
        self._send, self._lock, self.wanted = send, lock, wanted
        self._pid = os.getpid()
        self._waiting: dict[int, list[Packed]] = {}  # attempt -> records not sent yet
        self._lost: dict[int, int] = {}  # attempt -> number of dropped records
        self._awake = False  # whether the thread is awake, or will wake at once
        self._wake, self._full = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def here(self) -> bool:
        """Return whether this is the worker's own process. A forked child must not use the worker's pipe."""
        return os.getpid() == self._pid

    def put(self, attempt: int, record: Packed) -> None:
        """Queue a record, without waiting. It is dropped if the client keeps no records."""
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
        """Send a record with its blob, and close the blob.

        Raises:
            OSError: the message was not sent, for lack of descriptors.
        """
        (body,) = packed([record])
        try:
            with self._lock:
                self._send(Logged(attempt, body, 0, ""), [fd])
        except OSError:
            os.close(fd)
            raise

    def tell(self, message: Message, fd: int | None = None) -> None:
        """Send another message of an attempt at once. ``fd``: its blob, which is closed.

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
        """Send the remaining records of an attempt, before its answer."""
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
            self._awake = False  # must precede taking the records: a later record then wakes this thread again
            for attempt in [*self._waiting]:
                with self._lock:
                    self._flush(attempt)

    def _flush(self, attempt: int) -> None:
        records = self._waiting.get(attempt, [])
        while records:
            batch = records[:BATCH]
            del records[: len(batch)]  # other threads may append at the same time
            try:
                for body in packed(batch):
                    self._send(Logged(attempt, body, self._lost.get(attempt, 0)), [])
                    self._lost.pop(attempt, None)
            except OSError:  # no descriptors for so large a message; or the node is ending, and this process with it
                self._lost[attempt] = self._lost.get(attempt, 0) + len(batch)
