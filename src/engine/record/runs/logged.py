"""The lines that a run's record gets for log records: the metrics, texts, params and artifacts that tasks log.

Any thread adds log records to the queue `LogWriter`, and the thread that writes the record writes them. `LoggedPages`
converts them to lines. `EventsLimit` limits the size of the events: a run may last for months, and programs that read
the record read all its events. `LoggedPages` and `EventsLimit` do no I/O.

EVENTS-1: the lines take at most `most_bytes`; events about nodes, ranks and the run's end are written until all lines
          take twice as many bytes.
EVENTS-2: each line that is left out is counted.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ....actors import events as ev
from ....lazy_named_tuple import NamedTuple
from ...api.printable import one_line
from ...api.sink import Origin
from ...wire.log_records import Artifact, Metrics, Params, Saved, Text, count, unpacked
from .files import RecordFiles
from .lines import EVENTS, SAVED, plain
from .metrics import METRICS
from .tensorboard import TensorBoardFiles

MOST_BYTES = 64 * 2**20  # enough for some 300,000 events
NEEDED = (  # events from which readers know the run's nodes and ranks, and its end
    ev.NodeLaunching,
    ev.NodeReady,
    ev.NodeStandby,
    ev.NodeNoticed,
    ev.NodeDraining,
    ev.NodeLost,
    ev.NodeFailed,
    ev.NodeDismissed,
    ev.GenerationStarted,
    ev.NodeUsed,
    ev.PoolUsed,
    ev.PoolClosing,
    ev.PoolClosed,
)


class EventsLimit:
    """The limit for the events of one record.

    ``left_out``: how many lines were not written, because the limit was reached.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._size_bytes = most_bytes, 0
        self.left_out = 0

    def takes(self, line: bytes, event: ev.Event | None = None) -> bool:
        """Return whether to write a line of events. ``event``: the event in the line; None: a line of another kind."""
        most = 2 * self._most_bytes if isinstance(event, NEEDED) else self._most_bytes
        if self._size_bytes + len(line) > most:
            self.left_out += 1
            return False
        self._size_bytes += len(line)
        return True


TEXTS, ARTIFACTS, PARAMS = "texts.jsonl", "artifacts.jsonl", "params.json"
CLEANED_NAMES = 4096  # most names of metrics in the cache of names whose secrets were hidden
PARAMS_MOST = 10_000  # most params in a record
# Most characters of all params (names and values) in a record. The whole file is written again when one param changes.
PARAMS_CHARS = 4 * 1024 * 1024
SLOW = "they came faster than they could be sent or written"
NO_RECORD = "they are no records, or there is no room for more params"
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_ENCODE = _ENCODER.encode


class Batch(NamedTuple):
    """Log records of one task, as they arrived.

    ``dropped``: the number of the task's records that were lost before these. ``at``: the unix time of arrival.
    """

    origin: Origin
    data: bytes
    dropped: int
    at: float


