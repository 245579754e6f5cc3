"""The rules about executors that can start no worker: SIM-23 and 25.

SIM-23: such an executor ends within 3 s of the first birth that failed, and for nothing less than four that fail in a
    row (the first of the five that it counts may have been a worker that was killed while it had nothing to do).
SIM-25: a pool stops asking for nodes because they can start no worker only when enough have ended that had run
    nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from .....actors.fleet_controller import UNFIT_NODES
from .....lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ..daemon import Daemon
    from ..host import Host
    from ..simulation import Simulation

ENDS_S = 3.0
TRIES = 4


@dataclass(slots=True)
class Row:
    """A row of starts that failed, one after another."""

    since: float
    length: int = 0


class ExecutorRules:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._rows: WeakKeyDictionary[Daemon, Row] = WeakKeyDictionary()
        self._used: set[int] = set()  # hosts where an attempt has begun
        self._unused = 0  # executors that ended where none had
        self._reasons: set[str] = set()  # why executors ended

    def born(self, daemon: Daemon) -> None:
        self._rows.pop(daemon, None)

    def stillborn(self, daemon: Daemon) -> None:
        row = self._rows.get(daemon)
        if row is None:
            row = self._rows[daemon] = Row(self._sim.loop.now)
            daemon.host.later(ENDS_S, lambda: self._should_have_ended(daemon, row))
        row.length += 1

    def began(self, host: Host) -> None:
        self._used.add(host.number)

    def launch_failed(self, error: str) -> None:
        if error in self._reasons and self._unused < UNFIT_NODES:
            story = f"no further node is asked for ({error}), and {self._unused} have ended that had run nothing"
            self._sim.broken("SIM-25", story)

    def gave_up(self, daemon: Daemon, reason: str) -> None:
        self._reasons.add(reason)
        self._unused += daemon.host.number not in self._used
        row = self._rows.get(daemon)
        if row is None or row.length < TRIES:
            tries = 0 if row is None else row.length
            self._sim.broken("SIM-23", f"the executor of host {daemon.host.number} ends after {tries} failed starts")

    def _should_have_ended(self, daemon: Daemon, row: Row) -> None:
        if daemon.host.daemon is not daemon or self._rows.get(daemon) is not row:
            return
        if self._sim.loop.now > row.since + ENDS_S + 0.001:  # the machine stood still meanwhile
            row.since = self._sim.loop.now
            daemon.host.later(ENDS_S, lambda: self._should_have_ended(daemon, row))
            return
        story = f"no worker can be born on host {daemon.host.number} since {ENDS_S:g} s, and its executor tries on"
        self._sim.broken("SIM-23", f"{story} ({row.length} times)")
