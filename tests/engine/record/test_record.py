"""A pool's events come to its record: those of whole jobs all, those of single calls of each function the first."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import structlog

from outrider import Local, Pool, SpecError
from outrider.actors import events as ev
from outrider.actors.interfaces import NodeId, Settled, Verdict
from outrider.engine.api.sink import Spending
from outrider.engine.client.observer import Observer
from outrider.engine.record import record_sink as module
from outrider.engine.record.record_sink import RecordedCalls, RecordSink, recording
from outrider.engine.record.runs.reader import read_json, runs_in
from outrider.engine.record.runs.writer import Plan, RunEnd, RunWriter
from outrider.engine.record.sinks import PoolSinks
from outrider.engine.record.surroundings import leaves_record, surroundings
from outrider.engine.wire.messages import Failed, Output

OK = Settled(Verdict.RETURNED, None, NodeId(0), 0, 1, 0)
FAILED = Settled(Verdict.RAISED, (Failed(1, "call", "ValueError", "bad luck", "", None, 0), None), NodeId(0), 0, 1, 0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Kept(RunWriter):
    """Remembers what is put, in place of a thread that writes it."""

    def __init__(self) -> None:
        super().__init__(Plan(name="train", folder=Path("/nowhere")))
        self.put_in: list[tuple[str, str]] = []
        self.end: RunEnd | None = None

    def start(self) -> None: ...

    def put(self, event: ev.Event, at: float, function: str = "") -> None:
        self.put_in.append((event.name, function))

    def close(self, end: RunEnd, within_s: float = 0.0) -> None:
        self.end = end


@pytest.fixture
def writer() -> Kept:
    return Kept()


@pytest.fixture
async def observer(writer: Kept) -> AsyncIterator[Observer]:
    record = RecordSink(Plan(name="train", folder=Path("/nowhere")), Spending)
    record._writer = writer
    record.calls = RecordedCalls(2)
    observer = Observer(PoolSinks("silent"), slots=1)
    observer.open(record)
    yield observer
    await observer.aclose()  # else all that later tests of this process log is this record's


def call(observer: Observer, job: int, ending: Settled = OK) -> None:
    """A call of f, as the pool's actor has it."""
    observer.job(job, "f")
    if observer.tasks and observer.wants(job):
        observer(ev.TaskSubmitted(job, job))
        observer(ev.TaskFinished(job, job, 0, 1, ending.verdict.value, 0.1))
    observer.job_over(job, ending, "f")


@pytest.mark.anyio
async def test_the_first_calls_of_a_function_are_recorded_and_the_rest_cost_nothing(
    observer: Observer, writer: Kept
) -> None:
    for job in range(5):
        call(observer, job)
    assert writer.put_in == [("task_submitted", "f"), ("task_finished", "f")] * 2
    assert not observer.tasks
    await observer.aclose(ValueError("bad"))
    assert writer.end is not None
    assert writer.end.calls == {"f": {"calls": 5, "recorded": 2, "failed": 0}}
    assert repr(writer.end.error) == "ValueError('bad')"


@pytest.mark.anyio
async def test_calls_beside_recorded_ones_are_not_asked_about(observer: Observer, writer: Kept) -> None:
    observer.job(1, "f")
    observer.job(2, "f")
    observer.job(3, "f")
    assert observer.tasks
    assert [observer.wants(job) for job in (1, 2, 3)] == [True, True, False]
    observer(ev.TaskStarted(3, 3, 0))  # asked for by others
    assert writer.put_in == []


@pytest.mark.anyio
async def test_what_goes_wrong_is_recorded_of_every_call(observer: Observer, writer: Kept) -> None:
    for job in range(3):
        call(observer, job)
    del writer.put_in[:]
    call(observer, 3, FAILED)
    observer(ev.GenerationStarted(4, 1, (0,), (0,)))
    observer(ev.GenerationLost(4, 1, (0,), "gone"))
    observer(ev.GenerationStarted(4, 2, (1,), (0,)))
    assert [name for name, _ in writer.put_in] == ["job_failed", "generation_lost", "generation_started"]


@pytest.mark.anyio
async def test_items_that_fail_are_counted_by_their_function(observer: Observer, writer: Kept) -> None:
    observer.job(1, "f")
    for item in range(100):
        observer.item_failed(1, "f", item, Failed(1, "call", "ValueError", "bad luck", "", None, 0), 0)
    observer.job_over(1, OK, "f")
    observer.job(2, "f")
    observer.job_over(2, OK, "f")
    for item in range(100):  # of a call that has ended, as all items of its task are told of then
        observer.item_failed(1, "f", item, Failed(1, "call", "ValueError", "bad luck", "", None, 0), 0)
    await observer.aclose()
    assert [name for name, _ in writer.put_in].count("job_failed") == 2
    assert writer.end is not None
    assert writer.end.calls == {"f": {"calls": 2, "recorded": 2, "failed": 200}}


@pytest.mark.anyio
async def test_a_map_is_told_by_its_end_and_at_times(
    observer: Observer, writer: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 600.0)
    assert observer.jobs
    for done in range(100):
        observer(ev.MapProgress(1, "f", done, 100))
    observer(ev.MapProgress(1, "f", 100, 100, ended=True))
    assert [name for name, _ in writer.put_in] == ["map_progress"] * 2


