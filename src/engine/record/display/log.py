"""Events as records of the standard logger "outrider", for the logging that the application has set up.

A log message consists of the event's name, the event's fields as `key=value`, and the values bound to structlog's
context variables. The attribute ``outrider`` of the log record contains all these, for formatters that write JSON. The
output of tasks goes to the logger "outrider.task", one log record per line: the message is the line with its origin
(node or rank), and ``record.outrider["text"]`` is the line alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import fields

from ....actors import events as ev
from ...api.printable import lines
from ...api.sink import Sink
from .prints import origin

_LOGGER = logging.getLogger("outrider")
_LOGGER.addHandler(logging.NullHandler())  # without a handler, Python would print the logger's warnings to stderr
_PRINTED = logging.getLogger("outrider.task")

_WARNINGS = (
    ev.PoolIdleTooLong,
    ev.LaunchFailed,
    ev.TerminateFailed,
    ev.ProviderWarned,
    ev.RecordFailed,
    ev.TrackerBehind,
    ev.NodeLate,
    ev.NodeSuspect,
    ev.NodeNoticed,
    ev.NodeFailed,
    ev.NodeLost,
    ev.NetworkSilent,
    ev.BroadcastWaits,
    ev.Stalled,
    ev.TaskRetried,
    ev.GenerationLost,
)
_DETAILS = (
    ev.JobFailed,
    ev.MapProgress,
    ev.ProfileTaken,
    ev.StackTaken,
    ev.TaskSubmitted,
    ev.TaskStarted,
    ev.TaskFinished,
    ev.UploadProgress,
)


class LogSink(Sink):
    """A sink that logs events. It does nothing if no log handler would receive them."""

    def __init__(self) -> None:
        self.tasks = _has_handler(_LOGGER, logging.DEBUG)
        self._pool = ""

    def show(self, event: ev.Event) -> None:
        if isinstance(event, ev.TaskOutput):
            if _has_handler(_PRINTED, logging.INFO):
                where = {"pool": self._pool, "job": event.job, "node": event.node, "rank": event.rank}
                for line in lines(event.text):
                    facts = where | {"stream": event.stream, "text": line}
                    _PRINTED.info("[%s] %s", origin(event), line, extra={"outrider": facts})
            return
        if isinstance(event, ev.UnfinishedLine):
            return
        if isinstance(event, ev.PoolStarting):
            self._pool = event.pool
        level = logging.WARNING if isinstance(event, _WARNINGS) else logging.INFO
        if isinstance(event, _DETAILS):
            level = logging.DEBUG
        if _has_handler(_LOGGER, level):
            facts = {field.name: getattr(event, field.name) for field in fields(event) if field.name != "at"}
            facts = {"pool": self._pool} | facts
            # structlog has bound values only if it is imported; importing it here would take 80 ms
            context = sys.modules.get("structlog.contextvars")
            # the attribute is missing while another thread is importing structlog
            if merge := getattr(context, "merge_contextvars", None):
                facts = dict(merge(_LOGGER, "log", facts))
            pairs = " ".join(f"{key}={_shown(value)}" for key, value in facts.items())
            _LOGGER.log(level, "%s %s", event.name, pairs, extra={"outrider": facts})


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return text if text and text.isprintable() and " " not in text else repr(text)


def shows_prints() -> bool:
    """Return whether people see the output of tasks in the log.

    Handlers of pytest do not count: pytest shows log records only in its report, and its fixture `capsys` captures only
    what is printed.
    """
    return any(type(handler).__module__ != "_pytest.logging" for handler in _handlers(_PRINTED, logging.INFO))


def _has_handler(logger: logging.Logger, level: int) -> bool:
    return any(True for _ in _handlers(logger, level))


def _handlers(logger: logging.Logger, level: int) -> Iterator[logging.Handler]:
    """Yield the handlers that would receive a log record of this level."""
    above: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while above is not None:
        for handler in above.handlers:
            if handler.level <= level and not isinstance(handler, logging.NullHandler):
                yield handler
        above = above.parent if above.propagate else None
