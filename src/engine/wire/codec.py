"""Frames: a 4-byte big-endian length, then one msgpack array ``[tag, *fields]``. No I/O.

The annotations in ``messages`` define the checks: arity, types and ranges of every message. So every result of `decode`
satisfies the annotations of its class. Measured (Python 3.11, msgpack 1.2): a `Run` takes 0.5 us to encode, 1.0 us to
decode.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgpack

from ...lazy_named_tuple import NamedTuple
from . import checkpoint_messages
from . import messages as m
from .ranges import Range

MAX_FRAME_BYTES = 1 << 20  # size limit of a body; larger values are sent as blobs
HEADER_BYTES = 4

_MOST = 2**63 - 1  # maximum of a `messages.Number`

# Stable for ever: a number is never assigned to another message. Version 1 of the protocol used 18.
TAGS: dict[type[m.Message], int] = {
    m.Hello: 1,
    m.Welcome: 2,
    m.Refused: 3,
    m.Ack: 4,
    m.Ping: 5,
    m.Pong: 6,
    m.Bye: 7,
    m.View: 10,
    m.Define: 11,
    m.Run: 12,
    m.Kill: 13,
    m.Recall: 14,
    m.Drop: 15,
    m.Adopt: 16,
    m.Lend: 17,
    m.StopAt: 19,
    m.Input: 20,
    m.Credit: 21,
    m.Hold: 22,
    m.ShowStacks: 23,
    m.Profile: 24,
    m.Refer: 25,
    m.MoveToDisk: 26,
    checkpoint_messages.Replicate: 27,
    checkpoint_messages.Safe: 28,
    m.PortsTaken: 29,
    m.Compare: 71,
    m.Keys: 60,
    m.Serve: 61,
    m.Unserve: 62,
    m.Pull: 63,
    m.Digest: 64,
    m.Serving: 65,
    m.Arrived: 66,
    m.GetRest: 67,
    m.Copy: 68,
    m.Started: 30,
    m.Done: 31,
    m.Failed: 32,
    m.Ended: 33,
    m.Returned: 34,
    m.Yield: 35,
    m.Output: 36,
    m.PreemptionNotice: 37,
    m.Ports: 38,
    m.StopChecks: 39,
    m.Unfit: 40,
    m.Logged: 41,
    m.Sampled: 43,
    m.Stacks: 44,
    m.Profiled: 45,
    m.NotMoved: 46,
    checkpoint_messages.Kept: 47,
    checkpoint_messages.Stored: 48,
    checkpoint_messages.Replicated: 49,
    checkpoint_messages.Joined: 70,
    m.Put: 50,
    m.Get: 51,
    m.Have: 52,
    m.Missing: 53,
    m.PutRest: 54,
}


class ProtocolError(ValueError):
    """Raised when the other side violates the protocol: close its channel, and nothing else."""


def encode(message: m.Message) -> bytes:
    """Return the message as one frame. Raises ProtocolError if the frame would exceed `MAX_FRAME_BYTES`."""
    return frame(body(message))


def body(message: m.Message) -> bytes:
    """Return the encoded message without the length. `frame` adds the length; workers receive bodies without it."""
    packed: bytes = _pack((TAGS[type(message)], *message))
    return packed


def frame(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class SharedFrame:
    """The frame of a `View` in two parts: many frames share the second part, so it is stored only once."""

    __slots__ = ("head", "tail")

    def __init__(self, own: bytes, shared: bytes) -> None:
        """Encode a view, which is ``own`` followed by ``shared``.

        Raises ProtocolError if it is too large for a frame.
        """
        size = len(own) + len(shared)
        bin_header = b"\xc6" + size.to_bytes(4, "big")  # msgpack's "bin 32", which is valid for any size
        body = bytes((0x92, TAGS[m.View])) + bin_header + own
        if len(body) + len(shared) > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {len(body) + len(shared)} bytes; at most {MAX_FRAME_BYTES} are allowed")
        self.head = (len(body) + len(shared)).to_bytes(HEADER_BYTES, "big") + body
        self.tail = shared

    def __len__(self) -> int:
        return len(self.head) + len(self.tail)


def decode(body: bytes) -> m.Message:
    """Return the message of a frame's body.

    Raises:
        ProtocolError: not msgpack, an unknown tag, fields that do not fit the message, or a number out of its range.
    """
    try:
        fields = _unpack(body, use_list=False)
        usual = _USUAL.get(fields[0])
        if usual is not None and (usual_message := usual(fields)) is not None:
            return usual_message
        make, shapes, ranges, refine, _ = _FORMS[fields[0]]
    except (ValueError, TypeError, LookupError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not a message: {error!r} in {body[:40]!r}") from error
    if tuple(map(type, fields)) not in shapes:
        raise ProtocolError(f"not a {make.__name__}: {body[:40]!r}")
    for index, least, most in ranges:
        number = fields[index]
        if number is not None and not least <= number <= most:
            raise ProtocolError(f"{number} is out of range: {make._fields[index - 1]} of a {make.__name__}")
    if refine:
        fields = list(fields)
        for index, refined in refine:
            if fields[index] is not None:
                fields[index] = refined(fields[index])
    message: m.Message = tuple.__new__(make, fields[1:])
    return message


def _usual_run(fields: tuple[Any, ...]) -> m.Message | None:
    if len(fields) != 9:
        return None
    tag, attempt, function, args, job, number, timeout_s, flags, world = fields
    if (
        type(tag) is type(attempt) is type(job) is type(number) is type(flags) is int
        and timeout_s is None
        and type(function) is bytes
        and (world is None or type(world) is bytes)
        and _is_usual_value(args)
        and 0 <= attempt <= _MOST
        and 0 <= job <= _MOST
        and 0 <= number <= _MOST
        and 0 <= flags <= _MOST
    ):
        value = tuple.__new__(m.Value, args)
        return tuple.__new__(m.Run, (attempt, function, value, job, number, None, flags, world))
    return None


def _usual_done(fields: tuple[Any, ...]) -> m.Message | None:
    if len(fields) != 4:
        return None
    tag, attempt, value, duration_us = fields
    if (
        type(tag) is type(attempt) is type(duration_us) is int
        and _is_usual_value(value)
        and 0 <= attempt <= _MOST
        and 0 <= duration_us <= _MOST
    ):
        return tuple.__new__(m.Done, (attempt, tuple.__new__(m.Value, value), duration_us))
    return None


def _is_usual_value(raw: Any) -> bool:
    return type(raw) is tuple and len(raw) == 3 and type(raw[0]) is bytes and raw[1] is None and raw[2] is None


def decode_again(body: bytes) -> m.Message:
    """Decode a body that `decode` has validated in another process of this machine.

    Twice as fast, as it checks nothing.
    """
    fields = [*_unpack(body, use_list=False)]
    form = _FORMS[fields[0]]
    for index, make in form.records:
        if fields[index] is not None:
            fields[index] = tuple.__new__(make, fields[index])
    message: m.Message = tuple.__new__(form.make, fields[1:])
    return message


class Splitter:
    """A splitter of a byte stream into frame bodies; it keeps an incomplete frame until the next call.

    However the stream arrives, each byte is copied once: an incomplete frame stays in its pieces until it is complete.
    """

    __slots__ = ("_pieces", "_size", "_wanted")

    def __init__(self) -> None:
        self._pieces: list[bytes] | None = None  # None: no pieces
        self._size = 0  # total size of the pieces in bytes
        self._wanted = HEADER_BYTES  # bytes needed before the next frame, or its length, can be read

    @property
    def tail(self) -> bytes:
        """Return the received bytes that do not form a complete frame yet."""
        return b"".join(self._pieces or ())

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies of the frames that ``data`` completes.

        Raises:
            ProtocolError: the length of a frame exceeds `MAX_FRAME_BYTES`. No byte of ``data`` is kept.
        """
        # exactly one complete frame, as for a single call: this path takes a quarter of the time
        if not self._size and len(data) > HEADER_BYTES:
            (size,) = _size_at(data)
            if size == len(data) - HEADER_BYTES and size <= MAX_FRAME_BYTES:
                return [data[HEADER_BYTES:]]
        data = self._joined(data)
        bodies: list[bytes] = []
        offset = 0
        while (stop := self._end_of_frame(data, offset)) is not None:
            bodies.append(data[offset + HEADER_BYTES : stop])
            offset = stop
        self._keep(data[offset:] if offset else data)
        return bodies

    def first(self, data: bytes) -> bytes | None:
        """Return the body of the first frame when it is complete, else None.

        `tail` then returns the bytes after that frame.
        """
        data = self._joined(data)
        stop = self._end_of_frame(data, 0)
        self._keep(data if stop is None else data[stop:])
        return None if stop is None else data[HEADER_BYTES:stop]

    def _joined(self, data: bytes) -> bytes:
        """Return all bytes so far if they suffice for a frame or for its length; else keep them and return b""."""
        if not self._size:
            return data
        if self._size + len(data) < self._wanted:
            self._keep(data)
            return b""
        pieces, self._pieces, self._size = self._pieces or (), None, 0
        return b"".join((*pieces, data))

    def _end_of_frame(self, data: bytes, offset: int) -> int | None:
        """Return the offset at which the frame that begins at ``offset`` ends; None if it is not complete yet."""
        if len(data) - offset < HEADER_BYTES:
            self._wanted = HEADER_BYTES if data else self._wanted
            return None
        (size,) = _size_at(data, offset)
        if size > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are allowed")
        stop = offset + HEADER_BYTES + size
        if stop <= len(data):
            return int(stop)
        self._wanted = HEADER_BYTES + size
        return None

    def _keep(self, data: bytes) -> None:
        if data:
            if self._pieces is None:
                self._pieces = []
            self._pieces.append(data)
            self._size += len(data)


