"""What tasks print arrives whole, in order, under the right attempt, and never fills anybody's memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.node.output import PIECE_BYTES, Backlog, Lines
from outrider.engine.wire import log_records
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio
KINDS = pytest.mark.parametrize("kind", ["process", "thread"])


def say(*texts: Any, end: str = "\n") -> None:
    for text in texts:
        print(text, end=end)


async def test_what_is_printed_comes_before_the_result(make: Any) -> None:
    client = await make()
    attempt = client.run(say, "one", "two")
    await client.answer(attempt)
    assert client.printed(attempt) == b"one\ntwo\n"
    assert isinstance(client.of(attempt, m.Output, m.Done)[-1], m.Done)


async def test_lines_arrive_while_the_task_runs(make: Any, tmp_path: Path) -> None:
    def wait() -> None:
        print("here")
        while not (tmp_path / "go").exists():
            time.sleep(0.001)

    client = await make()
    attempt = client.run(wait)
    await client.until(lambda: client.printed(attempt) == b"here\n")
    (tmp_path / "go").touch()
    await client.answer(attempt)


@KINDS
async def test_a_line_without_end_arrives_while_the_task_runs(make: Any, tmp_path: Path, kind: str) -> None:
    def wait() -> None:
        for name in ("first", "second"):
            print(name, end=" ", flush=True)
            while not (tmp_path / name).exists():
                time.sleep(0.001)
        print("done")

    client = await make(slots=2, kind=kind)
    attempt = client.run(wait)
    await client.until(lambda: client.printed(attempt) == b"first ")
    (tmp_path / "first").touch()
    await client.until(lambda: client.printed(attempt) == b"first second ")
    (tmp_path / "second").touch()
    await client.answer(attempt)
    assert text(client.of(attempt, m.Output)) == [b"first ", b"second ", b"done\n"]


async def test_streams_are_told_apart_and_a_last_line_needs_no_end(make: Any) -> None:
    def both() -> None:
        print("out", end="")
        print("err", end="", file=sys.stderr)

    client = await make()
    attempt = client.run(both)
    await client.answer(attempt)
    assert (client.printed(attempt), client.printed(attempt, 2)) == (b"out", b"err")


async def test_child_processes_and_c_code_print_too(make: Any) -> None:
    def beyond() -> None:
        subprocess.run(["echo", "child"], check=True)
        os.write(1, b"raw\n")

    client = await make()
    attempt = client.run(beyond)
    await client.answer(attempt)
    assert client.printed(attempt) == b"child\nraw\n"


async def test_each_of_many_short_tasks_has_its_own_output(make: Any) -> None:
    """They lie sixteen deep in the worker's pipe; every second one prints."""

    def maybe(number: int) -> None:
        if number % 2:
            print(number)

    client = await make()
    for _ in range(5):
        await client.call(maybe, 0)
    attempts = {client.run(maybe, number): number for number in range(300)}
    for attempt, number in attempts.items():
        await client.answer(attempt)
        assert client.printed(attempt) == (f"{number}\n".encode() if number % 2 else b"")


async def test_output_of_a_task_that_dies_is_kept(make: Any) -> None:
    def die() -> None:
        print("last words", flush=True)
        os._exit(1)

    client = await make()
    attempt = client.run(die)
    await client.answer(attempt)
    assert client.printed(attempt) == b"last words\n"


async def test_a_task_may_close_its_standard_streams(make: Any) -> None:
    def close() -> int:
        sys.stdout.close()
        os.close(2)
        return 1

    client = await make()
    assert await client.call(close) == 1
    assert await client.call(os.getpid)


@KINDS
async def test_a_slow_client_stops_the_task_and_loses_nothing(make: Any, kind: str) -> None:
    client = await make(slots=2, kind=kind)
    client.channel.hold()
    attempt = client.run(say, *(["x" * 1000] * 1000))
    for _ in range(200):
        await client.turn()
    held = sum(map(len, client.channel.held))
    assert held < 300_000, "the task should be waiting"
    assert not client.of(attempt, m.Done)
    client.channel.release()
    await client.answer(attempt)
    assert len(client.printed(attempt)) == 1_001_000


@KINDS
async def test_while_the_client_is_away_the_oldest_is_dropped_and_counted(make: Any, kind: str) -> None:
    def much(away: str, mark: str) -> None:
        print(f"{0:01000}", flush=True)
        while not Path(away).exists():
            time.sleep(0.001)
        for number in range(1, 3000):
            print(f"{number:01000}")
        Path(mark).touch()

    client = await make(slots=2, kind=kind)
    await client.call(say)
    away, mark = (client.server._work / name for name in ("away", "printed"))
    client.define(much)
    attempt = client.run(much, str(away), str(mark))
    await client.until(lambda: client.printed(attempt))
    client.cut()
    away.touch()
    while not mark.exists():
        await client.turn()
    await client.connect()
    await client.answer(attempt)
    outputs = client.of(attempt, m.Output)
    dropped = sum(output.dropped for output in outputs)
    assert 0 < dropped < 2_500_000
    assert len(client.printed(attempt)) + dropped == 3000 * 1001
    assert client.printed(attempt).endswith(b"2999\n")


# --- without processes -----------------------------------------------------------------------------------------------


def text(outputs: list[m.Output]) -> list[bytes]:
    return [output.text for output in outputs]


def test_lines_are_whole() -> None:
    lines = Lines(1)
    assert text(lines.feed(1, b"a\nb")) == [b"a\n"]
    assert text(lines.feed(1, b"c\nd")) == [b"bc\n"]
    assert lines.holds
    assert text(lines.unfinished()) == [b"d"]
    assert lines.unfinished() == []
    assert not lines.holds
    assert text(lines.feed(1, b"e\nf")) == [b"e\n"]


