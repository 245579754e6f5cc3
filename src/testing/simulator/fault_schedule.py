"""Inject a scenario's faults at their times: pick the target machines, and undo temporary faults later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, assert_never

from ...actors.interfaces import AttemptId
from ...actors.messages import Resize as ResizePool
from ...engine.wire.messages import Cause
from . import faults as f
from .network import IN, OUT

if TYPE_CHECKING:
    from ...actors.messages import PoolMessage
    from .machines import Host
    from .simulation import Simulation

# senders of preemption notices in a storm, of which one is drawn for each notice
BY: tuple[Literal["node", "cloud", "both"], ...] = ("node", "cloud", "both")
# seconds until the cloud reports a machine that it took without notice, of which one is drawn; None: no report
REPORTED_S = (0.2, 20.0, None)
WAYS = {"both": (OUT, IN), "out": (OUT,), "in": (IN,)}


class FaultSchedule:
    """The injector of a scenario's faults.

    Faults with ``after`` wait for an event. ``over`` is set while no fault is scheduled and none has to be undone.
    """

    def __init__(self, sim: Simulation, tell: Callable[[PoolMessage], None]) -> None:
        self._sim, self._tell = sim, tell
        self._seen: Counter[str] = Counter()
        self._waiting: dict[tuple[str, int], list[f.Fault]] = {}
        self.happened: Counter[str] = Counter()  # kind of fault -> number of faults injected so far
        self.over = asyncio.Event()  # set while no fault is scheduled and none has to be undone
        self._pending = 0
        for fault in sim.scenario.faults:
            if isinstance(fault, f.BadMachines) and not fault.at_s and fault.after is None:
                self._inject(fault)  # at once, before the first launch
            elif fault.after is None:
                self._in(fault.at_s, fault)
            else:
                self._waiting.setdefault(fault.after, []).append(fault)
        if not self._pending:
            self.over.set()

    def observed(self, event: str) -> None:
        if self._waiting:
            self._seen[event] += 1
            for fault in self._waiting.pop((event, self._seen[event]), ()):
                self._in(fault.at_s, fault)

    def _in(self, delay_s: float, fault: f.Fault) -> None:
        self._later(delay_s, lambda: self._inject(fault))

    def _later(self, delay_s: float, work: Callable[[], None]) -> None:
        self._pending += 1
        self.over.clear()
        self._sim.loop.call_later(delay_s, self._do, work)

    def _do(self, work: Callable[[], None]) -> None:
        work()
        self._pending -= 1
        if not self._pending:
            self.over.set()

    def _inject(self, fault: f.Fault) -> None:  # noqa: PLR0912 (a table)
        sim, cloud = self._sim, self._sim.cloud
        who = getattr(fault, "who", None)
        hosts = () if who is None else self._victim(who)
        sim.trace("fault", kind=type(fault).__name__, hosts=tuple(host.number for host in hosts))
        sim.referee.fault_injected(fault, hosts)
        if who is None or hosts:
            self.happened[type(fault).__name__] += 1
        match fault:
            case f.ClientCut(for_s=for_s):
                sim.cut_client()
                self._later(for_s, sim.mend_client)
            case f.Drought(for_s=for_s):
                cloud.droughts += 1
                self._later(for_s, self._end_drought)
            case f.LaunchErrors(calls=calls, retry_after_s=again):
                cloud.launch_errors.extend([again] * calls)
            case f.LostAnswers(calls=calls):
                cloud.lost_answers += calls
            case f.BadMachines(machines=machines, how=how):
                for _ in range(machines):
                    cloud.bad.append(how)
            case f.TerminateErrors(for_s=for_s):
                cloud.terminate_errors += 1
                self._later(for_s, self._end_terminate_error)
            case f.WatchError():
                cloud.break_events()
            case f.Echo(reports=reports):
                for tell, batch in list(sim.past)[-reports:]:
                    tell(batch)
            case f.Resize(wanted=wanted):
                sim.referee.resized(wanted)
                self._tell(ResizePool(wanted))
            case f.Outage(share=share, silent=silent):
                for host in self._all()[: max(1, round(share * len(self._all())))]:
                    cloud.lose(host.machine, "its zone is out", silent=silent, reported_s=5.0)
            case f.Storm():
                self._storm(fault)
            case _:
                for host in hosts:
                    self._to_host(fault, host)

    def _storm(self, storm: f.Storm) -> None:
        """Draw which machines the cloud takes, when, and whether with notice.

        Each of these losses counts as one fault.
        """
        dice, hosts = self._sim.dice.of("storm"), self._all()
        for place in sorted(dice.sample(range(len(hosts)), round(storm.share * len(hosts)))):
            host, who, taken_s = hosts[place], place / len(hosts), dice.uniform(0.0, storm.within_s)
            if dice.random() < storm.noticed:
                noticed_s = max(0.0, taken_s - storm.seconds)
                left_s, by = taken_s - noticed_s, dice.choice(BY)
                notice = f.Notice(at_s=noticed_s, who=who, seconds=left_s, by=by, after_s=left_s)
                self._later(noticed_s, partial(self._strike, notice, host))
            else:
                death = f.Death(at_s=taken_s, who=who, silent=dice.random() < 0.5, reported_s=dice.choice(REPORTED_S))
                self._later(taken_s, partial(self._strike, death, host))

    def _strike(self, fault: f.Notice | f.Death, host: Host) -> None:
        """Apply a fault of a storm to a machine, if the machine still runs."""
        if host.on:
            self._sim.trace("fault", kind=type(fault).__name__, hosts=(host.number,))
            self._sim.referee.fault_injected(fault, (host,))
            self.happened[type(fault).__name__] += 1
            self._to_host(fault, host)

    def _to_host(self, fault: f.Fault, host: Host) -> None:
        sim = self._sim
        match fault:
            case f.Notice():
                self._notice(fault, host)
            case f.Death(silent=silent, reported_s=reported_s):
                sim.cloud.lose(host.machine, "it died", silent=silent, reported_s=reported_s)
            case f.Reset():
                if host.line.circuit is not None:
                    host.line.circuit.close()
            case f.Forgery(attempts=most):
                running = sim.referee.jobs.running
                others = [AttemptId(attempt) for attempt, on in running.items() if on is not host][:most]
                sim.connector.forge(host, others)
                host.do(lambda: host.daemon.forge(others) if host.daemon is not None else None)
            case f.DaemonDeath(restarts=restarts):
                host.lose_daemon(restarts=restarts)
            case f.WorkerDeath():
                self._kill_worker(host)
            case f.Barren(for_s=for_s):
                host.barren += 1
                self._later(for_s, lambda: _end_barren(host))
                self._kill_worker(host, idle=True)
            case f.Partition(for_s=for_s, way=way):
                host.line.block(*WAYS[way])
                self._later(for_s, lambda: host.line.unblock(*WAYS[way]))
            case f.Freeze(for_s=for_s):
                host.freeze()
                self._later(for_s, host.thaw)
            case f.Slow(for_s=for_s, by_s=by_s):
                host.line.extra_s += by_s
                self._later(for_s, lambda: _end_slow(host, by_s))
            case _:
                raise AssertionError(fault)

    def _notice(self, fault: f.Notice, host: Host) -> None:
        self._give_notice(fault, host, fault.seconds)
        match fault.then:
            case "dies":
                end = lambda: self._sim.cloud.lose(host.machine, "interrupted", reported_s=0.5)  # noqa: E731
                self._later(fault.after_s, end)
            case "withdrawn":
                self._later(fault.after_s, lambda: self._give_notice(fault, host, None))
            case "nothing":
                pass
            case _:
                assert_never(fault.then)

    def _give_notice(self, fault: f.Notice, host: Host, seconds: float | None) -> None:
        if fault.by != "node":
            self._sim.cloud.give_notice(host.machine, seconds)
        if fault.by != "cloud":
            host.do(lambda: host.daemon.notice("node", seconds) if host.daemon is not None else None)

    def _kill_worker(self, host: Host, *, idle: bool = False) -> None:
        """Kill one worker of the host: a worker that runs a task or, if none does and ``idle`` is set, any worker."""
        workers = [] if host.daemon is None else list(host.daemon.workers.values())
        for process in [*(each for each in workers if each.busy), *(workers if idle else ())][:1]:
            process.die(Cause.SIGNAL, 11, "its process was killed by SIGSEGV")

    def _all(self) -> list[Host]:
        return [host for host in self._sim.cloud.alive.values() if host.on]

    def _victim(self, who: f.Who) -> tuple[Host, ...]:
        if who == "newest":  # unlike other targets, this machine may still be booting
            newest = next(reversed(self._sim.cloud.alive.values()), None)
            return () if newest is None else (newest,)
        hosts = self._all()
        if who == "head":
            return tuple(host for host in hosts if host is self._sim.referee.worlds.head)
        return (hosts[min(int(who * len(hosts)), len(hosts) - 1)],) if hosts else ()

    def _end_drought(self) -> None:
        self._sim.cloud.droughts -= 1

    def _end_terminate_error(self) -> None:
        self._sim.cloud.terminate_errors -= 1


def _end_barren(host: Host) -> None:
    host.barren -= 1


def _end_slow(host: Host, by_s: float) -> None:
    host.line.extra_s -= by_s