class _Form(NamedTuple):
    """The rules to check and create one kind of message."""

    make: type[Any]
    shapes: frozenset[tuple[type, ...]]  # all allowed combinations of the types of the tag and the fields
    ranges: tuple[tuple[int, float, float], ...]  # (index, minimum, maximum) of each numeric field
    # (index, check) of each field for which type and range are not sufficient
    refine: tuple[tuple[int, Callable[[Any], Any]], ...]
    records: tuple[tuple[int, type[Any]], ...]  # (index, class) of each field that is itself a record with fields


class _Kind(NamedTuple):
    """A type that a field may have, with its range and its check."""

    types: tuple[type, ...]
    range: Range | None = None  # only for numbers
    refine: Callable[[Any], Any] | None = None
    record: type[Any] | None = None  # a named tuple as a field of the message


def _record(form: _Form) -> Callable[[Any], Any]:
    """Return the check of a field that is a record; the check returns the field as an instance of ``form.make``."""
    make, shapes, ranges, refine, _ = form

    def check(raw: Any) -> Any:
        if tuple(map(type, raw)) not in shapes:
            raise ProtocolError(f"not a {make.__name__}: {raw!r:.80}")
        for index, least, most in ranges:
            if raw[index] is not None and not least <= raw[index] <= most:
                raise ProtocolError(f"{raw[index]} is out of range: {make._fields[index]} of a {make.__name__}")
        for index, refined in refine:
            if raw[index] is not None:
                refined(raw[index])
        return tuple.__new__(make, raw)

    return check


