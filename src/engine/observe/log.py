"""Events as log records: structlog on the standard logger "outrider", whatever the application has configured.

A message is the event's name and its fields as `key=value`. The fields are also in ``record.outrider``, for formatters
that write JSON. The output of tasks goes to the logger "outrider.task", without formatting.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...actors import events as ev
from ..api.printable import lines
from .sink import Sink

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import structlog

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


def level_of(event: ev.Event) -> int:
    if isinstance(event, _DETAILS):
        return logging.DEBUG
    return logging.WARNING if isinstance(event, _WARNINGS) else logging.INFO


class LogSink(Sink):
    """A sink that logs events. Where no handler listens it does nothing, and does not import structlog (80 ms)."""

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
        level = level_of(event)
        if _has_handler(_LOGGER, level):
            facts = {field.name: getattr(event, field.name) for field in fields(event) if field.name != "at"}
            self._log.log(level, event.name, **{"pool": self._pool} | facts)

    @cached_property
    def _log(self) -> structlog.stdlib.BoundLogger:
        import structlog

        # All arguments are given: defaults would come from the application's `structlog.configure`.
        log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
            _LOGGER,
            processors=[structlog.contextvars.merge_contextvars, _as_record],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
            cache_logger_on_first_use=True,
        )
        return log


def _as_record(_: object, __: str, facts: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    event = facts.pop("event")
    pairs = " ".join(f"{key}={_shown(value)}" for key, value in facts.items())
    return (f"{event} {pairs}",), {"extra": {"outrider": dict(facts)}}


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
