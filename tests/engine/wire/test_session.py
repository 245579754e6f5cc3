"""A session's rules one by one; the machine in `test_session_machine` has them together."""

from __future__ import annotations

import pytest

from outrider.engine.wire import codec, session
from outrider.engine.wire.codec import ProtocolError, encode
from outrider.engine.wire.messages import Ack, Credit, Kill, Message, Ping, Pong, Started, View
from outrider.engine.wire.session import ACK_EVERY, FOR_CLIENTS, FOR_NODES, UNCOUNTED, Session, attempt_digest


@pytest.fixture
def client() -> Session:
    session = Session()
    session.resume(0)
    session.flush()
    return session


def test_what_is_sent_before_the_first_connection_waits_for_it() -> None:
    session = Session()
    session.send(Kill(1))
    assert session.flush() == b""
    session.resume(0)
    assert session.flush() == encode(Ack(0)) + encode(Kill(1))


def test_a_relayed_body_is_kept_like_a_message(client: Session) -> None:
    client.send_body(codec.body(Kill(1)))
    assert client.flush() == encode(Kill(1))
    client.lost()
    client.resume(0)
    assert client.flush().endswith(encode(Kill(1)))


@pytest.mark.parametrize("size", [0, 10, 300, 70_000])
def test_a_frame_that_others_have_a_part_of_is_kept_like_a_message(client: Session, size: int) -> None:
    shared, server = b"s" * size, Session(FOR_NODES)
    client.send_shared(codec.SharedFrame(b"own", shared))
    sent = client.flush()
    assert client.kept_bytes == len(sent)
    assert server.feed(sent) == [View(b"own" + shared)]
    client.lost()
    client.resume(0)
    assert client.flush().endswith(sent)
    client.feed(encode(Ack(1)))
    assert client.kept_bytes == 0
    with pytest.raises(ProtocolError):
        codec.SharedFrame(b"own", bytes(codec.MAX_FRAME_BYTES))


def test_a_heartbeat_acknowledges(client: Session) -> None:
    client.feed(encode(Started(1)))
    client.send(Kill(1))
    assert client.flush() == encode(Kill(1))
    client.send(Ping(5))
    assert client.flush() == encode(Ack(1)) + encode(Ping(5))


def test_a_heartbeat_with_nothing_to_acknowledge_is_alone(client: Session) -> None:
    client.feed(encode(Started(1)))
    client.send(Ping(5))
    client.flush()
    client.send(Ping(6))
    assert client.flush() == encode(Ping(6))


def test_many_frames_are_acknowledged_without_one(client: Session) -> None:
    client.feed(encode(Started(1)) * (ACK_EVERY - 1))
    assert client.flush() == b""
    client.feed(encode(Started(1)))
    assert client.pending
    assert client.flush() == encode(Ack(ACK_EVERY))
    assert client.flush() == b""


def test_what_is_acknowledged_is_let_go(client: Session) -> None:
    client.send(Kill(1))
    client.send(Kill(2))
    client.feed(encode(Ack(1)))
    assert client.kept_bytes == len(encode(Kill(2)))


def test_an_end_that_speaks_and_acknowledges_too_little_breaks_the_protocol() -> None:
    """SESSION-5: a client kept every order that a node had answered and not acknowledged."""
    client = Session(keeps_bytes=2 * len(encode(Kill(1))))
    client.resume(0)
    for number in range(3):
        client.send(Kill(number))
    with pytest.raises(ProtocolError, match=f"not acknowledged {3 * len(encode(Kill(1)))} bytes"):
        client.feed(encode(Started(1)))
    assert client.received == 0


def test_what_gathers_while_the_other_end_is_away_is_not_held_against_it() -> None:
    """It has said nothing; what it says first, when it is back, is how much it has."""
    client = Session(keeps_bytes=2 * len(encode(Kill(1))))
    client.resume(0)
    client.flush()
    client.lost()
    for number in range(100):
        client.send(Kill(number))
    client.resume(0)
    assert client.feed(encode(Ack(98)) + encode(Started(1))) == [Started(1)]


