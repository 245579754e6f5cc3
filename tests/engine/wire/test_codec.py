"""Frames: golden bytes per message, round trips, every split point, garbage."""

from __future__ import annotations

import contextlib
import math
import re
import typing
from collections.abc import Callable, Sequence

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.wire import codec
from outrider.engine.wire import messages as checkpoint_messages
from outrider.engine.wire import messages as m
from outrider.engine.wire.codec import ProtocolError, Splitter, decode, encode
from outrider.engine.wire.ranges import LONGEST_S

# What a second implementation must write, byte for byte. A line here never changes; a new version adds lines.
GOLDEN: list[tuple[m.Message, str]] = [
    (m.Hello(1, "s", 7, "3.11", "3.1.2", 30.0, {"slots": 1}), (
        "00000022 98 01 01 a173 07 a4332e3131 a5332e312e32 cb403e000000000000 81a5736c6f747301"
    )),
    (m.Welcome(1, True, 7, {"pid": 5}, ("b1",), (4000,)), "00000013 97 02 01 c3 07 81a370696405 91a26231 91cd0fa0"),
    (m.Refused("no", {}), "00000006 93 03 a26e6f 80"),
    (m.Ack(300), "00000005 92 04 cd012c"),
    (m.Ping(1, 5), "00000004 93 05 01 05"),
    (m.Pong(1, 7, 6, (2, 3)), "00000008 95 06 01 07 06 92 02 03"),
    (m.Compare((1, 2)), "00000005 92 47 92 01 02"),
    (m.Bye(), "00000002 91 07"),
    (m.View(b"\x80"), "00000005 92 0a c40180"),
    (m.Define(b"\x01", b"\x02", None), "00000009 94 0b c40101 c40102 c0"),
    (m.Run(9, b"\x01", m.Value(b"\x02", (1, 8), "b"), 3, 1, 0.5, 4, None), (
        "0000001c 99 0c 09 c40101 93c40102 920108 a162 03 01 cb3fe0000000000000 04 c0"
    )),
    (m.Kill(9), "00000003 92 0d 09"),
    (m.Recall((9, 10)), "00000005 92 0e 92090a"),
    (m.Drop(("b",)), "00000005 92 0f 91a162"),
    (m.Adopt("b", "/p", 8), "00000008 94 10 a162 a22f70 08"),
    (m.Lend(9, ("b",)), "00000006 93 11 09 91a162"),
    (m.Hold(9, 2000, 4, 1), "00000008 95 16 09 cd07d0 04 01"),
    (m.ShowStacks(5, 70000), "00000008 93 17 05 ce00011170"),
    (m.Profile(9, "p", 5, 10.0), "0000000f 95 18 09 a170 05 cb4024000000000000"),
    (m.Refer(9, ("n",), (m.Value(b"", (8,), "b"),)), "0000000e 94 19 09 91a16e 9193c4009108a162"),
    (m.MoveToDisk(("b",)), "00000005 92 1a 91a162"),
    (m.Keys(b"\x01", b"\x02"), "00000008 93 3c c40101 c40102"),
    (m.Serve("t", "b", 8), "00000007 94 3d a174 a162 08"),
    (m.Unserve("t"), "00000004 92 3e a174"),
    (m.Pull("b", 8, "t", "h", 9), "0000000a 96 3f a162 08 a174 a168 09"),
    (m.Digest("b"), "00000004 92 40 a162"),
    (m.Copy("b", 8, "t", "h", 9), "0000000a 96 44 a162 08 a174 a168 09"),
    (m.StopAt(3, 1, 40), "00000005 94 13 03 01 28"),
    (m.Input(9, 0, None, b"\x01"), "00000008 95 14 09 00 c0 c40101"),
    (m.Credit(9, -1, 16), "00000005 94 15 09 ff 10"),
    (m.Started(9), "00000003 92 1e 09"),
    (m.Done(9, m.Value(b"\x02"), 70000), "0000000e 94 1f 09 93c40102c0c0 ce00011170"),
    (
        m.Failed(9, "call", "E", "m", "t", None, 1, "3.11", 5),
        "00000016 9a 20 09 a463616c6c a145 a16d a174 c0 01 a4332e3131 05",
    ),
    (m.Ended(9, m.Cause.EXIT, 3, "", 5), "0000000b 96 21 09 a465786974 03 a0 05"),
    (m.Returned((9,)), "00000004 92 22 9109"),
    (m.Yield(9, m.Value(b"\x02")), "00000009 93 23 09 93c40102c0c0"),
    (m.Output(9, 2, b"x\n", 0), "00000009 95 24 09 02 c402780a 00"),
    (m.PreemptionNotice("gcp", 30.0, m.Peer(3, 1, 2, 0)), "00000014 94 25 a3676370 cb403e000000000000 9403010200"),
    (m.Ports(7, (4000,)), "00000007 93 26 07 91cd0fa0"),
    (m.PortsTaken(7, (4000,)), "00000007 93 1d 07 91cd0fa0"),
    (m.StopChecks(3, 1, 2, 39), "00000006 95 27 03 01 02 27"),
    (m.Unfit("full", True), "00000008 93 28 a466756c6c c3"),
    (m.Logged(9, b"\x90", 2), "00000008 95 29 09 c40190 02 c0"),
    (m.Sampled(5.0, 0.5, 2.0, 1, 2, 3, 4, 5, 6, (m.GpuSample(0, None, 7, 8, 0.5),)), (
        "00000032 9b 2b cb4014000000000000 cb3fe0000000000000 cb4000000000000000 01 02 03 04 05 06"
        "91 9500c00708cb3fe0000000000000"
    )),
    (m.Stacks(5, 9, "x", 4), "00000007 95 2c 05 09 a178 04"),
    (m.Profiled(9, "p", "a", "x"), "00000009 95 2d 09 a170 a161 a178"),
    (m.NotMoved("b", "x"), "00000006 93 2e a162 a178"),
    (checkpoint_messages.Replicate("b", "/p", 8, None), "00000009 95 1b a162 a22f70 08 c0"),
    (checkpoint_messages.Safe(("b",)), "00000005 92 1c 91a162"),
    (checkpoint_messages.Kept(9, "r", 0, 3, 2, False, 8, 7, "b"), "0000000d 9a 2f 09 a172 00 03 02 c2 08 07 a162"),
    (checkpoint_messages.Stored(9, "r", 0, 3), "00000007 95 30 09 a172 00 03"),
    (checkpoint_messages.Joined(9), "00000003 92 46 09"),
    (checkpoint_messages.Replicated("b", "/p", ""), "00000008 94 31 a162 a22f70 a0"),
    (m.Serving("t", None, "x"), "00000007 94 41 a174 c0 a178"),
    (m.Arrived("b", 8, "d", True, "x"), "0000000a 96 42 a162 08 a164 c3 a178"),
    (m.Put("b", 8), "00000005 93 32 a162 08"),
    (m.Get("b"), "00000004 92 33 a162"),
    (m.Have("b", 8), "00000005 93 34 a162 08"),
    (m.PutRest("b", 8, 3), "00000006 94 36 a162 08 03"),
    (m.GetRest("t", 3), "00000005 93 43 a174 03"),
    (m.Missing("b"), "00000004 92 35 a162"),
]  # fmt: skip
MESSAGES = [message for message, _ in GOLDEN]


