"""The rule about waves (machines that were launched together): SIM-21.

SIM-21: let T be the time until three quarters of a launch's machines have answered. For each machine that has not
    answered after 1.5 times T, and at least 10 s after T, the pool requests a substitute. It requests substitutes for
    at most half of the nodes at a time, and for no machine that has answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from ....actors.interfaces import NodeId
from ....actors.node_lives import TRIES_AT_ONCE
from ....lazy_dataclass import dataclass
from ....providers.base import Machine, MachineId

if TYPE_CHECKING:
    from ..machines import Sim

GRACE_S = 10.0
SLACK_S = 0.5


@dataclass(slots=True, eq=False)
class Wave:
    machines: dict[MachineId, None]
    launched_at: float
    answered: set[MachineId] = field(default_factory=set)

    @property
    def quorum(self) -> int:
        return max(1, len(self.machines) * 3 // 4)


class WaveRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._wave_of: dict[MachineId, Wave] = {}

    def launched(self, machines: Sequence[Machine]) -> None:
        wave = Wave(dict.fromkeys(machine.id for machine in machines), self._sim.loop.now)
        self._wave_of |= dict.fromkeys(wave.machines, wave)

    def queued(self, machine: MachineId) -> None:
        """Do not compare a machine that waits in a queue with the other machines of its launch (its wave)."""
        wave = self._wave_of[machine]
        wave.machines.pop(machine, None)
        self._wave_of[machine] = Wave({machine: None}, self._sim.loop.now)

    def answered(self, machine: MachineId) -> None:
        wave = self._wave_of[machine]
        if machine in wave.answered:
            return
        wave.answered.add(machine)
        if len(wave.answered) == wave.quorum:
            took_s = self._sim.loop.now - wave.launched_at
            due_at = wave.launched_at + max(1.5 * took_s, took_s + GRACE_S)
            self._sim.loop.call_at(due_at + SLACK_S, self._due, wave)

    def called_late(self, node: NodeId) -> None:
        machine = self._sim.referee.nodes.seats[node].machine
        if machine in self._wave_of[machine].answered:
            self._sim.broken("SIM-21", f"node {node} has answered, and is called late")

    def _due(self, wave: Wave) -> None:
        nodes = self._sim.referee.nodes
        seats = [seat for machine in wave.machines if (seat := nodes.seat_of(machine)) is not None]
        silent = [seat.node for seat in seats if seat.state == "booting" and seat.machine not in wave.answered]
        # so many nodes boot that some still wait for the first attempt to connect
        waits = nodes.states["booting"] > TRIES_AT_ONCE
        if silent and not waits and not nodes.closing and nodes.states["late"] < (nodes.wanted + 1) // 2:
            of = f"{len(wave.answered)} of {len(wave.machines)}"
            self._sim.broken("SIM-21", f"{of} machines of a launch have answered, and nodes {silent} are waited for")
