"""Lines are put together from what arrives, nothing is lost, and each says where it comes from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.actors import events as ev
from outrider.actors.interfaces import AttemptId, JobId, NodeId, Order, Task, TaskId, World
from outrider.engine.node.output import Lines
from outrider.engine.record.display.prints import Printed, UnfinishedLines, marked, origin
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.transport.task_output import LINE_BYTES, PrintedLines, last_state
from outrider.engine.wire.messages import Output, Value

NODE = NodeId(2)


def order(attempt: int = 1, *, world: World | None = None, rank: int = 0) -> Order:
    payload = Payload("f", b"f", b"", Value(b"", None, None))
    return Order(AttemptId(attempt), Task(TaskId(17), JobId(17), b"f", payload), 1, world, rank)


class Terminal:
    """What becomes of a stream's lines when unfinished ones are replaced by what comes next, as people see them."""

    def __init__(self) -> None:
        self.events: list[Printed] = []
        self.prints = PrintedLines(self.events.append, now=lambda: float(len(self.events)))

    def wrote(self, text: bytes, *, dropped: int = 0, of: Order | None = None, stream: int = 1) -> list[Printed]:
        before = len(self.events)
        self.prints.wrote(NODE, of or order(), Output(1, stream, text, dropped))
        return self.events[before:]

    @property
    def whole(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ev.TaskOutput))


def whole(text: str, *, dropped: int = 0, stream: str = "stdout") -> Any:
    return ("whole", stream, text, dropped)


def told(events: list[Printed]) -> list[Any]:
    return [
        whole(event.text, dropped=event.dropped, stream=event.stream)
        if isinstance(event, ev.TaskOutput)
        else ("unfinished", event.stream, event.text)
        for event in events
    ]


def test_a_line_is_told_as_it_grows_and_as_a_whole_once() -> None:
    terminal = Terminal()
    assert told(terminal.wrote(b"a\n")) == [whole("a\n")]
    assert told(terminal.wrote(b"one ")) == [("unfinished", "stdout", "one ")]
    assert told(terminal.wrote(b"two ")) == [("unfinished", "stdout", "one two ")]
    assert told(terminal.wrote(b"three\nnext")) == [whole("one two three\n"), ("unfinished", "stdout", "next")]


def test_a_progress_bar_leaves_its_last_state() -> None:
    terminal = Terminal()
    terminal.wrote(b"\r 10%")
    assert told(terminal.wrote(b"\r 20%\r 30%")) == [("unfinished", "stdout", " 30%")]
    assert told(terminal.wrote(b"\r100%\n")) == [whole(" 30%\r100%\n")]
    assert marked(terminal.events[-1]) == "[node 2 · f #17] 100%\n"


def test_the_end_of_an_attempt_ends_its_lines() -> None:
    terminal = Terminal()
    terminal.wrote(b"out")
    terminal.wrote(b"err", stream=2)
    terminal.wrote(b"another's", of=order(2))
    del terminal.events[:]
    terminal.prints.ended(NODE, order())
    terminal.prints.ended(NODE, order())
    assert told(terminal.events) == [whole("out"), whole("err", stream="stderr")]
    assert [*terminal.prints.begun] == [(2, "stdout")]


def test_a_progress_bar_that_erases_itself_leaves_nothing() -> None:
    terminal = Terminal()
    terminal.wrote(b"\r100%")
    terminal.wrote(b"\r     \r")
    terminal.prints.ended(NODE, order())
    assert marked(terminal.events[-1]) == ""


def test_what_was_lost_ends_a_line() -> None:
    terminal = Terminal()
    terminal.wrote(b"half")
    assert told(terminal.wrote(b"new\n", dropped=5)) == [whole("half"), whole("new\n", dropped=5)]
    assert told(terminal.wrote(b"", dropped=3)) == [whole("", dropped=3)]


def test_nothing_is_kept_of_an_attempt_that_is_over() -> None:
    terminal = Terminal()
    terminal.prints.wrote(NODE, None, Output(9, 1, b"late", 0))
    assert told(terminal.events) == [whole("late")]
    assert terminal.prints.begun == {}


def test_where_nobody_listens_nothing_is_kept() -> None:
    prints = PrintedLines(lambda _: None, wanted=lambda: False)
    prints.wrote(NODE, order(), Output(1, 1, b"half", 0))
    assert prints.begun == {}


def test_a_long_line_is_given_in_pieces() -> None:
    terminal = Terminal()
    for _ in range(10):
        terminal.wrote(b"x" * 30_000)
    terminal.prints.ended(NODE, order())
    assert terminal.whole == "x" * 300_000
    assert max(len(event.text) for event in terminal.events) <= LINE_BYTES + 30_000


PIECES = st.lists(st.text("ab\r\n\u00e9", max_size=8).map(str.encode), max_size=12)