class LoggedPages:
    """The text that must be appended to the record's files, and the params. Keys are paths within the record."""

    def __init__(self, clean: Callable[[str], str] = str, limit: EventsLimit | None = None) -> None:
        """Create an object without text.

        ``clean``: hides secrets in a text. ``limit``: the limit for the events of the record.
        """
        self._clean, self._limit = clean, limit or EventsLimit()
        # cached, as tasks log the same names of metrics many times
        self._clean_name = lru_cache(CLEANED_NAMES)(clean)
        self._text: dict[str, list[str]] = {}
        self.size = 0  # number of characters that `taken` has not returned yet
        self.empty: list[tuple[Origin, Artifact]] = []  # artifacts of 0 bytes: their content is not sent separately
        self._params: dict[str, Any] = {}
        self._params_chars: dict[str, int] = {}
        self._params_size = 0  # number of characters of all params
        self._params_changed = False
        self._origin, self._origin_text = Origin(), _fields(Origin())

    def add(self, batch: Batch) -> None:
        origin = self._of(batch.origin)
        lost, unread = batch.dropped, 0
        lines: list[str] = []
        for record in unpacked(batch.data, batch.at):
            match record:
                case Metrics(at, step, values):
                    shown = "null" if step is None else step
                    if self._clean is not str:
                        values = {self._clean_name(name): value for name, value in values.items()}
                    lines.append(f'{{"at":{at!r},{origin},"step":{shown},"values":{_numbers(values)}}}\n')
                case Text(at, step, name, text):
                    fields = {"step": step, "name": self._clean(name), "text": self._clean(text)}
                    self._append(TEXTS, f'{{"at":{at!r},{origin},{_inner(fields)}}}\n')
                case Params(_, values):
                    unread += self._set(values)
                case Saved(at, name, step, size_bytes):
                    fields = {"name": self._clean(name), "step": step, "size_bytes": size_bytes}
                    self._append_event(f'{{"event":"{SAVED}","at":{at!r},{origin},{_inner(fields)}}}\n')
                case Artifact(size_bytes=0):
                    self.empty.append((batch.origin, record))
                case _:
                    unread += 1
        if lines:
            # values and field names need no cleaning, and names of metrics were cleaned above
            self._append(METRICS, "".join(lines))
        if lost:
            self.lost(batch.origin, lost, SLOW, batch.at)
        if unread:
            self.lost(batch.origin, unread, NO_RECORD, batch.at)

    def lost(self, origin: Origin, count: int, why: str, at: float) -> None:
        """Add an event that ``count`` log records were lost, with the reason."""
        fields = {"count": count, "why": self._clean(why)}
        self._append_event(f'{{"event":"records_lost","at":{at!r},{self._of(origin)},{_inner(fields)}}}\n')

    def artifact(self, origin: Origin, artifact: Artifact, path: str) -> None:
        """Add a line for an artifact. ``path``: the path of its file in the record."""
        at, name, size_bytes, sha256 = artifact
        fields = {"name": self._clean(name), "path": path, "size_bytes": size_bytes, "sha256": sha256}
        self._append(ARTIFACTS, f'{{"at":{at!r},{self._of(origin)},{_inner(fields)}}}\n')

    def taken(self) -> dict[str, bytes]:
        """Return the text that was added since the last call of this method."""
        text, self._text, self.size = self._text, {}, 0
        return {path: "".join(parts).encode(errors="replace") for path, parts in text.items()}

    def changed_params(self) -> dict[str, Any] | None:
        """Return all params; None: no param has changed since the last call."""
        if not self._params_changed:
            return None
        self._params_changed = False
        return self._params

    def _set(self, values: Mapping[str, Any]) -> int:
        """Set params. Return how many were refused because the record has no room for them."""
        lost = 0
        for name, value in plain(values, self._clean).items():
            shown = self._clean(name)
            chars = len(shown) + len(_ENCODE(value))
            size = self._params_size - self._params_chars.get(shown, 0) + chars
            if (shown in self._params or len(self._params) < PARAMS_MOST) and size <= PARAMS_CHARS:
                self._params[shown], self._params_chars[shown], self._params_size = value, chars, size
                self._params_changed = True
            else:
                lost += 1
        return lost

    def _append_event(self, line: str) -> None:
        if self._limit.takes(line.encode(errors="replace")):
            self._append(EVENTS, line)

    def _append(self, path: str, text: str) -> None:
        self._text.setdefault(path, []).append(text)
        self.size += len(text)

    def _of(self, origin: Origin) -> str:
        if origin != self._origin:
            shown = origin._replace(function=self._clean(origin.function))
            self._origin, self._origin_text = origin, _fields(shown)
        return self._origin_text


def _fields(origin: Origin) -> str:
    function, job, rank, node, generation = origin
    return _inner({"function": one_line(function), "job": job, "rank": rank, "node": node, "generation": generation})


def _inner(fields: Mapping[str, Any]) -> str:
    """Encode a dict as JSON, without the braces."""
    return _ENCODE(fields)[1:-1]


def _numbers(values: Mapping[str, float]) -> str:
    try:
        return _ENCODE(values)
    except ValueError:  # nan or infinity, which JSON does not have
        return _ENCODE(plain(values, str))


BACKLOG_BYTES = 16 * 1024 * 1024  # most bytes of log records that wait for the disk; more log records are only counted
TEXT_CHARS = 1024 * 1024  # most characters that one write appends
# longest time for TensorBoard's files within each `FLUSH_S`, in seconds; what does not fit is written later
TENSORBOARD_S = 0.05
TENSORBOARD_END_S = 1.0  # longest time for TensorBoard's files at the end of a run, in seconds
ARTIFACT_FOLDER = "artifacts"
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
            path = f"{ARTIFACT_FOLDER}/{self._free(safe)}"
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
