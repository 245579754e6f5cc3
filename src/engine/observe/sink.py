"""The base of everything that shows events: the log, plain lines, the live table."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...actors.events import Event


class Sink(ABC):
    """A receiver of all events, called on the event loop. It must be quick; what it raises is logged and dropped."""

    tasks = False  # whether it wants events of single tasks, which cost time on the busiest path

    def __call__(self, event: Event) -> None:
        try:
            self.show(event)
        except Exception as error:  # noqa: BLE001 - a failing display must not fail the pool
            logging.getLogger("outrider").debug("%s could not show %r: %r", type(self).__name__, event, error)

    @abstractmethod
    def show(self, event: Event) -> None: ...

    def close(self) -> None:  # noqa: B027 - most sinks hold nothing back
        """Show what was held back, in bounded time. Idempotent; called after the last event."""


class SinkGroup(Sink):
    """A sink that passes each event to several sinks in turn."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks
        self.tasks = any(sink.tasks for sink in sinks)

    def show(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