def _same(messages: Sequence[m.Message], others: Sequence[m.Message]) -> bool:
    """Named tuples of different classes are equal when their fields are."""
    return messages == others and [type(x) for x in messages] == [type(x) for x in others]


def decoded(splitter: Splitter, data: bytes) -> list[m.Message]:
    return [decode(body) for body in splitter.feed(data)]


def _id(message: m.Message) -> str:
    return type(message).__name__


def test_every_message_has_its_tag_and_its_golden_bytes() -> None:
    every = set(typing.get_args(m.Message))
    assert set(codec.TAGS) == every == {type(message) for message in MESSAGES}
    assert len(set(codec.TAGS.values())) == len(every)


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=map(_id, MESSAGES))
def test_a_message_is_written_as_ever(message: m.Message, golden: str) -> None:
    assert encode(message) == bytes.fromhex(golden)


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=map(_id, MESSAGES))
def test_and_read_as_ever(message: m.Message, golden: str) -> None:
    assert _same(decoded(Splitter(), bytes.fromhex(golden)), [message])


@pytest.mark.parametrize("message", MESSAGES, ids=_id)
def test_and_read_once_more_on_the_same_machine(message: m.Message) -> None:
    assert _same([codec.decode_again(codec.body(message))], [message])


@pytest.mark.parametrize("read", [decode, codec.decode_again])
def test_what_is_read_has_the_types_of_its_class(read: Callable[[bytes], m.Message]) -> None:
    run = read(codec.body(m.Run(1, b"f", m.Value(b"x"), 1, 1, None, 0, None)))
    assert isinstance(run, m.Run)
    assert isinstance(run.args, m.Value)
    ended = decode(codec.body(m.Ended(1, m.Cause.MEMORY, 9, "")))
    assert isinstance(ended, m.Ended)
    assert ended.cause is m.Cause.MEMORY


def test_a_stream_may_be_cut_anywhere() -> None:
    data = b"".join(map(encode, MESSAGES))
    for split in range(len(data) + 1):
        splitter = Splitter()
        assert _same([*decoded(splitter, data[:split]), *decoded(splitter, data[split:])], MESSAGES)


