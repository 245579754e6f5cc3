"""Conversion of the log records of tasks to bytes and back, for the message `Logged`. No I/O.

The bytes are one msgpack array of records, or lines of JSON, which programs in any language can send to a node's log
socket. Nodes forward the bytes without decoding them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from ...lazy_named_tuple import NamedTuple
from .ranges import LONGEST_S

NAME_CHARS = 128  # maximum length of the name of a metric, a text or an artifact
NAMES = 500  # maximum number of metrics per call
TEXT_CHARS = 64 * 1024  # maximum length of a text, and of params as JSON; longer texts must be logged as files
ARTIFACT_BYTES = 256 * 1024 * 1024
PARAM_LEVELS = 32  # maximum depth of nested objects and arrays in a param; `log_params` creates fewer levels
NOT_IN_JSON = {"nan", "inf", "-inf"}
BATCH = 500  # number of records that are packed together
BATCH_BYTES = 512 * 1024  # maximum size of the records in one message; a single record may be larger
NONE = b"\x90"  # an empty array of records
_STEPS = 2**63
_METRICS, _TEXT, _PARAMS, _ARTIFACT, _SAVED = range(5)


class Metrics(NamedTuple):
    at: float  # unix time of the record
    step: int | None
    values: Mapping[str, float]


class Text(NamedTuple):
    at: float
    step: int | None
    name: str
    text: str


class Params(NamedTuple):
    at: float
    values: Mapping[str, Any]  # name -> value; the values have JSON types


class Artifact(NamedTuple):
    """A record of a logged file. The file's content is sent as a blob with this record."""

    at: float
    name: str
    size_bytes: int
    sha256: str


class Saved(NamedTuple):
    """A record of a checkpoint that is complete in the storage.

    ``size_bytes``: the checkpoint's size in the storage.
    """

    at: float
    name: str
    step: int
    size_bytes: int


Record = Metrics | Text | Params | Artifact | Saved
Packed = tuple[Any, ...]  # a record as a tuple for msgpack: the number of its kind, then its fields


def metrics(at: float, step: int | None, values: Mapping[str, float]) -> Packed:
    return _METRICS, at, step, values


def text(at: float, step: int | None, name: str, content: str) -> Packed:
    return _TEXT, at, step, name, content


def params(at: float, encoded: str) -> Packed:
    """Return a record of params. ``encoded``: the params as the text of a JSON object."""
    return _PARAMS, at, encoded


def artifact(at: float, name: str, size_bytes: int, sha256: str) -> Packed:
    return _ARTIFACT, at, name, size_bytes, sha256


def saved(at: float, name: str, step: int, size_bytes: int) -> Packed:
    return _SAVED, at, name[:NAME_CHARS], step, size_bytes


def packed(records: Sequence[Packed]) -> list[bytes]:
    """Pack records into bytes: one bytes object for each message that is needed."""
    data: bytes = _pack(records)
    if len(data) <= BATCH_BYTES or len(records) == 1:
        return [data]
    half = len(records) // 2
    return packed(records[:half]) + packed(records[half:])


def line(record: Packed) -> bytes:
    """Return a record as a line of JSON, which a node's log socket accepts."""
    match record:
        case (0, at, step, values):
            fields = {"at": at, "step": step, "values": values}
        case (1, at, step, name, text_):
            fields = {"at": at, "step": step, "name": name, "text": text_}
        case (2, at, encoded):
            fields = {"at": at, "params": json.loads(encoded)}
        case (4, at, name, step, size_bytes):
            fields = {"at": at, "checkpoint": name, "step": step, "size_bytes": size_bytes}
        case (_, at, name, size_bytes, sha256):
            fields = {"at": at, "artifact": name, "size_bytes": size_bytes, "sha256": sha256}
        case _:
            raise AssertionError(f"no record: {record!r}")
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace")


def unpacked(data: bytes, at: float) -> Iterator[Record | None]:
    """Yield the records that ``data`` contains, in order; None in place of an invalid record.

    ``at``: the time for JSON records that contain no time, in unix seconds.
    """
    if data[:1] == b"{":
        for each in data.split(b"\n"):
            if each.strip():
                yield _of_line(each, at)
        return
    try:
        records = msgpack.unpackb(data, use_list=False)
        listed = iter(records)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        yield None
        return
    for record in listed:
        yield _of_fields(record)


