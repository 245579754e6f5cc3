"""The rules about pools whose number of nodes follows their work: SIM-27 to 29.

SIM-27: they want no more nodes than their most, and no fewer than their least, or what the user has set since.
SIM-28: only a node leaves on which nothing runs, and nothing has run for as long as nodes may be idle; or the newest,
    when there is one too many because another's notice is withdrawn.
SIM-29: they grow for jobs that have not settled, or because the user says so. Without jobs they come back to their
    least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....providers.base import MachineId

if TYPE_CHECKING:
    from ..host import Host
    from ..simulation import Simulation

SLACK_S = 0.001


class ScalingRules:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._broken = sim.broken
        self.floor = sim.scenario.min
        self._floor_since = 0.0
        self._ended_at: dict[MachineId, float] = {}  # when the last attempt did
        self._withdrawn_at = -1.0  # when a notice last was

    def resized(self, floor: int) -> None:
        self.floor = min(floor, self._sim.scenario.max)
        self._floor_since = self._sim.loop.now

    def ended(self, host: Host) -> None:
        self._ended_at[host.machine] = self._sim.loop.now

    def scaled(self, wanted: int, before: int) -> None:
        scenario, now = self._sim.scenario, self._sim.loop.now
        if not self.floor <= wanted <= scenario.max:
            self._broken("SIM-27", f"{wanted} nodes are wanted, of {self.floor} to {scenario.max}")
        if wanted > before and not self._sim.unsettled and self._floor_since != now:
            self._broken("SIM-29", f"it grows from {before} to {wanted} nodes, and there is no job")

    def notice_withdrawn(self) -> None:
        self._withdrawn_at = self._sim.loop.now

    def draining(self, machine: MachineId) -> None:
        idle_s, now = self._sim.scenario.idle_s, self._sim.loop.now
        if idle_s is None or self._withdrawn_at == now:
            return
        seat = self._sim.referee.nodes.seat_of(machine)
        if busy := self._sim.referee.jobs.running_on[self._sim.hosts[machine]]:
            self._broken("SIM-28", f"machine {machine} leaves, and attempts {[*busy]} run on it")
        since = max(self._ended_at.get(machine, 0.0), 0.0 if seat is None else seat.ready_at)
        if now - since < idle_s - SLACK_S:
            self._broken("SIM-28", f"machine {machine} leaves {now - since:.1f} s after its last work")

    def rested(self) -> None:
        wanted = self._sim.referee.nodes.wanted
        if self._sim.scenario.idle_s is not None and wanted != self.floor:
            self._broken("SIM-29", f"{wanted} nodes are wanted at rest, and {self.floor} are the least")
