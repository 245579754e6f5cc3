"""Events as log records of the standard logger "outrider", whatever the application has configured.

A message is the event's name and its fields as `key=value`, and what the application has bound to structlog's context
variables. All this is also in ``record.outrider``, for formatters that write JSON. The output of tasks goes to the
logger "outrider.task", without formatting.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import fields

from ...actors import events as ev
from ..api.printable import lines
from .sink import Sink

_LOGGER = logging.getLogger("outrider")
_LOGGER.addHandler(logging.NullHandler())  # without a handler, Python prints a library's warnings on stderr
_PRINTED = logging.getLogger("outrider.task")

_WARNINGS = (
    ev.LaunchFailed,
    ev.TerminateFailed,
    ev.ProviderWarned,
    ev.NodeLate,
    ev.NodeSuspect,
    ev.NodeNoticed,
    ev.NodeFailed,
    ev.NodeLost,
    ev.NetworkSilent,
    ev.TaskRetried,
    ev.GenerationLost,
)
_DETAILS = (ev.TaskSubmitted, ev.TaskStarted, ev.TaskFinished)


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
                    _PRINTED.info("%s", line, extra={"outrider": where | {"stream": event.stream}})
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


def _has_handler(logger: logging.Logger, level: int) -> bool:
    """Return whether any handler would receive a record of ``level``."""
    if not logger.isEnabledFor(level):
        return False
    above: logging.Logger | None = logger
    while above is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in above.handlers):
            return True
        above = above.parent if above.propagate else None
    return False