def test_an_unfinished_line_stays_with_its_attempt() -> None:
    lines = Lines(2)
    lines.feed(1, b"half")
    assert lines.feed(2, b"new\n") == [m.Output(1, 2, b"half", 0), m.Output(2, 2, b"new\n", 0)]


def test_a_long_line_without_end_goes_in_pieces() -> None:
    lines = Lines(1)
    pieces = [piece for _ in range(5) for piece in text(lines.feed(1, b"x" * 50_000))]
    assert sum(map(len, pieces)) >= 250_000 - PIECE_BYTES
    assert max(map(len, pieces)) <= PIECE_BYTES


def test_large_reads_are_cut_between_lines() -> None:
    line = b"y" * 999 + b"\n"
    pieces = text(Lines(1).feed(1, line * 200))
    assert b"".join(pieces) == line * 200
    assert all(piece.endswith(b"\n") and len(piece) <= PIECE_BYTES for piece in pieces)


def test_a_backlog_keeps_order_and_the_newest_output() -> None:
    backlog = Backlog(10)
    for entry in (m.Output(1, 1, b"aaaaa", 0), m.Output(2, 1, b"bbbbb", 0), b"done 1", m.Output(2, 1, b"cccccccc", 0)):
        backlog.add(entry)
    assert backlog.take() == [
        m.Output(1, 1, b"", 5),  # all of it was lost: said before anything else
        b"done 1",
        m.Output(2, 1, b"cccccccc", 5),
    ]
    assert backlog.take() == []


def test_a_backlog_counts_what_was_dropped_before_it() -> None:
    backlog = Backlog(4)
    backlog.add(m.Output(1, 1, b"aaa", 7))
    backlog.add(m.Output(1, 1, b"bbb", 0))
    assert backlog.take() == [m.Output(1, 1, b"bbb", 10)]


ENTRIES = st.lists(
    st.one_of(
        st.builds(m.Output, st.integers(1, 2), st.integers(1, 2), st.binary(max_size=6), st.integers(0, 2)),
        st.builds(
            m.Logged,
            st.integers(1, 2),
            st.sampled_from([b"\x91\x01", b"\x93\x01\x02\x03"]),
            st.integers(0, 2),
            st.none(),
        ),
        st.builds(m.Logged, st.just(1), st.just(b"\x91\x01"), st.just(0), st.just("b1")),
        st.binary(min_size=1, max_size=1),
    ),
    max_size=20,
)


def check_backlog(backlog: Backlog, entries: list[m.Message | bytes]) -> None:
    """``backlog`` keeps 8 bytes of each kind."""
    for entry in entries:
        backlog.add(entry)
    kept = backlog.take()
    bounded = [x for x in entries if isinstance(x, m.Output) or (isinstance(x, m.Logged) and x.blob is None)]
    assert [x for x in kept if isinstance(x, bytes) or getattr(x, "blob", None)] == [
        x for x in entries if x not in bounded
    ], "BACKLOG-1"
    for kind, size in ((m.Output, lambda x: len(x.text)), (m.Logged, lambda x: len(x.records))):
        added = [x for x in bounded if isinstance(x, kind)]
        left = [
            x for x in kept if isinstance(x, kind) and not getattr(x, "blob", None) and size(x) > (kind is m.Logged)
        ]
        newest = [x for x in added if size(x)][len([x for x in added if size(x)]) - len([x for x in left if size(x)]) :]
        assert [x._replace(dropped=0) for x in left if size(x)] == [x._replace(dropped=0) for x in newest], "BACKLOG-1"
        assert sum(map(size, left)) <= 8, "BACKLOG-1"
    assert counted(kept) == counted(entries), "BACKLOG-2"


def counted(entries: list[m.Message | bytes]) -> dict[tuple[int, ...], int]:
    """What of each attempt, and stream, is there or said to be lost."""
    found: dict[tuple[int, ...], int] = {}
    for entry in entries:
        match entry:
            case m.Output(attempt, stream, text, dropped):
                found[attempt, stream] = found.get((attempt, stream), 0) + len(text) + dropped
            case m.Logged(attempt, records, dropped):
                found[(attempt,)] = found.get((attempt,), 0) + log_records.count(records) + dropped
            case _:
                pass
    return {key: value for key, value in found.items() if value}


@given(ENTRIES)
def test_a_backlog_keeps_the_newest_of_what_is_bounded_and_counts_the_rest(entries: list[m.Message | bytes]) -> None:
    check_backlog(Backlog(8, 8), entries)


class KeepsTheOldest(Backlog):
    def add(self, entry: m.Message | bytes) -> None:
        if self._bytes < 6 or not isinstance(entry, m.Output):
            super().add(entry)


class Forgets(Backlog):
    def take(self) -> list[m.Message | bytes]:
        self._lost_records.clear()
        return super().take()


@pytest.mark.parametrize(("broken", "rule"), [(KeepsTheOldest, "BACKLOG-1"), (Forgets, "BACKLOG-2")])
def test_the_backlog_falls_without_its_guards(broken: type[Backlog], rule: str) -> None:
    printed: list[m.Message | bytes] = [m.Output(1, 1, text, 0) for text in (b"aaaa", b"bbbb", b"cccc")]
    logged: list[m.Message | bytes] = [m.Logged(1, b"\x93\x01\x02\x03", 0) for _ in range(3)]
    check_backlog(Backlog(8, 8), printed + logged)
    with pytest.raises(AssertionError, match=rule):
        check_backlog(broken(8, 8), printed + logged)
