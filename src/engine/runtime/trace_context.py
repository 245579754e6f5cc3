"""The continuation of the caller's trace in a task. The pickled arguments contain the trace's context; unpickling
restores it.

The variables are those of OpenTelemetry's specification for processes: TRACEPARENT, TRACESTATE, BAGGAGE.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..node.context import TaskContext, current, has_process
from ..node.environ import Variable

VARIABLES = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE", "baggage": "BAGGAGE"}


class Traced(dict[str, Any]):
    """The keyword arguments of a call, together with the caller's trace context, ``carrier``.

    When the arguments are unpickled in the task, the caller's trace continues there.
    """

    def __init__(self, kwargs: Mapping[str, Any], carrier: Mapping[str, str]) -> None:
        super().__init__(kwargs)
        self.carrier = dict(carrier)

    def __reduce__(self) -> tuple[Any, ...]:
        return continued, (self.carrier, dict(self))


def continued(carrier: Mapping[str, str], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Continue the trace until the current task ends; return ``kwargs``."""
    task = current()
    if task is not None:
        if has_process(task):
            _set_variables(task, carrier)
        _attach(task, carrier)
    return kwargs


_variables = {name: Variable(name) for name in VARIABLES.values()}


def _set_variables(task: TaskContext, carrier: Mapping[str, str]) -> None:
    texts = {VARIABLES[key]: carrier[key] for key in VARIABLES if key in carrier}
    outside = {name: os.environ.pop(name) for name in _variables if name in os.environ}
    for name, text in texts.items():
        _variables[name].set(text)

    def restore(_failed: bool) -> None:
        for name in _variables:
            os.environ.pop(name, None)
        os.environ.update(outside)

    task.closing.append(restore)


def _attach(task: TaskContext, carrier: Mapping[str, str]) -> None:
    """Make the caller's span the current one, if opentelemetry is installed, so that the function's spans become its
    children.
    """
    with suppress(ImportError):
        from opentelemetry import context, propagate

        token = context.attach(propagate.extract(carrier))
        task.closing.append(lambda _failed: context.detach(token))