def test_or_arrive_byte_by_byte() -> None:
    splitter = Splitter()
    data = b"".join(map(encode, MESSAGES))
    assert _same([m for byte in data for m in decoded(splitter, bytes([byte]))], MESSAGES)


def test_the_first_frame_alone_can_be_taken_off_a_stream() -> None:
    splitter = Splitter()
    frame = encode(m.Put("b", 3))
    assert splitter.first(frame[:3]) is None
    body = splitter.first(frame[3:] + b"xyz")
    assert body is not None
    assert decode(body) == m.Put("b", 3)
    assert splitter.tail == b"xyz"


class Counted(bytes):
    """Bytes that count how many of them were copied by cutting or adding; a join is not seen."""

    copied = 0

    def __getitem__(self, key: typing.Any) -> typing.Any:
        found = super().__getitem__(key)
        if isinstance(found, bytes):
            Counted.copied += len(found)
            return Counted(found)
        return found

    def __add__(self, other: typing.Any) -> Counted:
        Counted.copied += len(self) + len(other)
        return Counted(super().__add__(other))

    def __radd__(self, other: bytes) -> Counted:
        Counted.copied += len(self) + len(other)
        return Counted(other + bytes(self))


@pytest.mark.parametrize("frames", [1, 10, 10_000])
@pytest.mark.parametrize("piece", [7, 100_000, 1 << 20])
def test_the_work_of_a_stream_grows_with_its_length_alone(
    frames: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large its frames are, and in whatever pieces it comes: a peer decides on both."""
    monkeypatch.setattr(Counted, "copied", 0)
    data = codec.frame(bytes(100_000 // frames)) * frames
    splitter, bodies, most = Splitter(), 0, 0
    for at in range(0, len(data), piece):
        bodies += len(splitter.feed(Counted(data[at : at + piece])))
        most = max(most, len(splitter._pieces or ()))
    assert bodies == frames
    assert Counted.copied <= 3 * len(data)
    assert most >= 1 or piece >= len(data)
    if frames == 1 and piece < 100_000:
        assert most > 100_000 // piece - 2, "its pieces were put together before it was whole"


def test_a_frame_that_announces_too_much_is_refused_before_it_arrives() -> None:
    announced = (codec.MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="at most 1048576"):
        Splitter().feed(announced)
    with pytest.raises(ProtocolError, match="at most 1048576"):
        Splitter().first(announced)


def test_nobody_can_send_one_either() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        encode(m.View(bytes(codec.MAX_FRAME_BYTES)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",  # never used in msgpack
        b"\x05",  # not an array
        b"\x90",  # no tag
        b"\x92\x63\x00",  # an unknown tag
        b"\x92\xa1a\x00",  # a tag that is no number
        b"\x92\x90\x00",  # nor hashable as one
        b"\x91\x04",  # Ack without its number
        b"\x93\x04\x01\x02",  # with one too many
        b"\x92\x04\xa11",  # as text
        b"\x92\x04\xc3",  # as truth
        b"\x92\x04\x01\x00",  # something behind it
        b"\x92\x0e\x92\x09\xa1a",  # Recall of a text
        b"\x92\x0e\x91\xff",  # of a negative number
        b"\x92\x0f\x91\x01",  # Drop of a number
        b"\x93\x23\x09\x92\xc4\x01\x02\xc0",  # Yield with half a value
        b"\x93\x23\x09\x93\xc4\x01\x02\x91\xff\xc0",  # with a negative size
        b"\x95\x21\x09\xa4exot\x03\xa0",  # an unknown cause
        b"\x93\x03\xa2\xff\xfe\x80",  # text that is not UTF-8
        b"\x93\x03\xa2no\x81\x01\x02",  # facts without names
        b"\x92\x0a\xc6\xff\xff\xff\xff",  # bytes that announce 4 GiB
        b"\x91" * 2000,  # arrays in arrays
    ],
)
def test_garbage_is_told_apart(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)


@given(st.binary(max_size=64))
@settings(max_examples=200)
def test_arbitrary_bytes_are_a_message_or_a_protocol_error(body: bytes) -> None:
    try:
        message = decode(body)
    except ProtocolError:
        return
    assert isinstance(message, typing.get_args(m.Message))


@given(st.sampled_from(MESSAGES), st.integers(0, 400), st.integers(1, 255))
@settings(max_examples=200)
def test_a_flipped_byte_is_a_message_or_a_protocol_error(message: m.Message, at: int, flip: int) -> None:
    body = bytearray(codec.body(message))
    body[at % len(body)] ^= flip
    try:
        decode(bytes(body))
    except ProtocolError:
        pass


_texts = st.text(max_size=20)
_values = st.builds(
    m.Value,
    st.binary(max_size=40),
    st.none() | st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    st.none() | _texts,
)
_numbers = st.integers(0, 2**63 - 1)


@given(
    st.one_of(
        st.builds(m.Run, _numbers, st.binary(), _values, _numbers, _numbers, st.none() | st.floats(0, LONGEST_S),
                  _numbers, st.none() | st.binary(max_size=30)),
        st.builds(m.Done, _numbers, _values, _numbers),
        st.builds(m.Input, _numbers, st.integers(0, 2**31 - 1), st.none() | _values, st.none() | st.binary(max_size=9)),
        st.builds(m.Failed, _numbers, _texts, _texts, _texts, _texts, st.none() | _values, _numbers, ago_us=_numbers),
        st.builds(m.Credit, _numbers, st.integers(-1, 50), _numbers),
        st.builds(m.Recall, st.lists(_numbers).map(tuple)),
    )
)  # fmt: skip
@settings(max_examples=200)
def test_what_is_written_is_read(message: m.Message) -> None:
    assert _same(decoded(Splitter(), encode(message)), [message])


RANGES = [
    (kind, field, least, most)
    for kind, form in ((form.make, form) for form in map(codec._FORMS.__getitem__, codec._MAKES))
    for index, least, most in form.ranges
    for field in [kind._fields[index - 1]]
]
EXAMPLES = {type(message): message for message in MESSAGES}


_fields = st.one_of(
    _numbers, st.just(2**63), st.just(-1), st.booleans(), st.floats(), st.none(), st.binary(max_size=4), _texts
)
_odd_values = (
    st.lists(_fields | st.tuples(_numbers), max_size=4) | st.tuples(st.binary(), st.none(), st.none()) | _fields
)


@given(
    st.one_of(
        st.tuples(st.just(12), _fields, _fields, _odd_values, _fields, _fields, _fields, _fields, _fields),
        st.tuples(st.just(12), _numbers, st.binary(), _odd_values, _numbers, _numbers, st.none(), _fields, st.none()),
        st.tuples(st.sampled_from([31, 31.0]), _fields, _odd_values, _fields),
        st.lists(_fields, max_size=9).map(lambda fields: (31, *fields)),
    )
)  # fmt: skip
@settings(max_examples=300)
def test_the_usual_messages_are_checked_as_all_others_are(fields: tuple[object, ...]) -> None:
    body: typing.Any = msgpack.packb(fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_USUAL", {})
        expected = _outcome(body)
    assert _outcome(body) == expected


def _outcome(body: bytes) -> tuple[type, object]:
    try:
        message = decode(body)
    except ProtocolError as error:
        return ProtocolError, str(error)
    return type(message), message


def test_every_number_has_a_range() -> None:
    """A bare number in `messages` cannot be read at all."""
    for kind in typing.get_args(m.Message):
        for name, annotation in kind.__annotations__.items():
            assert not re.search(r"\b(int|float)\b", annotation), f"{kind.__name__}.{name}"
    with pytest.raises(KeyError):
        codec._kind(int)


@pytest.mark.parametrize(("kind", "field", "least", "most"), RANGES, ids=str)
def test_a_number_is_read_in_its_range_and_refused_beyond(
    kind: type[m.Message], field: str, least: float, most: float
) -> None:
    for number in (least, most):
        assert getattr(decode(codec.body(EXAMPLES[kind]._replace(**{field: number}))), field) == number  # type: ignore[attr-defined]
    beyond = (
        [least - 1, most + 1] if isinstance(most, int) else [-1.0, 1.1 * most, math.inf, -math.inf, math.nan, -1e300]
    )
    for number in (*beyond, *(sign * 2**exponent for exponent in (63, 64) for sign in (1, -1))):
        with contextlib.suppress(OverflowError), pytest.raises(ProtocolError):  # msgpack has no such number
            decode(codec.body(EXAMPLES[kind]._replace(**{field: number})))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "message",
    [
        m.Done(1, m.Value(b"", (2**48,), "b"), 0),
        m.Failed(1, "call", "E", "", "", m.Value(b"", (2**63,), "b"), 0),
        m.Ports(0, (4000, 0)),
        m.Ports(0, (65536,)),
        m.PortsTaken(-1, ()),
        m.Welcome(1, True, 0, {}, (), (2**40,)),
        m.PreemptionNotice("x" * 257, 1.0),
        m.PreemptionNotice("x", 1.0, m.Peer(1, 1, -1, 0)),
        m.PreemptionNotice("x", 1.0, m.Peer(1, 1, 1, 2**63)),
    ],
    ids=str,
)
def test_what_is_in_an_array_or_a_name_is_held_to_its_range_too(message: m.Message) -> None:
    with pytest.raises(ProtocolError):
        decode(codec.body(message))
