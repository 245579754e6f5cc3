"""Python's logging in a task: each record is one line, with its level, and its numbers are metrics."""

from __future__ import annotations

import io
import logging
import logging.config
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console
from rich.logging import RichHandler

from outrider import integrations

Received = Callable[[], list[dict[str, Any]]]
Lines = Callable[[], list[str]]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("train.data")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.propagate = True


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    return lambda: capsys.readouterr().err.splitlines()


def test_a_record_is_a_line_with_its_level(logger: logging.Logger, lines: Lines, received: Received) -> None:
    logger.addHandler(integrations.LoggingHandler())
    logger.debug("not wanted")
    logger.warning("%d files are missing", 3)
    assert lines() == ["WARNING train.data: 3 files are missing"]
    assert received() == []


def test_its_numbers_are_metrics(logger: logging.Logger, lines: Lines, received: Received) -> None:
    logger.addHandler(integrations.LoggingHandler())
    logger.info("an epoch", extra={"metrics": {"loss": 0.25, "note": "fine"}, "step": 2})
    assert received() == [{"step": 2, "values": {"loss": 0.25}}]
    assert lines() == ["INFO train.data: an epoch"]


@pytest.mark.parametrize(
    "other",
    [
        lambda: logging.StreamHandler(),
        lambda: logging.StreamHandler(sys.stdout),
        lambda: RichHandler(console=Console(file=sys.stderr)),
    ],
)
def test_what_another_handler_prints_is_not_printed_twice(
    logger: logging.Logger, lines: Lines, received: Received, other: Callable[[], logging.Handler]
) -> None:
    logger.addHandler(integrations.LoggingHandler())
    logger.addHandler(other())
    logger.info("an epoch", extra={"metrics": {"loss": 0.25}})
    assert not any(line.startswith("INFO train.data:") for line in lines())
    assert len(received()) == 1


def test_a_handler_that_writes_elsewhere_or_not_at_all_does_not_count(logger: logging.Logger, lines: Lines) -> None:
    quiet = logging.StreamHandler()
    quiet.setLevel(logging.ERROR)
    for each in (logging.StreamHandler(io.StringIO()), quiet, integrations.LoggingHandler()):
        logger.addHandler(each)
    logger.info("once")
    assert lines() == ["INFO train.data: once"]


def test_of_several_one_works(logger: logging.Logger, lines: Lines, received: Received) -> None:
    """A worker runs one task after another, and each may add its own."""
    root = logging.getLogger()
    logger.propagate = True
    own = integrations.LoggingHandler()
    root.addHandler(own)
    try:
        logger.addHandler(integrations.LoggingHandler())
        logger.addHandler(integrations.LoggingHandler())
        logger.info("once", extra={"metrics": {"loss": 1}})
    finally:
        root.removeHandler(own)
    assert lines() == ["INFO train.data: once"]
    assert len(received()) == 1


def test_an_error_has_its_traceback(logger: logging.Logger, lines: Lines) -> None:
    logger.addHandler(integrations.LoggingHandler())
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("no such column")
    told = lines()
    assert told[0] == "ERROR train.data: no such column"
    assert told[-1] == "KeyError: 'x'"


def test_a_file_of_settings_may_name_it() -> None:
    settings = {"version": 1, "disable_existing_loggers": False,
                "handlers": {"record": {"class": "outrider.integrations.LoggingHandler", "level": "WARNING"}},
                "loggers": {"configured": {"handlers": ["record"]}}}  # fmt: skip
    logging.config.dictConfig(settings)
    (handler,) = logging.getLogger("configured").handlers
    assert isinstance(handler, integrations.LoggingHandler)
    logging.getLogger("configured").handlers.clear()
