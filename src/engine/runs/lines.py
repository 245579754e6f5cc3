"""The format of the lines in a record's files: events as JSON, and the output of tasks. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields
from datetime import datetime
from typing import Any

from ...actors import events as ev
from ...lazy_named_tuple import NamedTuple
from ..api.quantities import time_text

EVENTS = "events.jsonl"
LOGS = "logs"
STACKS = "stacks"
_ENCODE = json.JSONEncoder(separators=(",", ":"), default=str).encode
_NAMES: dict[type[ev.Event], tuple[str, ...]] = {}
_SIMPLE = (int, bool, type(None))
OURS = "outrider"  # stream name of log lines that no task printed


class LogLine(NamedTuple):
    """A line of a log, such as ``2026-11-25T03:24:48.123Z stdout loss 0.3``.

    ``at``: the first word, the time. As strings, times sort in the order of time.
    """

    at: str
    stream: str
    text: str


def event_line(event: ev.Event, at: float, function: str, clean: Callable[[str], str]) -> bytes:
    """Return an event as a line of JSON.

    Args:
        event: The event.
        at: The unix time, if the event has none.
        function: The function of the call, if the event has none.
        clean: Hides secrets in a text.
    """
    fields: dict[str, Any] = {"event": event.name, "at": event.at or at}
    for name in _names(event):
        value = getattr(event, name)
        fields[name] = value if type(value) in _SIMPLE else plain(value, clean)
    if function and fields.get("function") == "":
        fields["function"] = function
    return _json_line(fields)


def dropped_line(count: int, at: float) -> bytes:
    """Return the line that reports ``count`` dropped events: the disk was too slow to write them."""
    return _json_line({"event": "events_dropped", "at": at, "count": count})


def left_out_line(count: int, at: float) -> bytes:
    """Return the line that reports that the record has no room for events.

    ``count``: the number of such events so far.
    """
    return _json_line({"event": "events_left_out", "at": at, "count": count})


def log_line(at: float, stream: str, text: str) -> bytes:
    return f"{time_text(at)} {stream} {text}\n".encode(errors="replace")


def unix_time(text: str) -> float | None:
    """Parse a time that `time_text` formatted; None: the text is not a time, as a person may have edited the file."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def whole_lines(content: bytes) -> list[bytes]:
    """Return the complete lines. If the last line is incomplete, its writer is still writing it, or was killed."""
    return content.split(b"\n")[:-1]


def parsed_events(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the event of each complete line that can be parsed, as a dict."""
    for line in whole_lines(content):
        try:
            fields = json.loads(line)
        except ValueError:  # a full disk or a power failure damaged the line
            continue
        if isinstance(fields, dict):
            yield fields


def parsed_log(line: bytes) -> LogLine | None:
    at, _, rest = line.decode(errors="replace").partition(" ")
    stream, space, text = rest.partition(" ")
    return LogLine(at, stream, text) if space and at.endswith("Z") else None


def _json_line(fields: Mapping[str, Any]) -> bytes:
    return _ENCODE(fields).encode() + b"\n"


def _names(event: ev.Event) -> tuple[str, ...]:
    """Return the names of an event's fields, without its time."""
    kind = type(event)
    if kind not in _NAMES:
        _NAMES[kind] = tuple(each.name for each in fields(kind) if each.name != "at")
    return _NAMES[kind]


def plain(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(name)): plain(each, clean) for name, each in value.items()}
    if isinstance(value, list | tuple | Set):
        return [plain(each, clean) for each in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
