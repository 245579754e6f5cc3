"""Lines of a record's files, as they are written and read: events as JSON, and what tasks print. No I/O."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields
from datetime import datetime
from typing import Any

from ...actors import events as ev
from ...lazy_named_tuple import NamedTuple

EVENTS = "events.jsonl"
LOGS = "logs"
STACKS = "stacks"
_ENCODE = json.JSONEncoder(separators=(",", ":"), default=str).encode
_NAMES: dict[type[ev.Event], tuple[str, ...]] = {}
_SIMPLE = (int, bool, type(None))
OURS = "outrider"  # in place of the stream, where a line of a log was printed by no task


class LogLine(NamedTuple):
    """A line of a log: ``2026-11-25T03:24:48.123Z stdout loss 0.3``. ``at``: the first word, which sorts as text."""

    at: str
    stream: str
    text: str


def event_line(event: ev.Event, at: float, function: str, clean: Callable[[str], str]) -> bytes:
    """Return an event as a line of JSON. ``function``: where it has none of its own. ``clean``: of each text in it."""
    said: dict[str, Any] = {"event": event.name, "at": event.at or at}
    for name in _names(event):
        value = getattr(event, name)
        said[name] = value if type(value) in _SIMPLE else plain(value, clean)
    if function and said.get("function") == "":
        said["function"] = function
    return _json_line(said)


def dropped_line(count: int, at: float) -> bytes:
    """Return the line that stands for events which could not be kept until the disk took them."""
    return _json_line({"event": "events_dropped", "at": at, "count": count})


def left_out_line(count: int, at: float) -> bytes:
    """Return the line that stands for events for which the record has no room, ``count`` of them so far."""
    return _json_line({"event": "events_left_out", "at": at, "count": count})


def log_line(at: float, stream: str, text: str) -> bytes:
    return f"{time_text(at)} {stream} {text}\n".encode(errors="replace")


def time_text(at: float) -> str:
    """Return a unix time in UTC, with milliseconds."""
    whole = math.floor(at)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((at - whole) * 1000):03}Z"


def unix_time(text: str) -> float | None:
    """Return the unix time of what `time_text` gives; None: it is no time, as somebody may have changed the file."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def compact_time(at: float) -> str:
    """Return a unix time in UTC, with milliseconds, for names of files."""
    return time_text(at).replace("-", "").replace(":", "")


def whole_lines(content: bytes) -> list[bytes]:
    """Return the lines that are whole. The rest was being written when somebody killed its writer, or is just now."""
    return content.split(b"\n")[:-1]


def parsed_events(content: bytes) -> Iterator[dict[str, Any]]:
    """Return the events of all whole lines that can be read."""
    for line in whole_lines(content):
        try:
            said = json.loads(line)
        except ValueError:  # a disk that was full, or a computer without power, has left it
            continue
        if isinstance(said, dict):
            yield said


def parsed_log(line: bytes) -> LogLine | None:
    at, _, rest = line.decode(errors="replace").partition(" ")
    stream, space, text = rest.partition(" ")
    return LogLine(at, stream, text) if space and at.endswith("Z") else None


def _json_line(said: Mapping[str, Any]) -> bytes:
    return _ENCODE(said).encode() + b"\n"


def _names(event: ev.Event) -> tuple[str, ...]:
    """Return the names of an event's fields, but for its time."""
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