def _all(kind: _Kind) -> Callable[[Any], Any]:
    """Return the check for all items of an array, or all names of a map.

    Items that are records are converted to their class.
    """
    types, (least, most), record = kind.types, kind.range or (0, 0), kind.refine if kind.record else None

    def check(raw: Any) -> Any:
        for item in raw:
            if type(item) not in types or (kind.range and not least <= item <= most):
                raise ProtocolError(f"not what an array or a map may have: {item!r:.80}")
        return raw if record is None else tuple(map(record, raw))

    return check


def _length(range_: Range) -> Callable[[Any], Any]:
    def check(raw: str) -> str:
        if not range_.least <= len(raw) <= range_.most:
            raise ProtocolError(f"a text of {len(raw)} characters; at most {range_.most} are allowed")
        return raw

    return check


def _cause(raw: Any) -> m.Cause:
    try:
        return m.Cause(raw)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _kind(hint: Any) -> _Kind:
    """Return the rules for an annotation in `messages`.

    A bare ``int`` or ``float`` is not allowed: numbers need a range.
    """
    if get_origin(hint) is Annotated:
        base, range_ = get_args(hint)
        if base is str:
            return _Kind((str,), refine=_length(range_))
        return _Kind((float, int) if base is float else (base,), range_)  # some languages write 5.0 as 5
    if get_origin(hint) is tuple:
        return _Kind((tuple,), refine=_all(_kind(get_args(hint)[0])))
    if get_origin(hint) is dict:
        return _Kind((dict,), refine=_all(_kind(str)))
    return _KINDS[hint]


