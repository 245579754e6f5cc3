"""What is promised of executors that can start no worker: SIM-23.

SIM-23: such an executor ends within 3 s of the first birth that failed, and for nothing less than four that fail in a
    row (the first of the five that it counts may have been a worker that was killed while it had nothing to do).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from ..daemon import Daemon
    from ..site import Site

ENDS_S = 3.0
TRIES = 4


@dataclass(slots=True)
class Row:
    """Of births that failed, one after another."""

    since: float
    length: int = 0


class ExecutorRules:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._rows: WeakKeyDictionary[Daemon, Row] = WeakKeyDictionary()

    def born(self, daemon: Daemon) -> None:
        self._rows.pop(daemon, None)

    def stillborn(self, daemon: Daemon) -> None:
        row = self._rows.get(daemon)
        if row is None:
            row = self._rows[daemon] = Row(self._site.loop.now)
            daemon.host.later(ENDS_S, lambda: self._should_have_ended(daemon, row))
        row.length += 1

    def gave_up(self, daemon: Daemon) -> None:
        row = self._rows.get(daemon)
        if row is None or row.length < TRIES:
            tries = 0 if row is None else row.length
            self._site.broken("SIM-23", f"the executor of host {daemon.host.number} ends after {tries} failed births")

    def _should_have_ended(self, daemon: Daemon, row: Row) -> None:
        if daemon.host.daemon is not daemon or self._rows.get(daemon) is not row:
            return
        if self._site.loop.now > row.since + ENDS_S + 0.001:  # the machine stood still meanwhile
            row.since = self._site.loop.now
            daemon.host.later(ENDS_S, lambda: self._should_have_ended(daemon, row))
            return
        story = f"no worker can be born on host {daemon.host.number} since {ENDS_S:g} s, and its executor tries on"
        self._site.broken("SIM-23", f"{story} ({row.length} times)")