def test_heartbeats_are_lost_with_their_connection(client: Session) -> None:
    client.send(Ping(1))
    client.lost()
    client.send(Ping(2))
    client.resume(0)
    assert client.flush() == encode(Ack(0))


@pytest.mark.parametrize("acknowledged", [2, 2**40])
def test_frames_that_were_never_sent_cannot_be_acknowledged(client: Session, acknowledged: int) -> None:
    client.send(Kill(1))
    with pytest.raises(ProtocolError, match="of 1 sent"):
        client.feed(encode(Ack(acknowledged)))


def test_nor_frames_be_taken_back(client: Session) -> None:
    client.send(Kill(1))
    client.feed(encode(Ack(1)))
    with pytest.raises(ProtocolError, match="1 acknowledged before"):
        client.resume(0)


def test_a_message_that_goes_the_other_way_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Kill goes the other way"):
        Session().feed(encode(Kill(1)))
    with pytest.raises(ProtocolError, match="Started goes the other way"):
        Session(FOR_NODES).feed(encode(Started(1)))


def test_pings_reach_their_reader_uncounted(client: Session) -> None:
    assert client.feed(encode(Pong(4))) == [Pong(4)]
    assert client.received == 0


def test_session_5_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """SESSION-5"""
    monkeypatch.setitem(globals(), "Session", lambda keeps_bytes: session.Session())
    with pytest.raises(pytest.fail.Exception):
        test_an_end_that_speaks_and_acknowledges_too_little_breaks_the_protocol()


COUNTED = sorted((FOR_NODES | FOR_CLIENTS) - UNCOUNTED, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", COUNTED, ids=lambda kind: kind.__name__)
def test_missing_frame_of_any_kind_ends_the_session_at_the_next_heartbeat(kind: type[Message]) -> None:
    """SESSION-6"""
    to_node = kind in FOR_NODES
    sender, receiver = Session(), Session(FOR_NODES if to_node else FOR_CLIENTS)
    for end in (sender, receiver):
        end.resume(0)
        end.flush()
    lost, arrives = b"\x91" + bytes([codec.TAGS[kind]]), Credit(1, 0, 1)
    sender.send_body(lost)
    sender.flush()
    sender.send(arrives)
    sender.send(Ping(1, sender.sent) if to_node else Pong(1, 0, sender.sent))
    with pytest.raises(session.FramesLost, match="2 frames were sent and 1 arrived"):
        receiver.feed(sender.flush())


def test_session_6_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """SESSION-6"""
    monkeypatch.setattr(session, "_COUNTS", frozenset())
    with pytest.raises(pytest.fail.Exception):
        test_missing_frame_of_any_kind_ends_the_session_at_the_next_heartbeat(Kill)


def test_counts_of_heartbeats_agree_through_reconnects() -> None:
    client, node = Session(), Session(FOR_NODES)
    client.resume(0)
    for cut in (False, True, False):
        client.send(Kill(1))
        client.send(Ping(1, client.sent))
        sent = client.flush()
        if cut:  # in the middle of the ping: what came before it arrives
            node.feed(sent[:-3])
            client.lost()
            node.lost()
            client.resume(node.received)
            client.send(Ping(2, client.sent))
            sent = client.flush()
        assert any(isinstance(message, Ping) for message in node.feed(sent))
    assert node.received == client.sent == 3


@pytest.mark.parametrize("other", [(), (1,), (1, 3), (1, 2, 2**62), (2, 1, 0)])
def test_digest_tells_sets_of_attempts_apart(other: tuple[int, ...]) -> None:
    assert attempt_digest((1, 2)) == attempt_digest(iter((2, 1))) == (2, 3)
    assert attempt_digest(other) != (2, 3)
