"""What a pool's events are poured into. Sinks show; they decide nothing and can harm nothing."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...actors.events import Event


class Sink(ABC):
    """Called on the event loop for every event: quick, and never raises."""

    tasks = False  # whether it wants the events of single tasks, which cost time on the busiest path

    def __call__(self, event: Event) -> None:
        try:
            self.show(event)
        except Exception as error:  # noqa: BLE001 - the edge: what is shown must not fail what runs
            logging.getLogger("outrider").debug("%s could not show %r: %r", type(self).__name__, event, error)

    @abstractmethod
    def show(self, event: Event) -> None: ...

    def close(self) -> None:  # noqa: B027 - most have nothing left
        """Show what is left, in bounded time. Idempotent; called after the last event."""


class Both(Sink):
    """One after the other."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks
        self.tasks = any(sink.tasks for sink in sinks)

    def show(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
