"""A simulated worker process: takes its attempts in order and behaves as the scenario defines for their jobs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ....actors.interfaces import AttemptId
from ...wire.messages import Cause, Done, Failed, Run, Value
from .kept_values import Result, combined

if TYPE_CHECKING:
    import asyncio

    from .daemon import Daemon
    from .scenario import Job

BIRTH_S = 0.003
LEAVES_S = 0.005  # seconds from the result of a `fresh` process, which serves a single task, to the end of the process
POISON_S = 0.02
SMALL = 0.15  # share of the results to be kept that are so small that they are sent to the client instead


class Process:
    def __init__(self, daemon: Daemon, worker: int, *, fresh: bool) -> None:
        self.daemon, self.id, self.fresh = daemon, worker, fresh
        self.runs: Run | None = None
        self.has_run = False  # whether the process has ended at least one attempt
        self.created_at = self.born_at = daemon.sim.loop.now
        self._unread: deque[Run] = deque()
        # attempt whose result is to be kept -> (number of the job, its arguments)
        self._arguments: dict[int, tuple[int, list[str]]] = {}
        self._ends: asyncio.TimerHandle | None = None
        self._meeting: Meeting | None = None
        self._stopped = False
        self.born = False
        daemon.host.later(BIRTH_S, self._begin)

    def _begin(self) -> None:
        if self._stopped:
            return
        if self.daemon.host.barren:
            self.daemon.sim.referee.executors.stillborn(self.daemon)
            self.die(Cause.EXIT, 1, "its folder cannot be made")
            return
        self.born, self.born_at = True, self.daemon.sim.loop.now
        self.daemon.sim.referee.executors.born(self.daemon)
        self.daemon.born(self)
        if self._unread and not self.busy and not self._stopped:
            self._next()

    def deliver(self, run: Run, body: bytes) -> None:  # noqa: ARG002 (the real one reads the body)
        if self.daemon.sim.jobs[run.job].keep:
            self._arguments[run.attempt] = self.daemon.arguments_of(run)
        self._unread.append(run)
        if self.born and self.runs is None:
            self._next()

    @property
    def busy(self) -> bool:
        return self.runs is not None

    def take_back(self) -> list[int]:
        """Remove and return the attempts that the process has not begun, oldest first."""
        unread = [run.attempt for run in self._unread]
        self._unread.clear()
        return unread

    def stop(self) -> None:
        self._stopped = True
        run = self._over("stopped")
        if run is not None and self._meeting is not None:
            self._meeting.leave(self)

    def die(self, cause: Cause, code: int, detail: str) -> None:
        self.daemon.gone(self, cause, code, detail)

    def peers_are_here(self, takes_s: float) -> None:
        self._ends = self.daemon.host.later(takes_s, self._finish)

    def a_peer_is_gone(self, notice_s: float | None) -> None:
        """React to the loss of another rank: after ``notice_s`` seconds, raise an error as training frameworks do.

        None: hang.
        """
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
        if notice_s is not None:
            self._ends = self.daemon.host.later(notice_s, lambda: self._finish(raises="Connection closed by peer"))

    def _next(self) -> None:
        self.runs = run = self._unread.popleft()
        sim, host = self.daemon.sim, self.daemon.host
        job = sim.jobs[run.job]
        sim.referee.began(host, run.attempt)
        if job.ends == "poison":
            self._ends = host.later(POISON_S, lambda: self._poison(run.attempt))
        elif job.ends == "hangs" or sim.orders[AttemptId(run.attempt)].number <= job.hangs:
            pass
        elif job.ranks and job.collective:
            self._meeting = sim.meeting(run.attempt)
            self._meeting.enter(self, job)
        elif job.ends == "dies":
            self._ends = host.later(job.takes_s, self._exit)
        else:
            self._ends = host.later(job.takes_s, self._finish)

    def _finish(self, raises: str | None = None) -> None:
        if self._stopped or self.runs is None:
            return
        job = self.daemon.sim.jobs[self.runs.job]
        if raises is None and job.ends == "raises":
            raises = "its own"
        if raises is None and job.ends == "dies":
            self._exit()
            return
        run = self._over("returned" if raises is None else "raised")
        if run is None:
            return
        if self._meeting is not None:
            self._meeting.finished(self)
            self._meeting = None
        took_us = int(job.takes_s * 1e6)
        if raises is None:
            message: Done | Failed = Done(run.attempt, self._value(run, job), took_us)
        else:
            message = Failed(run.attempt, "call", "builtins.RuntimeError", raises, "", None, took_us)
        self.daemon.finished(self, message)
        if self.fresh:
            self.daemon.host.later(LEAVES_S, lambda: self.die(Cause.EXIT, 0, "its process exited with status 0"))
        elif self._unread and not self.busy:
            self._next()

    def _poison(self, attempt: int) -> None:
        sim, host = self.daemon.sim, self.daemon.host
        sim.referee.jobs.poisoned(host, attempt)
        sim.cloud.lose(host.machine, "its kernel panicked", reported_s=None)

    def _exit(self) -> None:
        self.die(Cause.EXIT, 3, "its process exited with status 3")

    def _value(self, run: Run, job: Job) -> Value:
        """Return the attempt's result. It contains the attempt's number, so that the referee can verify its origin."""
        if job.keep:
            return self._kept(run)
        name = f"result-{run.attempt}"
        if job.large:
            self.daemon.blobs[name] = name.encode()
            return Value(b"", None, name)
        return Value(name.encode())

    def _kept(self, run: Run) -> Value:
        """Return a result of random size: a blob that the node keeps or, if it is small, the data itself."""
        drawn = self.daemon.sim.dice.of("kept", run.attempt)
        data = Result(combined(*self._arguments.pop(run.attempt)), run.attempt, "." * drawn.randrange(64)).pickled()
        if drawn.random() < SMALL:
            return Value(data)
        name = f"kept-by-{run.attempt}"
        self.daemon.blobs[name] = data
        return Value(b"", (len(data),), name)

    def _over(self, how: str) -> Run | None:
        run, self.runs = self.runs, None
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
        if run is not None:
            self.daemon.sim.referee.ended(self.daemon.host, run.attempt, how)
            if not self.has_run:
                self.has_run = True
                self.daemon.sim.referee.executors.started(self)
        return run


class Meeting:
    """The ranks of one generation, which wait for each other as in collective operations.

    The ranks finish only after all of them have begun. If one rank dies, the other ranks cannot finish.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranks: dict[Process, Job] = {}
        self._came = 0
        self._broken = False

    def enter(self, process: Process, job: Job) -> None:
        self._ranks[process] = job
        self._came += 1
        if self._broken:
            process.a_peer_is_gone(job.peers_notice_s)
        elif self._came == self._size:
            for each, theirs in list(self._ranks.items()):
                each.peers_are_here(theirs.takes_s)

    def finished(self, process: Process) -> None:
        """Remove a rank that has its result: the end of its process does not affect the other ranks."""
        self._ranks.pop(process, None)

    def leave(self, process: Process) -> None:
        """Remove a rank that ends without a result, and let all other ranks lose their peer."""
        if self._ranks.pop(process, None) is not None and not self._broken:
            self._broken = True
            for each, job in list(self._ranks.items()):
                each.a_peer_is_gone(job.peers_notice_s)
