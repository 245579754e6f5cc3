"""The interface of an observer of a pool's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .events import Event


class Observe(Protocol):
    """An observer: a callable that gets each event; it must be quick and must not raise."""

    tasks: bool  # whether the observer wants the events of single jobs (`JobEvent`), which cost time for every task

    def __call__(self, event: Event, /) -> None: ...

    def wants(self, job: int) -> bool:
        """Return whether the observer wants the events of this job. Called only if ``tasks`` is true."""
        ...