@pytest.mark.anyio
async def test_of_an_upload_the_end_is_recorded(observer: Observer, writer: Kept) -> None:
    for sent in range(100):
        observer(ev.UploadProgress(1, sent, 100, 1.0 + sent))
    observer(ev.UploadProgress(1, 100, 100, 101.0, ended=True))
    assert [name for name, _ in writer.put_in if name == "upload_progress"] == ["upload_progress"]


@pytest.mark.anyio
async def test_prints_and_events_of_the_pool_are_recorded_once_whoever_else_looks(
    observer: Observer, writer: Kept
) -> None:
    observer.prints.wrote(NodeId(0), None, Output(1, 1, b"a line\n", 0))
    observer(ev.PoolResized(2))
    observer.subscribe()
    call(observer, 1)
    observer(ev.TaskStarted(7, 7, 0))  # of a call that is not recorded
    names = [name for name, _ in writer.put_in]
    assert names == ["task_output", "pool_resized", "task_submitted", "task_finished"]


@pytest.mark.anyio
async def test_a_sink_gets_no_event_of_a_call_that_only_the_record_wants(
    observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outrider")
    observer.job(1, "f")
    observer(ev.TaskRetried(1, 1, 0, 2, "gone"))
    assert caplog.records == []


@pytest.mark.anyio
async def test_the_loop_goes_on_while_a_record_waits_for_its_disk(writer: Kept, observer: Observer) -> None:
    written = threading.Event()
    heard: list[bool] = []
    writer.close = lambda end: heard.append(written.wait(60))  # type: ignore[assignment, method-assign, misc]
    closing = asyncio.ensure_future(observer.aclose())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(written.set)  # nobody calls it where the loop stands still
    await closing
    assert heard == [True]


@pytest.mark.anyio
async def test_a_record_that_fails_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    observer = Observer(PoolSinks("silent"), slots=1)
    seen = observer.subscribe()
    observer.open(RecordSink(Plan(name="train", folder=tmp_path / "file" / "runs"), Spending))
    event = await anext(seen)
    assert isinstance(event, ev.RecordFailed)
    assert "Not a directory" in event.error
    for wanted in range(10):
        observer(ev.PoolResized(wanted))
    await observer.aclose()
    assert [record.levelname for record in caplog.records if "record_failed" in record.message] == ["WARNING"]
    await seen.aclose()


@pytest.mark.anyio
async def test_a_record_that_fails_at_the_very_end_is_told_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    observer = Observer(PoolSinks("silent"), slots=1)
    observer.open(RecordSink(Plan(name="train", folder=tmp_path / "file" / "runs"), Spending))
    await observer.aclose()
    assert ["record_failed" in record.message for record in caplog.records] == [True]


# --- whether there is one ---------------------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Things are as a script finds them, but for the handlers of pytest: see `name_of`."""
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def name_of(*handlers: logging.Handler, **options: Any) -> str | None:
    """The name of the record that a pool with these options would leave where the root logger has these handlers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", list(handlers))
        settings = Pool(provider=Local(), **options)._settings
        return recording(settings, Spending, {})._writer._plan.name if leaves_record(settings.run) else None


@pytest.mark.usefixtures("script")
def test_a_script_leaves_a_record_unless_it_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of() == "train"
    assert name_of(name="pool") == "pool"
    assert name_of(name="pool", run="mine") == "mine"
    assert name_of(run=False) is None
    for value in ("0", "off", " False "):
        monkeypatch.setenv("OUTRIDER_RUNS", value)
        assert name_of(run="mine") is None
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    assert name_of(run="mine") == "mine"


@pytest.mark.usefixtures("script")
def test_an_application_that_logs_leaves_one_only_when_it_asks() -> None:
    assert surroundings() == "application"  # pytest's
    assert (name_of(logging.NullHandler()), name_of(logging.NullHandler(), run="mine")) == (None, "mine")
    structlog.configure()
    assert name_of() is None


@pytest.mark.usefixtures("script")
def test_a_notebook_leaves_one_though_it_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert (surroundings(), name_of(logging.NullHandler())) == ("notebook", "train")


@pytest.mark.usefixtures("script")
def test_the_repository_of_the_script_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert module.source() == Path("/")  # there is no such script
    (tmp_path / "train.py").write_text("")
    assert module.source() == tmp_path
    monkeypatch.setattr(sys, "argv", [f"{sys.prefix}/bin/python"])
    assert module.source() == Path("/")


@pytest.mark.usefixtures("script")
@pytest.mark.anyio
async def test_a_record_has_the_settings_and_what_it_cost(tmp_path: Path) -> None:
    made = recording(Pool(provider=Local(), nodes=3, run="mine")._settings, lambda: Spending(1.5, 0.0, 1.0), {})
    made.open(lambda event: None)
    await made.aclose()
    (run,) = runs_in(tmp_path / "state" / "runs")
    assert read_json(run.directory / "run.json")["spec"]["nodes"]["desired"] == 3
    assert run.status["spent_usd"] == 1.5


@pytest.mark.parametrize("run", [True, "", "a/b", "x" * 41, 3, "-a"])
def test_a_name_that_cannot_be_one_is_refused(run: Any) -> None:
    with pytest.raises(SpecError, match=r"^run takes"):
        Pool(provider=Local(), run=run)
