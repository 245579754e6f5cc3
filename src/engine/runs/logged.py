"""The lines that a run's record gets for log records: the metrics, texts, params and artifacts that tasks log.

No I/O: the writer's thread calls this module and appends the lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ...lazy_named_tuple import NamedTuple
from ..api.printable import one_line
from ..api.sink import Origin
from ..wire.log_records import Artifact, Metrics, Params, Saved, Text, unpacked
from .checkpoints import SAVED
from .events_limit import EventsLimit
from .lines import EVENTS, plain
from .metrics import METRICS

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
