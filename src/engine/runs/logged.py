"""The record's lines for the log records of tasks.

No I/O: the writer's thread calls this module and appends the lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ...lazy_named_tuple import NamedTuple
from ..api.printable import one_line
from ..wire.log_records import Artifact, Metrics, Params, Saved, Text, unpacked
from .checkpoints import SAVED
from .events_limit import EventsLimit
from .lines import EVENTS, plain
from .metrics import METRICS

TEXTS, ARTIFACTS, PARAMS = "texts.jsonl", "artifacts.jsonl", "params.json"
CLEANED_NAMES = 4096  # most names of metrics that are cached after secrets in them were hidden
PARAMS_MOST = 10_000  # most names of params in a record
# most characters of params, names and values together: all are rewritten when one changes
PARAMS_CHARS = 4 * 1024 * 1024
SLOW = "they came faster than they could be sent or written"
NO_RECORD = "they are no records, or there is no room for more params"
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_ENCODE = _ENCODER.encode


class Origin(NamedTuple):
    """The task that wrote a log record; empty fields: the program itself. ``rank``: None outside of broadcasts."""

    function: str = ""
    job: int = 0
    rank: int | None = None
    node: int | None = None
    generation: int = 1


class Batch(NamedTuple):
    """Records as they arrived.

    ``dropped``: the number of records lost before them. ``at``: their arrival, in unix time.
    """

    origin: Origin
    data: bytes
    dropped: int
    at: float


class LoggedPages:
    """The text to append to each file, and the params. Keys are paths within the record."""

    def __init__(self, clean: Callable[[str], str] = str, limit: EventsLimit | None = None) -> None:
        """Create empty pages. ``clean``: hides secrets in each text. ``limit``: for the lines of events."""
        self._clean, self._limit = clean, limit or EventsLimit()
        # cached, because the same names of metrics are logged many times
        self._clean_name = lru_cache(CLEANED_NAMES)(clean)
        self._text: dict[str, list[str]] = {}
        self.size = 0  # characters that `taken` has not returned yet
        self.empty: list[tuple[Origin, Artifact]] = []  # artifacts of 0 bytes, which need no transfer
        self._params: dict[str, Any] = {}
        self._params_chars: dict[str, int] = {}
        self._params_size = 0  # characters of all params
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
            self._append(METRICS, "".join(lines))  # not cleaned: numbers and keys contain no secrets
        if lost:
            self.lost(batch.origin, lost, SLOW, batch.at)
        if unread:
            self.lost(batch.origin, unread, NO_RECORD, batch.at)

    def lost(self, origin: Origin, count: int, why: str, at: float) -> None:
        """Add the event that ``count`` records are lost, and why."""
        fields = {"count": count, "why": self._clean(why)}
        self._append_event(f'{{"event":"records_lost","at":{at!r},{self._of(origin)},{_inner(fields)}}}\n')

    def artifact(self, origin: Origin, artifact: Artifact, path: str) -> None:
        """Add the line for an artifact whose file is at ``path`` in the record."""
        at, name, size_bytes, sha256 = artifact
        fields = {"name": self._clean(name), "path": path, "size_bytes": size_bytes, "sha256": sha256}
        self._append(ARTIFACTS, f'{{"at":{at!r},{self._of(origin)},{_inner(fields)}}}\n')

    def taken(self) -> dict[str, bytes]:
        """Return the text added since the last call."""
        text, self._text, self.size = self._text, {}, 0
        return {path: "".join(parts).encode(errors="replace") for path, parts in text.items()}

    def changed_params(self) -> dict[str, Any] | None:
        """Return all params if some were added since the last call."""
        if not self._params_changed:
            return None
        self._params_changed = False
        return self._params

    def _set(self, values: Mapping[str, Any]) -> int:
        """Set params; return how many were refused for lack of room."""
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
    """Return an object as JSON without its braces."""
    return _ENCODE(fields)[1:-1]


def _numbers(values: Mapping[str, float]) -> str:
    try:
        return _ENCODE(values)
    except ValueError:  # JSON has only finite numbers
        return _ENCODE(plain(values, str))
