"""Which console an application gets, and what it prints where."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import structlog

from outrider.actors import events as ev
from outrider.engine.api.settings import ConsoleOption
from outrider.engine.client.observer import Observer
from outrider.engine.record.display import plain
from outrider.engine.record.display.live import FAILURES, RichSink
from outrider.engine.record.display.plain import PlainSink, PrintsSink
from outrider.engine.record.sinks import PoolSinks, automatic

from ...terminal import on_a_terminal, screen


@pytest.fixture
def automatic_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`automatic` as a script would find things: no logging set up (pytest does that), no notebook, no terminal."""

    def choose(*, terminal: bool = False, handlers: Sequence[logging.Handler] = ()) -> str:
        monkeypatch.setattr(logging.getLogger(), "handlers", list(handlers))
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: terminal))
        return automatic()

    structlog.reset_defaults()
    return choose


def opened(console: ConsoleOption) -> Observer:
    observer = Observer(PoolSinks(console), slots=1)
    observer.open()
    return observer


def test_a_pipe_gets_plain_lines(automatic_here: Callable[..., str]) -> None:
    assert automatic_here() == "plain"


def test_a_terminal_gets_a_table(automatic_here: Callable[..., str]) -> None:
    assert automatic_here(terminal=True) == "rich"


def test_an_application_that_logs_gets_prints_alone_even_on_a_terminal(automatic_here: Callable[..., str]) -> None:
    assert automatic_here(terminal=True, handlers=[logging.NullHandler()]) == "prints"


def test_an_application_that_configured_structlog_gets_prints_alone(automatic_here: Callable[..., str]) -> None:
    structlog.configure()
    try:
        assert automatic_here() == "prints"
    finally:
        structlog.reset_defaults()


def test_no_stderr_at_all_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(sys, "stderr", None)
    assert automatic() == "plain"


def test_plain_lines(story: list[ev.Event], capsys: pytest.CaptureFixture[str]) -> None:
    sink = PlainSink()
    for event in story:
        sink(event)
    sink.close()
    out, err = capsys.readouterr()
    assert out == "[node 0 · train #1] loss 0.5\n[node 0 · train #1] loss 0.4\n"
    assert err.splitlines() == [
        "outrider: starting 2 nodes (local)",
        "outrider: 2 of 2 nodes ready after 0.2 s",
        "outrider: node 0 lost: killed by signal 9",
        "outrider: task 1 runs again, attempt 2: killed by signal 9",
        "outrider: node 2 ready, 2 of 2 nodes",
        "outrider: closed after 4.2 s",
    ]


def test_output_on_stderr_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    observer = opened("plain")
    observer(ev.TaskOutput(1, 0, 2, "stderr", "careful\n", "train", ranks=3))
    observer.close()
    assert capsys.readouterr() == ("", "[rank 2 · train] careful\n")


def test_a_line_without_end_is_shown_now_and_then_and_once_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.flushed = threading.Event()

        def flush(self) -> None:
            self.flushed.set()

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(plain, "UNFINISHED_S", 0.0)
    monkeypatch.setattr(plain, "REFRESH_S", 0.001)
    sink = PrintsSink()
    sink(ev.UnfinishedLine(1, 0, 0, "stderr", " 40%", "train", at=time.time()))
    assert terminal.flushed.wait(60)
    sink(ev.TaskOutput(1, 0, 0, "stderr", " 40%\r100%\n", "train", at=time.time()))
    sink.close()
    assert terminal.getvalue() == "[node 0 · train #1]  40%\n[node 0 · train #1] 100%\n"


def test_prints_alone(story: list[ev.Event], capsys: pytest.CaptureFixture[str]) -> None:
    observer = opened("auto")  # pytest has set up logging
    for event in story:
        observer(event)
    observer.close()
    assert capsys.readouterr() == ("[node 0 · train #1] loss 0.5\n[node 0 · train #1] loss 0.4\n", "")


def test_silence(story: list[ev.Event], capfd: pytest.CaptureFixture[str]) -> None:
    observer = opened("silent")
    for event in story:
        observer(event)
    observer.close()
    assert capfd.readouterr() == ("", "")


def test_closing_twice_is_once(story: list[ev.Event], capsys: pytest.CaptureFixture[str]) -> None:
    for console in ("plain", "silent"):
        observer = opened(console)  # type: ignore[arg-type]
        observer.close()
        observer.close()


def test_a_second_table_becomes_plain_lines() -> None:
    first = RichSink.claim()
    assert first is not None
    try:
        assert RichSink.claim() is None
        assert opened("rich").tasks is opened("plain").tasks
    finally:
        first.close()
    again = RichSink.claim()
    assert again is not None
    again.close()


def test_the_table_lives_below_what_is_printed_and_leaves_a_summary() -> None:
    seen = on_a_terminal("""
        import sys, time
        from outrider.actors import events as ev
        from outrider.engine.record.display import writer as sink
        from outrider.engine.client.observer import Observer
        from outrider.engine.record.sinks import PoolSinks
        sink.PATIENCE_S, sink.Writer.close.__defaults__ = 60.0, (60.0,)  # what is printed next comes next
        observer = Observer(PoolSinks("auto"), slots=1)
        observer.open()
        now = time.time()
        observer(ev.PoolStarting("p1", "local", 1, 1, at=now))
        observer(ev.NodeReady(0, 0, 1, 1, "m", "here"))
        observer(ev.PoolReady(1, 1))
        observer.job(1, "train")
        observer(ev.TaskSubmitted(1, 1))
        observer(ev.TaskStarted(1, 1, 0))
        while "rich.live" not in sys.modules or not hasattr(sys.stdout, "rich_proxied_file"):
            time.sleep(0.001)
        observer(ev.TaskOutput(1, 0, 0, "stdout", "loss \\x1b[2J0.5\\n", "train"))
        print("the application's own line")
        observer(ev.TaskFinished(1, 1, 0, 1, "returned", 0.1))
        observer(ev.PoolClosed(at=now))
        observer.close()
        print("after")
    """)
    assert "\x1b[2J" not in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # the cursor is back
    erased_again = seen.index("\x1b[2K", seen.index("[node 0"))
    below = [line for line in screen(seen[:erased_again]) if line]
    assert below[0] == "[node 0 · train #1] loss 0.5"
    assert below[1].startswith("outrider p1 · local · 1 of 1 node ready")
    assert re.search(r"train \d", below[3])
    at_last = [line for line in screen(seen) if line]
    assert at_last[:2] == ["[node 0 · train #1] loss 0.5", "the application's own line"]
    assert at_last[2].startswith("outrider p1 · local · 1 task done · ")
    assert at_last[3:] == ["after"]


def test_the_first_failures_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    sink = RichSink()
    for job in range(FAILURES + 5):
        sink(ev.JobFailed(job, "f", "ValueError: bad luck", 2))
    sink.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "fail" in line]
    assert lines[0] == "outrider: f #0 failed on node 2: ValueError: bad luck"
    assert lines[FAILURES:] == ["outrider: further failures are counted in the table alone"]
