"""`LoggingHandler`: sends the log records of Python's `logging` in a task, with their numbers, to the run's record."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from .loggable import log_numbers


class LoggingHandler(logging.Handler):
    """A handler that writes each log record as a line to stderr, and logs the numbers in it as metrics.

    In the run's record, the line is part of the rank's output. If another handler writes a log record to stdout or
    stderr, this handler does not write it again. Numbers come from ``extra={"metrics": {"loss": 0.3}, "step": 7}``. If
    a log record reaches several handlers of this class, only one of them handles it, so tasks that add one handler each
    may share a process.

    Args:
        level: The lowest level of the log records that are handled.
    """

    def __init__(self, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record as a line, and log the numbers in it as metrics."""
        handlers = [each for each in _handlers(record.name) if record.levelno >= each.level]
        if next((each for each in handlers if isinstance(each, LoggingHandler)), self) is not self:
            return
        try:
            metrics = getattr(record, "metrics", None)
            if isinstance(metrics, Mapping):
                log_numbers(metrics, getattr(record, "step", None))
            if not any(map(_prints, handlers)):
                print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001  as in all handlers of logging: the caller continues
            self.handleError(record)


def _handlers(name: str) -> Iterator[logging.Handler]:
    """Yield the handlers that a log record of the logger ``name`` reaches, in this order."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _prints(handler: logging.Handler) -> bool:
    """Return whether a handler writes to this process's stdout or stderr, directly or through a console of rich."""
    stream: Any = getattr(handler, "stream", None)
    with suppress(Exception):
        stream = stream or getattr(getattr(handler, "console", None), "file", None)
    return stream is not None and stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
