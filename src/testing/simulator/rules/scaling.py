"""The rules about pools that are scaled by load (the number of nodes follows the work): SIM-27 to 29.

SIM-27: such a pool wants no more nodes than its maximum, and no fewer than its minimum or the user's last resize.
SIM-28: the pool releases a node only if the node runs nothing and has run nothing for the allowed idle time. Exception:
    the newest node, if the pool has one node too many because another node's preemption notice was withdrawn.
SIM-29: such a pool grows only while jobs are unfinished, or on the user's request. Without jobs it returns to its
    minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....providers.base import MachineId

if TYPE_CHECKING:
    from ..machines import Host, Sim

SLACK_S = 0.001


class ScalingRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._broken = sim.broken
        self.floor = sim.scenario.min
        self._floor_since = 0.0
        self._ended_at: dict[MachineId, float] = {}  # machine -> time at which its last attempt ended
        self._withdrawn_at = -1.0  # time at which a preemption notice was last withdrawn

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
