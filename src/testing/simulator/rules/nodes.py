"""The rules about nodes and machines: SIM-6, 11 to 16, 24 and 33.

A node is noticed when the cloud has announced that it will take the node's machine. A spare stands by to replace a
lost node. A machine is late when other machines of the same launch answered long ago.

SIM-6: no attempt is sent to a node that is noticed, draining, standing by, or given up.
SIM-11: if the cloud has machines, the pool returns to the wanted number of nodes and of spares.
SIM-12: every machine that costs money is a node, will become one, or is being ended; a closed pool has no such machine.
SIM-13: no node is replaced twice: no machine beyond the wanted number is requested, except in place of late machines.
SIM-14: within 5 s of a notice, the pool has requested a replacement. No connected spare stands by while fewer nodes
    work than are wanted.
SIM-15: no living node is given up because of a freeze or a partition of at most 3 s, a closed connection, or an outage
    of the client's own network that is shorter than the lease. No working node is given up while it may still boot.
SIM-16: the pool notices within 10 s that a machine died, even without a report from the provider; within 13 s if no
    connected node was left and the reachability probe had to run.
SIM-24: the number of machines that cost money is at most the number of wanted nodes and spares. Machines that will not
    stay do not count: late, noticed, draining and ended machines, and surplus machines of a launch without an answer.
SIM-33: the number of late machines, including those that are being ended, is at most half the number of wanted nodes,
    rounded up. So, with SIM-24, a pool of N nodes has at most N machines, its spares and these late machines, besides
    the machines that it releases.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import field
from typing import TYPE_CHECKING

from ....actors.interfaces import NodeId
from ....lazy_dataclass import dataclass
from ....providers.base import Machine, MachineId, PreemptionNotice
from .. import faults as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..machines import Host, Sim

REPLACED_S = 5.0
SEEN_S = 10.0
PROBE_S = 3.0
MILD_S = 3.0
MEMORY_S = 30.0  # faults of a machine that are older than so many seconds do not excuse its loss
ENDED_S = 60.0  # seconds after the end of a node within which its machine must have ended
BACK_OFF_S = 61.0  # the longest pause in seconds between a failed launch and the next launch
PRESENT = {"booting", "ready", "standby"}


@dataclass(slots=True, eq=False)
class Seat:
    """A node of the pool, with the state that the pool's events have reported."""

    node: NodeId
    machine: MachineId
    launched_at: float
    state: str = "booting"  # "booting", "late", "ready", "standby", "draining" or "over"
    ready_at: float = 0.0  # time at which the node last became ready
    over_at: float | None = None
    lost_at: float | None = None
    # source of a preemption notice ("node" or "cloud") -> time at which the pool got the notice
    notices: dict[str, float] = field(default_factory=dict)
    queued: bool = False
    late: bool = False  # whether the node was reported late and has not become ready since

    @property
    def present(self) -> bool:
        return self.state in PRESENT and not self.notices

    @property
    def works(self) -> bool:
        return self.state == "ready" and not self.notices


class NodeRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._broken = sim.broken
        self.wanted = sim.scenario.nodes
        self.gave_up_at = float("-inf")  # time at which the pool reported that it stops launching machines
        self.closing = False
        self._resized_at = -1.0
        self._fewer_by = 0
        self.seats: dict[NodeId, Seat] = {}
        self._by_machine: dict[MachineId, Seat] = {}
        self.states: Counter[str] = Counter()  # state -> number of nodes in this state
        # number of nodes that are `present`, and number of nodes that are ready for work (`works`)
        self._present = self._working = 0
        self._standby: dict[NodeId, Seat] = {}
        self._late: dict[MachineId, Seat] = {}  # nodes that were not ready in time, and whose machines still cost money
        # machines that still cost money although their nodes are not `present`
        self._leaving: dict[MachineId, None] = {}
        self._launching = 0
        # number of machines that may be too many, because fewer were needed after their launch was requested
        self._surplus = 0
        # number of nodes that became `present` again at the time `_returned_at`
        self._returned, self._returned_at = 0, -1.0
        self._failed_at = float("-inf")
        self._flapped_at = float("-inf")
        self._silent_at = float("-inf")
        # (time by which the machine must have ended or become a node, machine)
        self._orphans: deque[tuple[float, MachineId]] = deque()
        self._faults: dict[MachineId, list[tuple[float, f.Fault]]] = {}
        self._all_faults: deque[tuple[float, f.Fault]] = deque(maxlen=256)
        # machine that is not a node yet -> its preemption notices: source -> time
        self._early: dict[MachineId, dict[str, float]] = {}
        self._changed = False  # whether the number of wanted or present nodes changed since the last check
        self._losses: deque[float] = deque(maxlen=64)  # times at which machines were lost
        # machine that the pool gave up -> whether the client could reach it at that time
        self._abandoned: dict[MachineId, bool] = {}

    @property
    def total(self) -> int:
        return self.wanted + self._sim.scenario.spare

    @property
    def _now(self) -> float:
        return self._sim.loop.now

    def resized(self, wanted: int) -> None:
        """Set the wanted number of nodes.

        Launches that the pool decided at this instant, before the resize, are still allowed.
        """
        self._fewer_by = max(0, self.wanted - wanted) + (self._fewer_by if self._resized_at == self._now else 0)
        self._resized_at = self._now
        self._surplus += max(0, self.wanted - wanted)
        self._changed = True
        self.wanted = wanted

    # --- launching --------------------------------------------------------------------------------------------------

    def launching(self, count: int) -> None:
        self._launching += count
        present = self._present - (self._returned if self._returned_at == self._now else 0)
        total = self.total + (self._fewer_by if self._resized_at == self._now else 0)
        if present + self._launching > total and not self.closing:
            counts = f"{present} present, {self._launching} coming, {total} wanted"
            self._broken("SIM-13", f"{count} machines asked for: {counts}")

    def launch_ended(self, count: int, machines: Sequence[Machine]) -> None:
        self._launching -= count
        self._changed = True
        for machine in machines:
            self._orphans.append((self._now + 1.0, machine.id))

    def launch_failed(self, retry_in_s: float | None) -> None:
        self._failed_at = self._now
        if retry_in_s is None:
            self.gave_up_at = self._now

    # --- states of nodes --------------------------------------------------------------------------------------------

    def launched(self, node: NodeId, machine: MachineId) -> None:
        self.seats[node] = self._by_machine[machine] = seat = Seat(node, machine, self._now)
        seat.notices.update(self._early.pop(machine, {}))
        self._count(seat)

    def _uncount(self, seat: Seat) -> None:
        """Remove a node from all counts.

        Called before any field of ``seat`` (the record of the node) changes; afterwards `_count` adds the node again.
        """
        self.states[seat.state] -= 1
        self._present -= seat.present
        self._working -= seat.works
        self._standby.pop(seat.node, None)

    def _count(self, seat: Seat) -> None:
        self.states[seat.state] += 1
        self._present += seat.present
        self._working += seat.works
        if seat.state == "standby":
            self._standby[seat.node] = seat
        if seat.present or seat.machine not in self._sim.cloud.alive:
            self._leaving.pop(seat.machine, None)
        else:
            self._leaving[seat.machine] = None
        if seat.late and seat.machine in self._sim.cloud.alive:
            self._late[seat.machine] = seat
        else:
            self._late.pop(seat.machine, None)

    def machine_ended(self, machine: MachineId) -> None:
        """Remove a machine that no longer costs money from the counts."""
        self._leaving.pop(machine, None)
        self._late.pop(machine, None)

    def becomes(self, node: NodeId, state: str) -> None:
        seat = self.seats[node]
        self._uncount(seat)
        if seat.state == "late" and state in PRESENT:
            self._returns()
        seat.state = state
        if state == "ready":
            seat.ready_at = self._now
        if state == "late":
            seat.late = True
        elif state in PRESENT:
            seat.late = False
        self._count(seat)
        self._changed = True
        if state == "late":
            self._check_late()

    def queued(self, node: NodeId) -> None:
        self.seats[node].queued = True

    def started(self, node: NodeId) -> None:
        seat = self.seats[node]
        seat.queued, seat.launched_at = False, self._now

    @property
    def queue(self) -> list[NodeId]:
        """The nodes whose machines, as far as the pool knows, still wait in the provider's queue."""
        return [seat.node for seat in self.seats.values() if seat.queued and seat.state == "booting"]

    def over(self, node: NodeId, event: str, cause: str) -> None:
        seat = self.seats[node]
        host = self._sim.hosts[seat.machine]
        if seat.state in {"ready", "standby"}:
            self._flapped_at = self._now
        early = seat.queued or self._now - seat.launched_at < self._sim.scenario.boot_timeout_s
        if event == "node_failed" and early and host.healthy and host.refuses is None and not seat.notices:
            self._broken("SIM-15", f"node {node} has just booted, and is given up ({cause})")
        if event == "node_lost":
            seat.lost_at = self._now
            self._abandoned[seat.machine] = host.healthy and host.connected
            if host.on and host.daemon is not None and not seat.notices:
                self._judge_loss(seat, cause)
        seat.over_at = self._now
        self.becomes(node, "over")
        self._orphans.append((self._now + ENDED_S, seat.machine))

    def abandoned_unreached(self, host: Host) -> bool:
        """Return whether the pool gave the host up while it was unreachable: its tasks may run until its lease ends."""
        return self._abandoned.get(host.machine) is False

    def ordered(self, node: NodeId) -> None:
        seat = self.seats[node]
        if seat.state != "ready":
            self._broken("SIM-6", f"work is sent to node {node}, which is {seat.state}")
        if any(at < self._now for at in seat.notices.values()):
            self._broken("SIM-6", f"work is sent to node {node}, of which there is a notice")

    def network_silent(self) -> None:
        self._silent_at = self._now

    def _judge_loss(self, seat: Seat, cause: str) -> None:
        """Check that recent faults justify giving up a node that is alive and had no preemption notice."""
        since = self._now - MEMORY_S
        faults = [fault for at, fault in self._faults.get(seat.machine, ()) if _over_at(at, fault) > since]
        cuts = [fault for at, fault in self._all_faults if isinstance(fault, f.ClientCut) and at + fault.for_s > since]
        if len(faults) > 1 or (faults and cuts) or len(cuts) > 1:
            return
        if faults and not _is_mild(faults[0]):
            return
        if cuts and cuts[0].for_s > self._sim.scenario.lease_s - SEEN_S:
            return
        self._broken("SIM-15", f"node {seat.node} lives and is given up ({cause}) after {faults or cuts or 'nothing'}")

    # --- notices ----------------------------------------------------------------------------------------------------

    def notice_sent(self, notice: PreemptionNotice) -> None:
        seat, source = self._by_machine.get(notice.id), notice.source
        if seat is None:
            self._early.setdefault(notice.id, {})[source] = self._now
            return
        if seat.state not in PRESENT:
            return
        self._changed = True
        self._uncount(seat)
        if notice.seconds is None:
            seat.notices.pop(source, None)
            self._returns()
        else:
            seat.notices.setdefault(source, self._now)
            self._sim.loop.call_later(REPLACED_S, self._replaced, seat)
        self._count(seat)

    def _returns(self) -> None:
        """Count a node that is present again.

        The launch of its replacement, if decided at this instant, is still allowed.
        """
        self._returned = 1 + (self._returned if self._returned_at == self._now else 0)
        self._returned_at = self._now
        self._surplus += 1

    def is_noticed(self, host: Host) -> bool:
        seat = self._by_machine.get(host.machine)
        return seat is not None and bool(seat.notices)

    def _replaced(self, seat: Seat) -> None:
        if not seat.notices or self.closing:
            return
        coming = self._present + self._launching
        waits = self._now - max(self._failed_at, self._flapped_at) < BACK_OFF_S or self.gave_up_at > 0
        if coming < self.total and not waits:
            self._broken(
                "SIM-14", f"node {seat.node} was noticed 5 s ago: {coming} of {self.total} are there or coming"
            )

    # --- faults ------------------------------------------------------------------------------------------------------

    def disturbed(self, since: float) -> bool:
        """Return whether more than one fault, or a severe fault, happened later than `MEMORY_S` before ``since``."""
        recent = [fault for at, fault in self._all_faults if _over_at(at, fault) > since - MEMORY_S]
        losses = sum(at > since - MEMORY_S for at in self._losses)
        return len(recent) > 1 or losses > 1 or any(not isinstance(fault, f.Death | f.Notice) for fault in recent)

    def was_disturbed(self, host: Host) -> bool:
        """Return whether a fault has hit the machine or the client's network within the last `MEMORY_S` seconds."""
        since = self._now - MEMORY_S
        if any(_over_at(at, fault) > since for at, fault in self._faults.get(host.machine, ())):
            return True
        return any(isinstance(fault, f.ClientCut) and _over_at(at, fault) > since for at, fault in self._all_faults)

    def stands_by(self) -> bool:
        """Return whether any spare that can be reached stands by."""
        return bool(self._idle_spares())

    def fault_injected(self, fault: f.Fault, hosts: Sequence[Host]) -> None:
        self._all_faults.append((self._now, fault))
        for host in hosts:
            self._faults.setdefault(host.machine, []).append((self._now, fault))

    def machine_lost(self, host: Host) -> None:
        self._losses.append(self._now)
        seat = self._by_machine.get(host.machine)
        if seat is not None and seat.state in {"ready", "standby", "draining"}:
            self._sim.loop.call_later(SEEN_S, self._seen, seat, self._now, SEEN_S)

    def _seen(self, seat: Seat, lost_at: float, within_s: float) -> None:
        if seat.state == "over" or self.closing or self._sim.cut:
            return
        for at, fault in self._all_faults:
            if isinstance(fault, f.ClientCut | f.Slow) and at + fault.for_s > lost_at - SEEN_S:
                return
        blind = self._sim.scenario.probe != "others"
        if blind and self._silent_at > lost_at - self._sim.scenario.lease_s:
            # all connections are silent and no probe is possible: the pool cannot exclude a failure of the client's
            # network
            return
        if self._silent_at > lost_at and within_s == SEEN_S:
            self._sim.loop.call_later(PROBE_S, self._seen, seat, lost_at, SEEN_S + PROBE_S)
            return
        self._broken(
            "SIM-16", f"the machine of node {seat.node} was lost {within_s:g} s ago, and it counts as {seat.state}"
        )

    # --- counts of machines -----------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        if self._launching == 0 and not self._sim.cloud.unsure:
            self._surplus = 0
        if self._changed:
            self._changed = False
            self._check_spares()
            self._check_number()
        while self._orphans and self._orphans[0][0] <= self._now:
            _, machine = self._orphans.popleft()
            seat = self._by_machine.get(machine)
            wanted = seat is not None and (seat.over_at is None or seat.over_at > self._now - ENDED_S)
            if machine not in self._sim.cloud.alive or self.closing or wanted:
                continue
            if self._sim.cloud.terminate_errors or self._sim.cut or self._recently_unreachable():
                self._orphans.append((self._now + ENDED_S, machine))
                return
            self._broken("SIM-12", f"machine {machine} costs money, and nobody wants it")

    def _check_spares(self) -> None:
        if not self._standby or self.closing:
            return
        if self._working < self.wanted and (idle := self._idle_spares()):
            self._broken("SIM-14", f"{self._working} of {self.wanted} nodes work, and {idle} stand by")

    def _idle_spares(self) -> list[NodeId]:
        """Return the spares that stand by, have no preemption notice, and can be reached."""
        if not self._sim.scenario.spare:
            return []
        hosts = self._sim.hosts
        return [seat.node for seat in self._standby.values() if not seat.notices and hosts[seat.machine].connected]

    def _check_number(self) -> None:
        # `alive` includes machines whose launch call has not returned yet
        staying = len(self._sim.cloud.alive) - len(self._leaving)
        if staying > self.total + self._surplus and not self.closing:
            counts = f"{self.total} are wanted, and {self._surplus} may have become too many on their way"
            self._broken("SIM-24", f"{staying} machines cost money and are to stay: {counts}")

    def _check_late(self) -> None:
        wanted = self.wanted + (self._fewer_by if self._resized_at == self._now else 0)
        if len(self._late) > (wanted + 1) // 2:
            late = [seat.node for seat in self._late.values()]
            self._broken("SIM-33", f"the machines of late nodes {late} cost money, and {wanted} nodes are wanted")

    def rested(self) -> None:
        """Check the final numbers of nodes and machines. Called when all faults and jobs are long over."""
        ready = sum(seat.state == "ready" for seat in self.seats.values())
        if ready != self.wanted:
            self._broken("SIM-11", f"{ready} nodes are ready, {self.wanted} are wanted")
        extra = [machine for machine in self._sim.cloud.alive if not self._serves(machine)]
        if extra:
            self._broken("SIM-12", f"machines {extra} cost money, and are no nodes")

    def closed(self) -> None:
        if self._sim.cloud.alive:
            self._broken("SIM-12", f"the pool is closed, and {len(self._sim.cloud.alive)} machines cost money")

    def seat_of(self, machine: MachineId) -> Seat | None:
        return self._by_machine.get(machine)

    def _serves(self, machine: MachineId) -> bool:
        seat = self._by_machine.get(machine)
        return seat is not None and seat.state in {"ready", "standby"}

    def _recently_unreachable(self) -> bool:
        return any(
            isinstance(fault, f.ClientCut | f.TerminateErrors) and at + fault.for_s > self._now - 2 * ENDED_S
            for at, fault in self._all_faults
        )


def _is_mild(fault: f.Fault) -> bool:
    """Return whether the pool must not give a node up because of this fault alone."""
    match fault:
        case f.Reset() | f.WorkerDeath():
            return True
        case f.Partition(for_s=for_s) | f.Freeze(for_s=for_s):
            return for_s <= MILD_S
        case f.Slow(by_s=by_s):
            return by_s <= 0.5
        case _:
            return False


def _over_at(at: float, fault: f.Fault) -> float:
    return math.inf if isinstance(fault, f.DaemonDeath) else at + float(getattr(fault, "for_s", 0.0))
