"""A machine of a simulation: its power, its line to the client, and its executor."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from .daemon import Daemon
from .network import OUT, Line

if TYPE_CHECKING:
    import asyncio

    from ....providers.base import MachineId
    from .simulation import Simulation


class Host:
    """One machine: its power, its line to the client, and its executor."""

    def __init__(self, sim: Simulation, number: int, machine: MachineId) -> None:
        self.sim, self.number, self.machine = sim, number, machine
        self.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.cpus = sim.scenario.cpus[number % len(sim.scenario.cpus)]
        self.on = False
        self.dead = False  # whether the machine was switched off for good
        self.frozen = 0
        self.daemon: Daemon | None = None
        self.connected = False  # whether the client is connected to this machine
        self.barren = 0  # number of active `faults.Barren`: while it is not 0, no worker can be started
        # how the machine fails every connection (``how`` of `faults.BadMachines`); None: it works
        self.refuses: str | None = None
        self.line = Line(
            sim.loop, sim.dice.of("line", number), sim.dice.within(sim.scenario.cloud.latency_s, "lat", number)
        )
        self.line.changed = self.changed
        # called when the machine or its line to the client fails or works again
        self.watch: Callable[[], None] = lambda: None
        self._deferred: list[Callable[[], None]] = []
        self._ports = count(20_000)

    def boot(self) -> None:
        if not self.dead:
            self.on = True
            self.daemon = Daemon(self)

    @property
    def answers(self) -> bool:
        """Return whether the machine replies to a connection attempt, be it with an acceptance or a refusal."""
        return self.on and not self.frozen and self.line.open and self.refuses != "deaf"

    @property
    def healthy(self) -> bool:
        """Return whether the machine would answer a heartbeat."""
        return self.answers and self.daemon is not None

    def changed(self) -> None:
        if self.daemon is not None:
            self.daemon.check_hearing()
        self.watch()

    def do(self, work: Callable[[], None]) -> None:
        """Run ``work`` on this machine: now, or after the end of a freeze; not at all if the machine is off."""
        if self.frozen:
            self._deferred.append(work)
        elif self.on:
            work()

    def later(self, delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return self.sim.loop.call_later(delay_s, self.do, work)

    def freeze(self) -> None:
        self.frozen += 1
        self.changed()

    def thaw(self) -> None:
        self.frozen -= 1
        if not self.frozen:
            deferred, self._deferred = self._deferred, []
            for work in deferred:
                self.do(work)
        self.changed()

    def power_off(self, *, silent: bool) -> None:
        """End the machine and everything on it.

        If ``silent``, the client's connections are not closed: the client must notice the silence.
        """
        self.dead = True
        if not self.on:
            return
        self.on = False
        self.sim.referee.machine_lost(self)
        self._deferred.clear()
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.vanish()
        circuit = self.line.circuit
        if circuit is not None:
            circuit.vanish() if silent else circuit.close(by=OUT)
        self.changed()

    def lose_daemon(self, *, restarts: bool) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.vanish()
            if self.line.circuit is not None:
                self.line.circuit.close(by=OUT)
            if restarts:
                self.daemon = Daemon(self)
        self.changed()

    def free_port(self) -> int:
        return next(self._ports)
