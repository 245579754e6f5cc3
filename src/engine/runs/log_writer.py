"""The queue of log records: the metrics, texts, params and artifacts that tasks log.

Any thread adds log records, and the writer's thread writes them into the record of the run.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

from ..api.sink import Origin
from ..wire.log_records import Artifact, count, unpacked
from .events_limit import EventsLimit
from .files import RecordFiles
from .logged import PARAMS, SLOW, Batch, LoggedPages
from .tensorboard import TensorBoardFiles

BACKLOG_BYTES = 16 * 1024 * 1024  # most bytes of log records that wait for the disk; more log records are only counted
TEXT_CHARS = 1024 * 1024  # most characters that one write appends
# longest time for TensorBoard's files within each `FLUSH_S`, in seconds; what does not fit is written later
TENSORBOARD_S = 0.05
TENSORBOARD_END_S = 1.0  # longest time for TensorBoard's files at the end of a run, in seconds
ARTIFACTS = "artifacts"
NAME_CHARS = 100  # longest name of an artifact's file
Placed = tuple[Origin, Artifact, str]  # (the task, the artifact, the path of its file)


class LogWriter:
    """The log records of one run that wait for the disk. ``wake``: called when there are records to write."""

    def __init__(
        self, clean: Callable[[str], str], wake: Callable[[], object], limit: EventsLimit | None = None
    ) -> None:
        self._pages, self._clean, self._wake = LoggedPages(clean, limit), clean, wake
        self._batches: deque[Batch] = deque()
        self._placed: deque[Placed] = deque()
        self._lost: deque[tuple[Origin, int, str, float]] = deque()
        self._lock = threading.Lock()
        self.waiting_bytes = 0  # bytes of log records that are not written yet
        # task -> number of its log records that were dropped because the queue was full
        self._overflow = Counter[Origin]()
        self._files: RecordFiles | None = None  # None: the run's record is not open
        self._tensorboard: TensorBoardFiles | None = None
        self._names: dict[str, int] = {}  # wanted file name of an artifact -> how many artifacts wanted it
        self._taken: set[str] = set()  # file names in use, in lower case, for disks that ignore case

    def opened(self, files: RecordFiles) -> None:
        self._files = files
        self._tensorboard = TensorBoardFiles(files.directory)

    def put(self, batch: Batch) -> None:
        """Add log records to the queue, without waiting."""
        with self._lock:
            if self.waiting_bytes + len(batch.data) > BACKLOG_BYTES:
                self._overflow[batch.origin] += count(batch.data) + batch.dropped
            else:
                self.waiting_bytes += len(batch.data)
                self._batches.append(batch)
        self._wake()

    def put_artifact(self, batch: Batch, content: bytes | memoryview) -> None:
        """Write an artifact's file and its log record. This waits for the disk, so call it in a thread of its own.

        An error is not raised, but written into the record.
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
        """Write into the record that a log record was lost."""
        self._lost.append((origin, 1, why, at))
        self._wake()

    # --- for the writer's thread only -------------------------------------------------------------------------------

    def write(self, files: RecordFiles) -> None:
        """Append the waiting log records to the files.

        Release the GIL between batches, as the event loop must not wait.

        Raises:
            OSError: The write failed, for example because the disk is nearly full.
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
        """Write the remaining log records. After this, no artifact is accepted."""
        self._files = None
        self.write(files)
        self._write_tensorboard(TENSORBOARD_END_S)

    def _write_tensorboard(self, within_s: float) -> None:
        if self._tensorboard is not None:
            with suppress(OSError):  # TensorBoard's files can later be made again from the record
                if not self._tensorboard.catch_up(within_s):
                    self._wake()

    def _place(self, files: RecordFiles, name: str, content: bytes | memoryview) -> str:
        """Write an artifact to a new file, and return the file's path."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", self._clean(name)).strip("-.")[-NAME_CHARS:].lstrip("-.") or "artifact"
        with self._lock:
            path = f"{ARTIFACTS}/{self._free(safe)}"
        files.add(path, content)
        return path

    def _free(self, wanted: str) -> str:
        """Return a free file name: ``wanted``, or the name with a number, such as best-2.pt.

        A task may itself use names with numbers.
        """
        stem, dot, ending = wanted.partition(".")
        while True:
            number = self._names[wanted] = self._names.get(wanted, 0) + 1
            name = wanted if number == 1 else f"{stem}-{number}{dot}{ending}"
            if name.lower() not in self._taken:
                self._taken.add(name.lower())
                return name
