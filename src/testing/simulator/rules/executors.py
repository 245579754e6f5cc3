"""The rules about executors (the daemons of nodes) that can start no worker: SIM-23 and 25.

SIM-23: an executor that can start no worker ends within 3 s of the first failed start, but only after at least four
    failed starts in a row. A start also counts as failed if the worker ends within `WAITED_S` seconds without having
    run a task. (The first of the executor's five workers may be an older worker that has run no task.)
SIM-25: a pool stops launching nodes because of such executors only after enough of them have ended without having run
    a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ....actors.fleet_controller import UNFIT_NODES
from ....lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ..machines import Daemon, Host, Process, Sim

ENDS_S = 3.0
TRIES = 4
WAITED_S = 1.0  # a worker that has lived for so many seconds counts as started, whatever happens to it later


@dataclass(slots=True)
class Row:
    """A series of failed starts of workers in a row: the time of the first, and their number."""

    since: float
    length: int = 0


@dataclass(slots=True)
class FailedStarts:
    """The number of an executor's failed starts since the last success, and the time of the last failure.

    Only the success of a worker that was created after that failure resets the number.
    """

    count: int = 0
    last_at: float = 0.0


class ExecutorRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._rows: WeakKeyDictionary[Daemon, Row] = WeakKeyDictionary()
        self._failed: WeakKeyDictionary[Daemon, FailedStarts] = WeakKeyDictionary()
        self._used: set[int] = set()  # numbers of the hosts on which an attempt has begun
        self._unused = 0  # number of executors that gave up on hosts on which no attempt had begun
        self._reasons: set[str] = set()  # reasons that executors reported when they gave up

    def born(self, daemon: Daemon) -> None:
        self._rows.pop(daemon, None)

    def stillborn(self, daemon: Daemon) -> None:
        self._start_failed(daemon)
        row = self._rows.get(daemon)
        if row is None:
            row = self._rows[daemon] = Row(self._sim.loop.now)
            daemon.host.later(ENDS_S, lambda: self._should_have_ended(daemon, row))
        row.length += 1

    def gone(self, process: Process) -> None:
        """Count the start of a worker that has just ended as a success or as a failure."""
        if not process.has_run and self._sim.loop.now - process.born_at < WAITED_S:
            self._start_failed(process.daemon)
        else:
            self.started(process)

    def started(self, process: Process) -> None:
        """Count a worker's start as a success, because it has run a task or lived for `WAITED_S` seconds."""
        failed = self._failed.get(process.daemon)
        if failed is not None and process.created_at > failed.last_at:
            del self._failed[process.daemon]

    def _start_failed(self, daemon: Daemon) -> None:
        failed = self._failed.setdefault(daemon, FailedStarts())
        failed.count += 1
        failed.last_at = self._sim.loop.now

    def began(self, host: Host) -> None:
        self._used.add(host.number)

    def launch_failed(self, error: str) -> None:
        if error in self._reasons and self._unused < UNFIT_NODES:
            story = f"no further node is asked for ({error}), and {self._unused} have ended that had run nothing"
            self._sim.broken("SIM-25", story)

    def gave_up(self, daemon: Daemon, reason: str) -> None:
        self._reasons.add(reason)
        self._unused += daemon.host.number not in self._used
        failed = self._failed.get(daemon, FailedStarts())
        if failed.count < TRIES:
            story = f"the executor of host {daemon.host.number} ends after {failed.count} failed starts"
            self._sim.broken("SIM-23", story)

    def _should_have_ended(self, daemon: Daemon, row: Row) -> None:
        if daemon.host.daemon is not daemon or self._rows.get(daemon) is not row:
            return
        # the machine was frozen, so its executor gets the whole time again
        if self._sim.loop.now > row.since + ENDS_S + 0.001:
            row.since = self._sim.loop.now
            daemon.host.later(ENDS_S, lambda: self._should_have_ended(daemon, row))
            return
        story = f"no worker can be born on host {daemon.host.number} since {ENDS_S:g} s, and its executor tries on"
        self._sim.broken("SIM-23", f"{story} ({row.length} times)")
