"""Events reach the standard log, whatever the application has done with structlog."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import structlog

from outrider.actors import events as ev
from outrider.engine.record.display.log import LogSink, shows_prints


@pytest.fixture(autouse=True)
def _structlog_untouched() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_an_event_is_a_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "outrider")
    sink = LogSink()
    sink(ev.PoolStarting("p1", "local", 4, 4))
    sink(ev.NodeLost(3, "killed by signal 9", at=1.0))
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("outrider", "INFO", "pool_starting pool=p1 provider=local wanted=4 least=4"),
        ("outrider", "WARNING", "node_lost pool=p1 node=3 cause='killed by signal 9' noticed=False"),
    ]
    assert caplog.records[1].outrider == {"pool": "p1", "node": 3, "cause": "killed by signal 9", "noticed": False}  # type: ignore[attr-defined]


def test_the_applications_structlog_configuration_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> dict[str, object]:
        raise AssertionError("this is the application's own pipeline")

    structlog.configure(
        processors=[refuse], wrapper_class=structlog.BoundLogger, logger_factory=structlog.ReturnLoggerFactory()
    )
    caplog.set_level(logging.INFO, "outrider")
    LogSink()(ev.NodeSuspect(1, "closed"))
    assert "node_suspect" in caplog.text
    assert "could not show" not in caplog.text


def test_what_is_bound_to_structlogs_context_is_in_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "outrider")
    with structlog.contextvars.bound_contextvars(request="r7", node="not this one"):
        LogSink()(ev.NodeResumed(3))
    assert caplog.records[0].message == "node_resumed pool='' node=3 request=r7"
    assert caplog.records[0].outrider == {"pool": "", "node": 3, "request": "r7"}  # type: ignore[attr-defined]


def test_while_another_thread_imports_structlog_events_are_logged_without_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "structlog", ModuleType("structlog"))
    monkeypatch.setitem(sys.modules, "structlog.contextvars", ModuleType("structlog.contextvars"))
    LogSink()(ev.NodeLost(1, "gone"))
    assert "node_lost" in caplog.text


def test_percent_signs_are_text(caplog: pytest.LogCaptureFixture) -> None:
    LogSink()(ev.NodeLost(1, "100%s of the disk is full"))
    assert "100%s of the disk" in caplog.text


def test_what_tasks_print_has_a_logger_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "outrider")
    LogSink()(ev.TaskOutput(7, 2, 1, "stderr", "one\ntwo 100%\n", "train", ranks=2))
    assert [(record.name, record.message) for record in caplog.records] == [
        ("outrider.task", "[rank 1 · train] one"),
        ("outrider.task", "[rank 1 · train] two 100%"),
    ]
    facts = {"pool": "", "job": 7, "node": 2, "rank": 1, "stream": "stderr", "text": "two 100%"}
    assert caplog.records[1].outrider == facts  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("root", "handler", "shown"),
    [
        (logging.INFO, logging.NOTSET, True),
        (logging.WARNING, logging.NOTSET, False),
        (logging.INFO, logging.WARNING, False),
    ],
)
def test_the_log_shows_prints_where_a_handler_takes_them(
    root: int, handler: int, shown: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = logging.StreamHandler()
    application.setLevel(handler)
    monkeypatch.setattr(logging.getLogger(), "handlers", [application])
    caplog.set_level(root)  # of the root logger, until the test ends
    assert shows_prints() is shown


def test_pytests_own_handlers_show_nobody_what_tasks_print(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert not shows_prints()


@pytest.mark.parametrize(("level", "wanted"), [(logging.INFO, False), (logging.DEBUG, True)])
def test_single_tasks_are_wanted_only_for_debugging(caplog: pytest.LogCaptureFixture, level: int, wanted: bool) -> None:
    caplog.set_level(level, "outrider")
    assert LogSink().tasks is wanted


def test_without_a_handler_nothing_is_logged_and_structlog_is_not_imported() -> None:
    program = """
import sys
from outrider.actors import events as ev
from outrider.engine.record.display.log import LogSink
sink = LogSink()
sink(ev.NodeLost(1, "gone"))
sink(ev.TaskOutput(1, 0, 0, "stdout", "text"))
print(sink.tasks, "structlog" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_structlog_is_not_imported_where_the_application_has_not_done_it() -> None:
    program = """
import logging, sys
from outrider.actors import events as ev
from outrider.engine.record.display.log import LogSink
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
LogSink()(ev.NodeResumed(3))
print("structlog" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("node_resumed pool='' node=3\nFalse\n", "")


def test_failing_handler_does_not_stop_events(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("disk full")

    handler = Broken(logging.WARNING)
    logging.getLogger("outrider").addHandler(handler)
    try:
        LogSink()(ev.NodeLost(1, "gone"))
    finally:
        logging.getLogger("outrider").removeHandler(handler)