def count(data: bytes) -> int:
    """Return the number of records in ``data`` without decoding the records."""
    if data[:1] == b"{":
        return data.count(b"\n") + 1
    if not data or not 0x90 <= data[0] <= 0x9F:
        return int.from_bytes(data[1:3], "big") if data[:1] == b"\xdc" else 1
    return data[0] - 0x90


def number(value: Any) -> float:
    """Return a value as a float. Accepts the texts "nan", "inf" and "-inf", because JSON has no such numbers.

    Raises:
        ValueError: the value is not a number.
    """
    if type(value) in {int, float}:
        return float(value)
    if isinstance(value, str) and value in NOT_IN_JSON:
        return float(value)
    raise ValueError(f"not a number: {value!r}")


def _of_fields(record: Any) -> Record | None:  # noqa: PLR0911  a table
    """Return the record that consists of these fields; None if the fields are invalid."""
    try:
        match record:
            case (0, at, step, values):
                return Metrics(_time(at), _step(step), _values(values))
            case (1, at, step, name, content):
                return Text(_time(at), _step(step), _name(name), _text(content))
            case (2, at, content):
                return Params(_time(at), _object(json.loads(_text(content))))
            case (3, at, name, size_bytes, sha256):
                return Artifact(_time(at), _name(name), _size(size_bytes), _digest(sha256))
            case (4, at, name, step, size_bytes):
                return Saved(_time(at), _name(name), _whole(step), _whole(size_bytes))
            case _:
                return None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _of_line(line_: bytes, now: float) -> Record | None:
    try:
        fields = json.loads(line_)
        at, step = fields.get("at") or now, fields.get("step")
        if "values" in fields:
            return Metrics(_time(at), _step(step), _values(fields["values"]))
        if "text" in fields:
            return Text(_time(at), _step(step), _name(fields.get("name") or "text"), _text(fields["text"]))
        if "params" in fields:
            return Params(_time(at), _object(fields["params"]))
        if "checkpoint" in fields:
            return Saved(_time(at), _name(fields["checkpoint"]), _whole(step), _whole(fields["size_bytes"]))
        return Artifact(_time(at), _name(fields["artifact"]), _size(fields["size_bytes"]), _digest(fields["sha256"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _time(at: Any) -> float:
    if type(at) not in {int, float} or not 0 <= at <= LONGEST_S:
        raise ValueError
    return float(at)


def _step(step: Any) -> int | None:
    if step is None:
        return None
    if type(step) is not int or not -_STEPS <= step < _STEPS:
        raise ValueError
    return step


def _values(values: Any) -> dict[str, float]:
    if type(values) is not dict or len(values) > NAMES:
        raise ValueError
    return {_name(name): value if type(value) is float else number(value) for name, value in values.items()}


def _name(name: Any) -> str:
    if type(name) is not str or not 0 < len(name) <= NAME_CHARS:
        raise ValueError
    return name


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > TEXT_CHARS:
        raise ValueError
    return value


def _object(values: Any) -> dict[str, Any]:
    if type(values) is not dict or not _is_within(values, PARAM_LEVELS + 1):
        raise ValueError
    return values


def _is_within(value: Any, levels: int) -> bool:
    """Return whether a JSON value is nested at most ``levels`` deep.

    JSON encoders fail if a value is nested too deep.
    """
    if type(value) is dict:
        value = value.values()
    elif type(value) is not list:
        return True
    return levels > 0 and all(_is_within(each, levels - 1) for each in value)


def _size(size_bytes: Any) -> int:
    if type(size_bytes) is not int or not 0 <= size_bytes <= ARTIFACT_BYTES:
        raise ValueError
    return size_bytes


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _STEPS:
        raise ValueError
    return value


def _digest(sha256: Any) -> str:
    if type(sha256) is not str or len(sha256) != 64 or math.isnan(int(sha256, 16)):
        raise ValueError
    return sha256


_pack = msgpack.Packer(use_bin_type=True, unicode_errors="replace").pack