@given(PIECES)
def test_nothing_but_redrawn_states_is_lost_however_it_is_cut(pieces: list[bytes]) -> None:
    terminal = Terminal()
    for piece in pieces:
        terminal.wrote(piece)
    terminal.prints.ended(NODE, order())
    shown = [last_state(line.encode()) for line in terminal.whole.split("\n")]
    expected = [last_state(line) for line in b"".join(pieces).split(b"\n")]
    if not expected[-1].strip():  # a line without an end that is blank leaves nothing
        shown[-1] = expected[-1] = b""
    assert shown == expected


@given(st.lists(st.tuples(st.binary(max_size=6), st.booleans()), max_size=12))
def test_what_a_node_sends_is_what_was_printed_whenever_it_sends(steps: list[tuple[bytes, bool]]) -> None:
    lines, printed, sent = Lines(1), b"", b""
    for data, waited in steps:
        printed += data
        due = printed if waited else printed[: max(len(sent), printed.rfind(b"\n") + 1)]
        outputs = lines.feed(1, data) + (lines.unfinished() if waited else [])
        sent += b"".join(output.text for output in outputs)
        assert sent == due
        assert lines.holds is (sent != printed)


# --- which unfinished lines are shown ---------------------------------------------------------------------------------


def unfinished(text: str, at: float, *, rank: int = 0) -> ev.UnfinishedLine:
    return ev.UnfinishedLine(1, rank, rank, "stderr", text, "train", 4, at=at)


def ended(text: str, at: float, *, rank: int = 0) -> ev.TaskOutput:
    return ev.TaskOutput(1, rank, rank, "stderr", text, "train", ranks=4, at=at)


def test_the_newest_state_of_each_rank_is_shown_until_its_line_ends() -> None:
    lines = UnfinishedLines()
    for event in (unfinished("1", 0, rank=3), unfinished("2", 0, rank=1), unfinished("3", 1, rank=3)):
        lines.apply(event)
    assert [(line.rank, line.text) for line in lines.newest()] == [(1, "2"), (3, "3")]
    lines.apply(ended("4\n", 2, rank=3))
    lines.apply(unfinished(" \r", 2, rank=2))
    assert [(line.rank, line.text) for line in lines.newest()] == [(1, "2")]


def test_a_line_that_ends_soon_is_never_due() -> None:
    lines = UnfinishedLines()
    for second in range(10):
        lines.apply(unfinished(f"{second}", second))
        assert lines.due(second + 0.9, 10) == []
    lines.apply(ended("all\n", 10))
    assert lines.due(100, 10) == []


def test_a_line_that_stands_still_is_due_once() -> None:
    lines = UnfinishedLines()
    lines.apply(unfinished("loading", 0))
    assert [line.text for line in lines.due(10, 10)] == ["loading"]
    assert lines.due(1000, 10) == []


@given(st.lists(st.floats(0.5, 5), max_size=60), st.floats(1, 20))
def test_a_moving_line_is_due_once_in_each_interval(pauses: list[float], every_s: float) -> None:
    lines, now, due = UnfinishedLines(), 0.0, [0.0]
    for number, pause in enumerate(pauses):
        lines.apply(unfinished(str(number), now))
        due += [now for _ in lines.due(now, every_s)]
        now += pause
    assert all(later - earlier >= every_s for earlier, later in pairwise(due))
    assert len(due) - 1 >= int(sum(pauses[:-1]) / (every_s + 5)) if pauses else due == [0.0]


def test_printed_lines_are_marked() -> None:
    event = ev.TaskOutput(1, 0, 3, "stdout", "a\n\x1b[1mb\x1b[0m\n\nlast", "train", ranks=4)
    assert marked(event) == "[rank 3 · train] a\n[rank 3 · train] b\n[rank 3 · train] \n[rank 3 · train] last\n"


def test_lost_output_is_counted_in_its_line() -> None:
    event = ev.TaskOutput(1, 0, 0, "stderr", "after\n", "train", dropped=123_456, ranks=2)
    assert marked(event) == "[rank 0 · train] ... 123,456 bytes were lost here\n[rank 0 · train] after\n"


@pytest.mark.parametrize(
    ("event", "where"),
    [
        (ev.TaskOutput(17, 2, 0, "stdout", "", "f"), "node 2 · f #17"),
        (ev.TaskOutput(17, 2, 3, "stdout", "", "train", ranks=4), "rank 3 · train"),
        (ev.TaskOutput(17, 0, 0, "stdout", "", "train", ranks=1), "node 0 · train #17"),
        (ev.UnfinishedLine(17, 2, 3, "stdout", "", "train", ranks=4), "rank 3 · train"),
        (ev.TaskOutput(0, 2, 0, "stdout", ""), "node 2"),
        (ev.TaskOutput(17, 2, 0, "stdout", "", "a\x1b[2J\nb"), "node 2 · a; b #17"),
    ],
)
def test_output_says_where_it_comes_from(event: ev.TaskOutput, where: str) -> None:
    assert origin(event) == where
