"""Logging of a framework's values: numbers as metrics, and settings as params; and the handler for Python's `logging`.

Values that the record does not accept are skipped, so that they never end a training. `LoggingHandler` sends the log
records of `logging` in a task, with their numbers, to the run's record.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Literal, get_args

from ..api import checks
from ..record.log_calls import checked_metrics, log_metrics, log_params
from ..runtime.instance_info import instance_info
from ..wire.log_records import NAME_CHARS, NAMES

Ranks = Literal["all", "head"]


def checked_ranks(adapter: str, ranks: Ranks) -> Ranks:
    """Check and return ``ranks``, the ranks whose values are logged.

    ``adapter``: the adapter's name, for errors.

    Raises:
        SpecError: ``ranks`` is neither "all" nor "head" (only rank 0).
    """
    checks.one_of(f"integrations.{adapter}: ranks", ranks, get_args(Ranks))
    return ranks


def is_logging(ranks: Ranks) -> bool:
    """Return whether this rank logs its values. ``ranks``: "all", or "head" (only rank 0)."""
    return ranks == "all" or instance_info().is_head


def log_numbers(values: Mapping[str, Any], step: int | None) -> None:
    """Log all values that are single numbers, however many there are. Skip other values."""
    numbers = iter([(name, value) for name, value in _named(values).items() if _is_number(value)])
    while some := dict(islice(numbers, NAMES)):
        log_metrics(some, step=step)


def log_settings(settings: Mapping[str, Any]) -> None:
    """Log settings as params. Skip settings that are too large for the record."""
    named = _named(settings)
    try:
        log_params(named)
    except ValueError:
        for name, value in named.items():
            with suppress(ValueError):
                log_params({name: value})


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name)[:NAME_CHARS]: value for name, value in values.items() if str(name)}


def _is_number(value: Any) -> bool:
    try:
        checked_metrics({"value": value})
    except TypeError:
        return False
    return True


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
