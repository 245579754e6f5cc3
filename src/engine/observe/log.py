"""Events as log records of the standard logger "outrider", whatever the application has configured.

A message is the event's name and its fields as `key=value`, and what the application has bound to structlog's context
variables. All this is also in ``record.outrider``, for formatters that write JSON. What tasks print goes to the logger
"outrider.task", a record per line: the message says where the line comes from, ``text`` in ``record.outrider`` is the
line alone.
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
    """A sink that logs events. Where no handler listens it does nothing."""

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
            context = sys.modules.get("structlog.contextvars")  # without it nothing is bound; its import takes 80 ms
            if merge := getattr(context, "merge_contextvars", None):  # None: another thread is just importing it
                facts = dict(merge(_LOGGER, "log", facts))
            pairs = " ".join(f"{key}={_shown(value)}" for key, value in facts.items())
            _LOGGER.log(level, "%s %s", event.name, pairs, extra={"outrider": facts})


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return text if text and text.isprintable() and " " not in text else repr(text)


def shows_prints() -> bool:
    """Return whether the log shows people what tasks print. pytest's handlers keep records for its report: that shows
    them beside what a test has printed, and `capsys` has the latter alone.
    """
    return any(type(handler).__module__ != "_pytest.logging" for handler in _handlers(_PRINTED, logging.INFO))


def _has_handler(logger: logging.Logger, level: int) -> bool:
    return any(True for _ in _handlers(logger, level))


def _handlers(logger: logging.Logger, level: int) -> Iterator[logging.Handler]:
    """The handlers that would receive a record of ``level``."""
    above: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while above is not None:
        for handler in above.handlers:
            if handler.level <= level and not isinstance(handler, logging.NullHandler):
                yield handler
        above = above.parent if above.propagate else None
