"""Order is kept, nobody waits for a stopped terminal, and memory is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from outrider.engine.record.display import writer as module
from outrider.engine.record.display.writer import Writer


class Terminal:
    """Remembers what was written; ``stopped`` is Ctrl-S."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int, int]] = []
        self.running = threading.Event()
        self.running.set()

    def write(self, text: str, stream: int, dropped: int) -> None:
        assert self.running.wait(60)
        self.written.append((text, stream, dropped))


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def writer(terminal: Terminal) -> Iterator[Writer]:
    writer = Writer(terminal.write)
    yield writer
    terminal.running.set()
    writer.close()


def test_put_returns_after_the_text_is_written(
    terminal: Terminal, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 60.0)
    for number in range(100):
        writer.put(str(number), 1)
        assert terminal.written[-1] == (str(number), 1, 0)


def test_what_was_put_is_waited_for_where_somebody_wants_it_written(terminal: Terminal, writer: Writer) -> None:
    terminal.running.clear()
    writer.put("a", 1)
    writer.put("b", 1)
    writer.catch_up(0.01)  # no longer than that
    assert terminal.written == []
    terminal.running.set()
    writer.catch_up(60)
    assert [text for text, _, _ in terminal.written] == ["a", "b"]


def test_a_stopped_terminal_is_waited_for_once(terminal: Terminal, writer: Writer) -> None:
    terminal.running.clear()
    waits, wait_for = list[float | None](), writer._changed.wait_for

    def counted(true: Callable[[], object], timeout: float | None = None) -> object:
        if threading.current_thread() is threading.main_thread():
            waits.append(timeout)
        return wait_for(true, timeout)

    vars(writer._changed)["wait_for"] = counted
    for number in range(1000):
        writer.put(str(number), 1)
    assert waits == [module.PATIENCE_S]
    terminal.running.set()
    writer.close(60)
    assert [text for text, _, _ in terminal.written] == [str(number) for number in range(1000)]


def test_a_backlog_is_bounded_and_its_gap_is_counted(
    terminal: Terminal, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKLOG_CHARS", 100)
    terminal.running.clear()
    for _ in range(10):
        writer.put("x" * 48 + "\n", 1)
    terminal.running.set()
    writer.put("after\n", 2)
    assert writer.close(60) == 0
    assert len(terminal.written) < 10
    assert sum(1 for text, _, _ in terminal.written if text) + sum(dropped for _, _, dropped in terminal.written) == 11


def test_failing_terminal_does_not_stop_the_writer() -> None:
    def broken(text: str, stream: int, dropped: int) -> None:
        raise BrokenPipeError

    writer = Writer(broken)
    writer.put("a\n", 1)
    writer.put("b\nc\n", 1)
    assert writer.close() == 3, "PRINTS-1"
    assert isinstance(writer.error, BrokenPipeError)


def test_counting_lines_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """PRINTS-1"""
    guarded = Writer._guarded
    monkeypatch.setattr(Writer, "_guarded", lambda *given: guarded(*given) or True)
    with pytest.raises(AssertionError, match="PRINTS-1"):
        test_failing_terminal_does_not_stop_the_writer()


def test_lines_left_at_the_end_are_counted_and_not_written_later(
    terminal: Terminal, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRINTS-1"""
    monkeypatch.setattr(module, "BACKLOG_CHARS", 20)
    terminal.running.clear()
    for number in range(20):
        writer.put(f"line {number}\n", 1)
    assert writer.is_behind
    unshown = writer.close(0.01)
    terminal.running.set()
    assert writer._thread is not None
    writer._thread.join(60)
    written = sum(text.count("\n") for text, _, _ in terminal.written)
    assert (written, unshown) == (1, 20), "the line that was being written is counted, too"
    assert writer.close() == unshown


def test_refreshes_until_closed_and_starts_no_thread_before_it_is_needed() -> None:
    refreshed = threading.Event()
    writer = Writer(lambda *_: None, refresh=refreshed.set, interval_s=0.001)
    assert writer._thread is None
    writer.start()
    assert refreshed.wait(60)
    writer.close(60)
    assert writer._thread is not None
    assert not writer._thread.is_alive()


def test_nothing_is_written_after_close(terminal: Terminal, writer: Writer) -> None:
    writer.close()
    writer.put("late\n", 1)
    assert terminal.written == []
    assert writer.close() == 1, "PRINTS-1"