_KINDS: dict[Any, _Kind] = {
    str: _Kind((str,)),
    bytes: _Kind((bytes,)),
    bool: _Kind((bool,)),
    type(None): _Kind((type(None),)),
    m.Cause: _Kind((str,), refine=_cause),
}


@cache
def _hint(text: str, module: str) -> Any:
    """Evaluate an annotation.

    Cached, because messages share a few annotations, and `typing.get_type_hints` compiles each.
    """
    return eval(text, vars(sys.modules[module]))  # noqa: S307  only annotations of Outrider's messages


def _form(make: type[Any], *before: _Kind) -> _Form:
    hints = [_hint(text, make.__module__) for text in make.__annotations__.values()]
    fields = [[kind] for kind in before]
    alternatives = [get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,) for hint in hints]
    fields += [[_kind(hint) for hint in each] for each in alternatives]
    shapes = frozenset(product(*([type_ for kind in kinds for type_ in kind.types] for kinds in fields)))
    numbers = ((index, kind.range) for index, kinds in enumerate(fields) for kind in kinds)
    ranges = tuple((index, range_.least, range_.most) for index, range_ in numbers if range_)
    refine = tuple((index, kind.refine) for index, kinds in enumerate(fields) for kind in kinds if kind.refine)
    records = tuple((index, kind.record) for index, kinds in enumerate(fields) for kind in kinds if kind.record)
    return _Form(make, shapes, ranges, refine, records)


_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_unpack = msgpack.unpackb
# Faster decoders for the two messages of a single call, if they have no blob, time limit or buffers: they take a third
# of the time of the general rules. They return None for any other message, which the general rules then check.
_USUAL: dict[int, Callable[[tuple[Any, ...]], m.Message | None]] = {
    TAGS[m.Run]: _usual_run,
    TAGS[m.Done]: _usual_done,
}
_size_at = struct.Struct(">I").unpack_from
_TAG = _Kind((int,))
for _make in (m.Value, m.Peer, m.GpuSample):
    _KINDS[_make] = _Kind((tuple,), refine=_record(_form(_make)), record=_make)
_MAKES = {tag: make for make, tag in TAGS.items()}


class _Forms(dict[int, _Form]):
    """The form of each message, by its tag. Forms are created at first use, because most kinds of messages are rare."""

    def __missing__(self, tag: int) -> _Form:
        form = self[tag] = _form(_MAKES[tag], _TAG)
        return form


# These messages reach every process that is forked from here, or its client, before the first result.
_AT_ONCE = (m.Hello, m.Welcome, m.View, m.Define, m.Run, m.Done, m.Ack, m.Ping, m.Pong)
_FORMS = _Forms({TAGS[each]: _form(each, _TAG) for each in _AT_ONCE})
