"""Events as records of the standard logger "outrider", for any logging that the application has set up.

A message has the event's name, its fields as `key=value`, and the values bound to structlog's context variables. All
these are also in ``record.outrider``, for formatters that write JSON. The output of tasks goes to the logger
"outrider.task", one record per line: the message is the line with its origin, and ``text`` in ``record.outrider`` is
the line alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import fields

from ...actors import events as ev
from ..api.printable import lines
from .prints import origin
from .sink import Sink

_LOGGER = logging.getLogger("outrider")
_LOGGER.addHandler(logging.NullHandler())  # without a handler, Python prints a library's warnings on stderr
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
    """A sink that logs events. Without a handler it does nothing."""

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
            # without an imported structlog no values are bound; importing structlog takes 80 ms
            context = sys.modules.get("structlog.contextvars")
            # None: another thread is importing structlog at this moment
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
    """Return whether the log shows the output of tasks to people.

    pytest's handlers do not count: pytest's report shows log records beside a test's own output, and `capsys` captures
    only the output.
    """
    return any(type(handler).__module__ != "_pytest.logging" for handler in _handlers(_PRINTED, logging.INFO))


def _has_handler(logger: logging.Logger, level: int) -> bool:
    return any(True for _ in _handlers(logger, level))


def _handlers(logger: logging.Logger, level: int) -> Iterator[logging.Handler]:
    """Yield the handlers that would receive a record of ``level``."""
    above: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while above is not None:
        for handler in above.handlers:
            if handler.level <= level and not isinstance(handler, logging.NullHandler):
                yield handler
        above = above.parent if above.propagate else None
