"""PRINTS-1: what tasks print is shown whatever stdout can encode and however slowly it is read, or is counted."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from outrider.actors import events as ev
from outrider.engine.api.sink import PoolFacts
from outrider.engine.client.observer import Observer
from outrider.engine.record.display.plain import PlainSink, blocks_as_print, write_plain
from outrider.engine.record.sinks import PoolSinks

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


LINE = "100% |█| " + 60 * "x"
LINES = 20_000  # some 1.5 MB: much more than a pipe holds


def printed(text: str) -> ev.TaskOutput:
    return ev.TaskOutput(1, 0, 0, "stdout", text, "talk", at=1.0)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_characters_that_stdout_cannot_encode_are_replaced(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    write_plain("[node 0 · talk] loss 0.5\n", 1, 0)
    write_plain("████\n", 1, 0)
    shown = raw.getvalue().decode(encoding)
    assert shown.endswith("████\n" if encoding == "utf-8" else "????\n")
    assert shown.startswith("[node 0 ? talk] loss 0.5\n" if encoding == "ascii" else "[node 0 · talk] loss 0.5\n")


@contextmanager
def piped() -> Iterator[int]:
    """Make stdout a pipe that nobody reads yet; yield its other end. Here, as pytest sets stdout after its fixtures."""
    reading, writing = os.pipe()
    before, sys.stdout = sys.stdout, os.fdopen(writing, "w", encoding="utf-8")
    try:
        yield reading
    finally:
        stdout, sys.stdout = sys.stdout, before
        with suppress(BrokenPipeError):
            stdout.close()


def talk(observer: Observer) -> None:
    for _ in range(LINES // 1000):
        observer(printed(f"{LINE}\n" * 1000))


async def test_closing_waits_for_a_slow_reader_while_the_loop_goes_on() -> None:
    read: list[bytes] = []
    looks = 0

    def reads() -> None:
        with os.fdopen(pipe, "rb") as file:
            read.append(file.read())

    def is_ending() -> bool:
        """Called again and again by the event loop while it waits."""
        nonlocal looks
        looks += 1
        if looks == 3:
            reader.start()
        return False

    reader = threading.Thread(target=reads)
    with piped() as pipe:
        observer = Observer(PoolSinks("plain"), slots=1)
        observer.open()
        talk(observer)
        await observer.aclose(is_ending=is_ending)
    reader.join(60)
    assert looks >= 3
    assert read[0].count(LINE.encode()) == LINES


@pytest.mark.parametrize("error", [KeyboardInterrupt(), None])
async def test_program_that_ends_does_not_wait_and_says_where_the_lines_are(
    error: BaseException | None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PlainSink(PoolFacts(record=lambda: tmp_path / "talk-1"))
    monkeypatch.setattr(sink._writer, "close", partial(sink._writer.close, 0.01))
    with piped() as pipe:
        observer = Observer(PoolSinks("silent"), slots=1)
        observer._sinks = [sink]
        talk(observer)
        await observer.aclose(error, is_ending=lambda: error is None)
        os.close(pipe)  # ends the write that is under way
        assert sink._writer._thread is not None
        sink._writer._thread.join(60)
    said = capsys.readouterr().err
    assert "outrider: 20,000 lines of output not shown, as stdout was not read: `outrider logs talk-1` shows" in said


def test_lines_for_a_reader_that_is_gone_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with piped() as pipe:
        os.close(pipe)
        sink = PlainSink()
        for _ in range(3):
            sink(printed("a\nb\n"))
        sink.close()
    said = capsys.readouterr().err
    assert said.startswith("outrider: 6 lines of output not shown, as stdout failed ([Errno 32] Broken pipe): ")
    assert "run=" in said


def test_only_what_the_system_reads_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert blocks_as_print()
    assert not blocks_as_print()  # closed
    for other in (None, io.StringIO(), io.TextIOWrapper(io.BytesIO())):
        monkeypatch.setattr(sys, "stdout", other)
        assert not blocks_as_print()
