"""The lines in a record's files, written and read: events, the output of tasks, saved checkpoints, and system samples.

A system sample is a measurement of a node's processors, memory, disk, network and GPUs. Samples are in the file
`system.jsonl`, one line for each node and sample. Only `SampleFile` and `read_samples` do I/O.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import asdict, field, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from ....actors import events as ev
from ....actors.events import GpuSample, NodeSampled
from ....lazy_dataclass import dataclass
from ....lazy_named_tuple import NamedTuple
from ...api.quantities import time_text

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
        at: The unix time to write if the event has no time.
        function: The function of the call, to write if the event has no function.
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


def events_in(content: bytes) -> Iterator[ev.Event]:
    """Yield the events of all complete lines.

    Damaged lines, and events that this version does not know, are skipped.
    """
    for line_fields in parsed_events(content):
        event = event_in(line_fields)
        if event is not None:
            yield event


def event_in(fields: Mapping[str, Any]) -> ev.Event | None:
    """Return the event of a line; None: this version does not know the event, or its fields have wrong types."""
    kind = _kinds().get(str(fields.get("event")))
    if kind is None:
        return None
    try:
        return kind(**{name: _value(fields[name], hint) for name, hint in _hints(kind.name).items() if name in fields})
    except (TypeError, ValueError):
        return None


@cache
def _kinds() -> dict[str, type[ev.Event]]:
    kinds: dict[str, type[ev.Event]] = {}
    waiting: list[type[ev.Event]] = [ev.Event]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            kinds[kind.name] = kind
            waiting.append(kind)
    return kinds


@cache
def _hints(name: str) -> dict[str, Any]:
    kind = _kinds()[name]
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _value(value: Any, hint: Any) -> Any:
    """Convert a JSON value to the type ``hint``.

    Raises:
        TypeError, ValueError: The value has another type.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(value, next(each for each in get_args(hint) if each is not type(None)))
    if origin is tuple and isinstance(value, list):
        inner = get_args(hint)
        hints = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_value(each, part) for each, part in zip(value, hints, strict=True))
    if hint is float and not isinstance(value, bool) and isinstance(value, int | float | str):
        return float(value)  # numbers that JSON lacks (nan, infinities) are written as strings
    wanted = {int: int, str: str, bool: bool}.get(hint, Mapping if origin is not None else None)
    if wanted is None or not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is no {hint}")
    return value


SAVED = "checkpoint_saved"  # name of the event that a checkpoint is complete on all ranks
# The lines about saved checkpoints contain this text. The many lines without it are not parsed.
_MARK = f'"{SAVED}"'.encode()


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint. ``rank``: the rank that reported it; None outside of broadcasts."""

    at: float  # unix time
    name: str
    step: int
    size_bytes: int  # size of the checkpoint in the storage
    job: int
    node: int
    rank: int | None = None


def saved_checkpoints(content: bytes) -> Iterator[SavedCheckpoint]:
    """Yield the checkpoints that the lines of `events.jsonl` report. Damaged lines are skipped."""
    for line in whole_lines(content):
        if _MARK in line and (saved := _saved(line)) is not None:
            yield saved


def _saved(line: bytes) -> SavedCheckpoint | None:
    try:
        fields: dict[str, Any] = json.loads(line)
        if fields.get("event") != SAVED:
            return None
        at, name, rank = fields["at"], fields["name"], fields.get("rank")
        step, size_bytes, job, node = (fields[each] for each in ("step", "size_bytes", "job", "node"))
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
    whole = all(type(each) is int for each in (step, size_bytes, job, node, 0 if rank is None else rank))
    if not whole or not isinstance(name, str) or type(at) not in {int, float} or not math.isfinite(at):
        return None
    return SavedCheckpoint(float(at), name, step, size_bytes, job, node, rank)


SYSTEM = "system.jsonl"
CHUNK = 1024 * 1024  # bytes of the file that are read at a time
_ENCODE_SAMPLE = json.JSONEncoder(separators=(",", ":")).encode


def sample_fields(sampled: NodeSampled) -> dict[str, Any]:
    """Return the fields of a sample as JSON values, without its time."""
    fields = asdict(sampled)
    del fields["at"]
    return fields


def sample_line(sampled: NodeSampled, at: float) -> bytes:
    """Return a sample as a line of JSON. ``at``: the unix time, used if the sample has none."""
    return _ENCODE_SAMPLE({"at": sampled.at or at, **sample_fields(sampled)}).encode() + b"\n"


def read_samples(directory: Path) -> list[NodeSampled]:
    """Return all samples of the record in ``directory``, in the order in which they arrived."""
    return list(SampleFile(directory).new_samples())


def samples_in(lines: Iterable[bytes]) -> Iterator[NodeSampled]:
    """Yield the samples of all lines that can be parsed."""
    for line in lines:
        try:
            fields = json.loads(line)
            gpus = tuple(_gpu(each) for each in fields["gpus"])
            whole = {name: int(fields[name]) for name in _WHOLE}
            parts = {name: float(fields[name]) for name in _PARTS}
            yield NodeSampled(at=float(fields["at"]), gpus=gpus, **whole, **parts)  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, OverflowError):  # a full disk damaged the line
            continue


@dataclass(slots=True)
class SampleFile:
    """A reader of the samples of the record in ``directory``, while they may still be written."""

    directory: Path
    _read: int = field(default=0)  # number of bytes that were already read

    @classmethod
    def at_end(cls, directory: Path, size_bytes: int) -> SampleFile:
        """Return a reader that begins ``size_bytes`` before the end of the file, as a long run's file is large."""
        size = 0
        with suppress(FileNotFoundError):
            size = (directory / SYSTEM).stat().st_size
        # reading may begin inside a line; `samples_in` skips such a partial line
        return cls(directory, max(0, size - size_bytes))

    def new_samples(self) -> Iterator[NodeSampled]:
        """Yield the samples that were added since the last call.

        An incomplete last line is read again in the next call.
        """
        with suppress(FileNotFoundError), (self.directory / SYSTEM).open("rb", buffering=0) as file:
            file.seek(self._read)
            rest = b""
            while chunk := file.read(CHUNK):
                content = rest + chunk
                rest = content[content.rfind(b"\n") + 1 :]
                self._read += len(content) - len(rest)
                yield from samples_in(whole_lines(content))


_WHOLE = (
    "node",
    "memory_bytes",
    "memory_total_bytes",
    "disk_bytes",
    "disk_total_bytes",
    "received_bytes",
    "sent_bytes",
)
_PARTS = ("seconds", "cpu", "cpus")


def _gpu(fields: dict[str, Any]) -> GpuSample:
    utilisation, watts = fields["utilisation"], fields["watts"]
    return GpuSample(
        int(fields["index"]),
        None if utilisation is None else float(utilisation),
        int(fields["memory_bytes"]),
        int(fields["memory_total_bytes"]),
        None if watts is None else float(watts),
    )
