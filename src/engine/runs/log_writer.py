"""The queue of the tasks' log records: any thread adds records, and the writer's thread writes them into the record."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

from ..wire.log_records import Artifact, count, unpacked
from .events_limit import EventsLimit
from .files import RecordFiles
from .logged import PARAMS, SLOW, Batch, LoggedPages, Origin
from .tensorboard import TensorBoardFiles

BACKLOG_BYTES = 16 * 1024 * 1024  # most bytes of log records that wait for the disk; further records are only counted
TEXT_CHARS = 1024 * 1024  # characters that are appended in one write
TENSORBOARD_S = 0.05  # time for TensorBoard's files in each `FLUSH_S`; the rest is written later
TENSORBOARD_END_S = 1.0  # time for TensorBoard's files at the end of a run
ARTIFACTS = "artifacts"
NAME_CHARS = 100  # longest name of an artifact's file
Placed = tuple[Origin, Artifact, str]  # (task, artifact, path of the artifact's file)


class LogWriter:
    """The log records of one run. ``wake`` is called when there are records to write."""

    def __init__(
        self, clean: Callable[[str], str], wake: Callable[[], object], limit: EventsLimit | None = None
    ) -> None:
        self._pages, self._clean, self._wake = LoggedPages(clean, limit), clean, wake
        self._batches: deque[Batch] = deque()
        self._placed: deque[Placed] = deque()
        self._lost: deque[tuple[Origin, int, str, float]] = deque()
        self._lock = threading.Lock()
        self.waiting_bytes = 0  # bytes of records that are not written yet
        self._overflow = Counter[Origin]()  # number of records that were dropped because the queue was full
        self._files: RecordFiles | None = None  # None unless the record is open
        self._tensorboard: TensorBoardFiles | None = None
        self._names: dict[str, int] = {}  # name of an artifact's file -> how often it was used
        self._taken: set[str] = set()  # used names in lower case, for disks that ignore case

    def opened(self, files: RecordFiles) -> None:
        self._files = files
        self._tensorboard = TensorBoardFiles(files.directory)

    def put(self, batch: Batch) -> None:
        """Add records to the queue, without waiting."""
        with self._lock:
            if self.waiting_bytes + len(batch.data) > BACKLOG_BYTES:
                self._overflow[batch.origin] += count(batch.data) + batch.dropped
            else:
                self.waiting_bytes += len(batch.data)
                self._batches.append(batch)
        self._wake()

    def put_artifact(self, batch: Batch, content: bytes | memoryview) -> None:
        """Write an artifact and its record. The call waits for the disk, so it needs a thread of its own.

        An error is written into the record, and not raised.
        """
        records = [each for each in unpacked(batch.data, batch.at) if isinstance(each, Artifact)]
        if len(records) != 1 or self._files is None:
            return
        (artifact,) = records
        digest = hashlib.sha256(content).hexdigest()
        try:
            path = self._place(self._files, artifact.name, content)
        except OSError as error:
            self.lose(batch.origin, f"the artifact {artifact.name!r} could not be written: {error.strerror}", batch.at)
            return
        if digest != artifact.sha256:
            self.lose(batch.origin, f"the artifact {artifact.name!r} is not what its task has read", batch.at)
        self._placed.append((batch.origin, artifact._replace(size_bytes=len(content), sha256=digest), path))
        self._wake()

    def lose(self, origin: Origin, why: str, at: float) -> None:
        """Note in the record that a log record was lost."""
        self._lost.append((origin, 1, why, at))
        self._wake()

    # --- in the writer's thread -----------------------------------------------------------------------------------

    def write(self, files: RecordFiles) -> None:
        """Append the waiting records. Release the GIL in between, as the event loop must not wait.

        Raises:
            OSError: the write failed, for example because the disk is nearly full.
        """
        for _ in range(len(self._batches)):
            batch = self._batches.popleft()
            with self._lock:
                self.waiting_bytes -= len(batch.data)
            self._pages.add(batch)
            if self._pages.size > TEXT_CHARS:
                files.append(self._pages.taken())
            time.sleep(0)
        with self._lock:
            overflow, self._overflow = self._overflow, Counter()
        for origin, lost in overflow.items():
            self._pages.lost(origin, lost, SLOW, time.time())
        while self._pages.empty:
            origin, artifact = self._pages.empty.pop()
            self._placed.append((origin, artifact, self._place(files, artifact.name, b"")))
        for _ in range(len(self._placed)):
            self._pages.artifact(*self._placed.popleft())
        for _ in range(len(self._lost)):
            self._pages.lost(*self._lost.popleft())
        files.append(self._pages.taken())
        params = self._pages.changed_params()
        if params is not None:
            files.replace(PARAMS, params)
        self._write_tensorboard(TENSORBOARD_S)

    def end(self, files: RecordFiles) -> None:
        """Write the remaining records, and accept no more."""
        self._files = None
        self.write(files)
        self._write_tensorboard(TENSORBOARD_END_S)

    def _write_tensorboard(self, within_s: float) -> None:
        if self._tensorboard is not None:
            with suppress(OSError):  # TensorBoard's files can be written again from the record
                if not self._tensorboard.catch_up(within_s):
                    self._wake()

    def _place(self, files: RecordFiles, name: str, content: bytes | memoryview) -> str:
        """Write an artifact to a file of its own, and return its path."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", self._clean(name)).strip("-.")[-NAME_CHARS:].lstrip("-.") or "artifact"
        with self._lock:
            path = f"{ARTIFACTS}/{self._free(safe)}"
        files.add(path, content)
        return path

    def _free(self, wanted: str) -> str:
        """Return a free name: ``wanted``, or the name with a number: best.pt, best-2.pt.

        Tasks may use such names, too.
        """
        stem, dot, ending = wanted.partition(".")
        while True:
            number = self._names[wanted] = self._names.get(wanted, 0) + 1
            name = wanted if number == 1 else f"{stem}-{number}{dot}{ending}"
            if name.lower() not in self._taken:
                self._taken.add(name.lower())
                return name
