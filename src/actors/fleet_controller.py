"""The number of machines: which machines to launch, replace and end, with back-off after failures. Two pure deciders.

`FleetController` keeps the wanted number of nodes; each event carries the time and, where needed, a random number.
`Autoscaler` sets the wanted number, in a pool with ``scale="load"``: waiting work makes the pool grow, to as many nodes
as the work can use, and a node that has held no work for ``idle_s`` leaves.

A node counts as present from the request for its machine until the node has a preemption notice, is drained, has failed
or is lost. Missing nodes are launched. Surplus nodes are dismissed: first machines that wait in their provider's queue,
then the newest nodes. So a notice already causes a replacement. If the notice is withdrawn, there is one machine too
many, and the newest is dismissed: no node is replaced twice.

A straggler (see `stragglers`) does not count as present either: a substitute is launched, and neither the straggler nor
the substitute is ended before one of them is ready. As the straggler may still become ready, failed launches of its
substitute never count towards giving up.

Besides the working nodes there are ``spare`` nodes, which stand by. When a working node gets a notice or is lost, a
spare takes its place at once, and the machine that is then launched becomes the next spare.

FLEET-1: requested and present machines never exceed the wanted nodes plus spares, except after a withdrawn notice or a
    resize. Stragglers come on top.
FLEET-2: each missing machine has been requested, or waits for its back-off, or the fleet has given up.
FLEET-3: a node that is lost, failed or dismissed is terminated exactly once.
FLEET-4: the fleet gives up after a failure that retrying cannot cure. Before the pool has been ready, it also gives up
    after ``retries + 1`` failures in a row, or after one failure whose retry must wait longer than `START_WAIT_S`. The
    pool's error is that of the last failure. Failures of machines that were requested together count as one.
FLEET-5: no machine is requested before the back-off is over.
FLEET-6: a node that has work is drained, not cut off.
FLEET-7: no node stands by while fewer nodes work than are wanted, except a node whose connection is lost; and never do
    more nodes work than are wanted.
FLEET-8: a noticed node that holds no work is dismissed as soon as the wanted number of nodes work, and never before.
FLEET-9: a straggler works if it becomes ready after all; it is dismissed as soon as all wanted nodes and spares are
    ready, and never before.
FLEET-10: failed launches of a straggler's substitute do not count as consecutive failures while the straggler may still
    become ready; nor does the straggler's own failure, while its substitute is being launched.
FLEET-11: once the pool has been ready, giving up lasts for `ANEW_S`; then missing machines are requested again.
FLEET-12: `UNFIT_NODES` nodes in a row that can start no worker, and are lost soon after they were ready, are a failure
    that retrying cannot cure. Any other loss of a node, or a node that has stayed for `NEWBORN_S`, ends the row; so
    does a node that has run a task, for whatever reason its executor died.
FLEET-13: a node changes its phase only as `STEPS` allows. The last phase is final.
FLEET-14: before any node was ready, `SAME_CAUSE` failures in a row with the same ``cause`` are a failure that retrying
    cannot cure. Failures of machines that were requested together count as one.

SCALE-1: a pool has at most ``most`` nodes, and at least its floor: ``least``, or the number of the user's last resize.
SCALE-2: the pool grows while work waits, to no more nodes than the work can use. It grows at once if it has no node, or
    if a broadcast or a rank needs so many nodes; otherwise when work has waited for `WAIT_S` without a break.
SCALE-3: only a node that has held no work for ``idle_s`` leaves, the newest first; and no node leaves while work waits.
SCALE-4: the nodes that the work and the floor need always stay.
SCALE-5: a missing (for example lost) machine is not replaced if nothing needs it; a machine that is being launched is
    given up when nothing has needed it for ``idle_s``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum, auto
from math import ceil

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from .interfaces import NodeId, ScaleByLoad

WAIT_S = 2.0  # seconds; tasks that wait for a shorter time end before a machine could boot
# seconds of waiting work that justify one more slot; a shorter task counts as a fraction of a slot
WORTH_S = 10.0
CHECK_S = 1.0


class Demand(NamedTuple):
    """The work of a pool at one moment."""

    busy: int  # number of slots in use
    waiting: float  # number of slots that the waiting tasks can use
    tasks: int  # number of waiting tasks, for the text of `Change.reason`
    # number of nodes that the largest broadcast needs, or the highest rank that a task is bound to (``on=``), plus 1
    ranks: int
    waits: bool  # whether any task waits, or a broadcast waits for nodes


class Working(NamedTuple):
    """The state of a node that takes tasks."""

    node: NodeId
    busy: bool
    active_at: float  # when the node's last task ended


class Change(NamedTuple):
    wanted: int
    leaving: tuple[NodeId, ...]
    reason: str


class Autoscaler:
    def __init__(self, scale: ScaleByLoad, *, slots: int, least: int) -> None:
        self.wanted = self.floor = least
        self._most = scale.most
        self._idle_s = scale.idle_s
        self._slots = slots
        self._idle_since: dict[NodeId, float] = {}
        # since when there has been more work than the wanted nodes can do; None: the wanted nodes are enough
        self._waiting_since: float | None = None
        # since when the working nodes have been enough for the work; None: they are not enough
        self._unneeded_since: float | None = None

    def resize(self, floor: int) -> None:
        """Set the smallest allowed number of nodes, as the user's `resize` requests."""
        self.floor = min(floor, self._most)

    def decide(self, demand: Demand, working: Iterable[Working], missing: int, now: float) -> Change | None:
        """Return the change of the pool's size that is due now. ``missing``: number of wanted machines that no launch
        has requested yet.
        """
        there = self._see(working, now)
        requested = min(max(demand.ranks, self.floor), self._most)
        needed = min(max(requested, ceil((demand.busy + demand.waiting) / self._slots)), self._most)
        if demand.waits and needed > self.wanted:
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
        else:
            self._waiting_since = None
        if needed <= there:
            self._unneeded_since = now if self._unneeded_since is None else self._unneeded_since
        else:
            self._unneeded_since = None
        if needed > self.wanted:
            return self._grow(demand, requested, needed, now)
        return None if demand.waits else self._shrink(needed, there, missing, now)

    def wake_at(self, now: float) -> float | None:
        """Return when to call `decide` again; None: nothing can change before the pool's next event."""
        return now + CHECK_S if self.wanted or self._waiting_since is not None else None

    def _see(self, working: Iterable[Working], now: float) -> int:
        before, self._idle_since = self._idle_since, {}
        there = 0
        for node, busy, active_at in working:
            there += 1
            if not busy:
                self._idle_since[node] = max(before.get(node, now), active_at)
        return there

    def _grow(self, demand: Demand, requested: int, needed: int, now: float) -> Change | None:
        waited = self._waiting_since is not None and now - self._waiting_since >= WAIT_S
        if needed > requested and (waited or (self.wanted == 0 and demand.waits)):
            return self._change(needed, (), "1 task waits" if demand.tasks == 1 else f"{demand.tasks} tasks wait")
        if requested > self.wanted:
            why = (
                f"{demand.ranks} are asked for by a broadcast, or by on=" if demand.ranks >= requested else "by resize"
            )
            return self._change(requested, (), why)
        return None

    def _shrink(self, needed: int, there: int, missing: int, now: float) -> Change | None:
        least = max(needed, there)
        unneeded = self._unneeded_since is not None and now - self._unneeded_since >= self._idle_s
        wanted = least if unneeded else max(least, self.wanted - missing)
        idle = [node for node, since in self._idle_since.items() if now - since >= self._idle_s]
        leaving = tuple(sorted(idle, reverse=True)[: max(0, min(wanted, self.wanted) - needed)])
        wanted = min(wanted, self.wanted) - len(leaving)
        if wanted == self.wanted:
            return None
        return self._change(
            wanted, leaving, f"no work for {self._idle_s:g} s" if leaving or unneeded else "no work for it"
        )

    def _change(self, wanted: int, leaving: tuple[NodeId, ...], reason: str) -> Change:
        self.wanted = wanted
        self._waiting_since = None
        return Change(wanted, leaving, reason)


BACK_OFF_S = 1.0
BACK_OFF_LIMIT_S = 60.0
# seconds; a starting pool whose retry must wait longer fails instead, so that its user learns of the problem
START_WAIT_S = 45.0
ANEW_S = 60.0  # seconds until the fleet tries again after giving up: by then, credentials or limits may have changed
# failures in a row with the same cause, after which the fleet gives up: a third try would fail like these
SAME_CAUSE = 2
# number of nodes in a row that can start no worker, after which the fleet gives up; nodes that fail together count as
# one
UNFIT_NODES = 3
# seconds; a node that is lost earlier than this after it became ready counts as new (FLEET-12). The limit exceeds 60 s,
# after which a node ends if its fork server, which starts workers, is silent.
NEWBORN_S = 90.0
# seconds; nodes that are lost earlier than this after they became ready, without a preemption notice, are counted
# (`FLAPS_FREE`)
FLAP_S = 10.0
FLAPS_FREE = 8  # number of nodes in a row that may be lost within `FLAP_S`; after one more, the next launch waits


class NodePhase(StrEnum):
    BOOTING = auto()
    STRAGGLER = auto()  # the node still boots, and a substitute for it was requested
    READY = auto()  # the node works
    SPARE = auto()  # the node stands by
    NOTICED = auto()  # the node has a preemption notice: it finishes its tasks and gets no new ones
    DRAINING = auto()  # the node is no longer wanted: it finishes its tasks
    DISMISSED = auto()  # the pool ends the node and then forgets it, as it forgets failed and lost nodes


STEPS: dict[NodePhase, set[NodePhase]] = {
    NodePhase.BOOTING: {NodePhase.STRAGGLER, NodePhase.READY, NodePhase.SPARE, NodePhase.DISMISSED},
    NodePhase.STRAGGLER: {NodePhase.READY, NodePhase.SPARE, NodePhase.DISMISSED},
    NodePhase.READY: {NodePhase.SPARE, NodePhase.NOTICED, NodePhase.DRAINING},
    NodePhase.SPARE: {NodePhase.READY, NodePhase.NOTICED, NodePhase.DRAINING},
    NodePhase.NOTICED: {NodePhase.READY, NodePhase.DISMISSED},
    NodePhase.DRAINING: {NodePhase.DISMISSED},
}


class ImpossibleStep(Exception):
    """A node's change to a phase that `STEPS` does not allow. This is a defect in Outrider."""


@dataclass(slots=True)
class Orders:
    """The decisions to be carried out now. The caller empties these lists."""

    # for each call to the provider: the number of machines to request
    launches: list[int] = field(default_factory=list)
    # nodes that must finish their tasks and then leave; call `emptied` when one has finished
    drains: list[NodeId] = field(default_factory=list)
    terminations: list[NodeId] = field(default_factory=list)  # nodes to disconnect and end now
    promotions: list[NodeId] = field(default_factory=list)  # nodes that work from now on
    demotions: list[NodeId] = field(default_factory=list)  # nodes that finish their tasks and then stand by


class FleetController:
    def __init__(self, wanted: int, *, retries: int, spare: int = 0) -> None:
        self.orders = Orders()
        self.wanted = wanted  # number of nodes that should work
        self.spare = spare
        self.launching = 0
        self.nodes: dict[NodeId, NodePhase] = {}
        self.final_error: Exception | None = None
        self.failures = 0  # number of consecutive failures
        self._retries = retries
        self._count: Counter[NodePhase] = Counter()  # number of the nodes in each phase
        self._queued: set[NodeId] = set()  # booting nodes whose machines wait in their provider's queue
        self._away: set[NodeId] = set()  # nodes whose connection is lost while the pool tries to reconnect
        self._not_before = 0.0
        self._anew_at = 0.0  # when the fleet tries again after giving up
        self._ready_at: dict[NodeId, float] = {}
        self._flaps = 0
        self._cause = ""  # cause of the last failure; empty: unknown, which equals no other cause
        self._repeats = 0  # number of failures in a row with the cause `_cause`
        self._was_ready = False
        self._unfit = 0  # number of nodes in a row that could start no worker
        self._unfit_at = 0.0  # when the last node that could start no worker was lost
        self._in_vain = 0  # number of consecutive failed tries to launch a straggler's substitute
        self._opened = False

    # --- events that the caller reports ---------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        """Handle that the pool is ready: from now on, missing machines are requested until they become ready, without
        giving up for good.
        """
        if not self._opened:
            self._opened = True
            self._try_anew(now)

    def launched(self, nodes: list[NodeId], requested: int, now: float, chance: float) -> float | None:
        """Handle the answer to a launch. If the provider gave fewer machines than requested, return the back-off in
        seconds.
        """
        self.launching -= requested
        for node in nodes:
            self.nodes[node] = NodePhase.BOOTING
        self._count[NodePhase.BOOTING] += len(nodes)
        delay = None
        if len(nodes) < requested:
            delay = self._back_off(now, chance, least_s=0.0)
            # a partly successful launch is progress: it alone must not make the fleet give up
            self.failures = min(self.failures, self._retries)
        self._balance(now)
        return delay

    def launch_failed(
        self,
        error: Exception,
        requested: int,
        now: float,
        chance: float,
        *,
        retry_after_s: float | None,
        cause: str = "",
    ) -> float | None:
        """Return the seconds until the launch is tried again; None: never, and ``final_error`` is set."""
        self.launching -= requested
        return self._failed(error, now, chance, retry_after_s, cause)

    def queued(self, node: NodeId) -> None:
        """Handle that the machine of a booting node waits in its provider's queue."""
        if self.booting(node):
            self._queued.add(node)

    def started(self, node: NodeId) -> None:
        """Handle that the machine of ``node`` no longer waits in a queue."""
        self._queued.discard(node)

    def node_ready(self, node: NodeId, now: float) -> bool:
        """Handle that ``node`` is ready; return whether it works (True) or stands by (False)."""
        phase = self.nodes.get(node)
        if not self.booting(node):
            return False
        self.failures = self._in_vain = 0
        self._was_ready = True
        self._ready_at[node] = now
        self._queued.discard(node)
        works = self._working < self.wanted
        self._move(node, NodePhase.READY if works else NodePhase.SPARE)
        if phase is NodePhase.STRAGGLER and self._missing() <= 0:
            self.final_error = None  # the machine whose launch failed is no longer needed
        if phase is NodePhase.STRAGGLER or self._stragglers:
            self._balance(now)
        return works

    def node_failed(
        self,
        node: NodeId,
        error: Exception,
        now: float,
        chance: float,
        *,
        fatal: bool,
        after_s: float = 0.0,
        cause: str = "",
    ) -> float | None:
        """Handle a node that never became ready.

        Args:
            fatal: no other node would become ready either. If False, a new node is requested after ``after_s`` or
                later.

        Returns:
            The seconds until the next launch; None: no launch follows, and ``final_error`` is set; 0: a substitute is
                already being launched.
        """
        if (phase := self._forget(node)) is None:
            return 0.0
        self.orders.terminations.append(node)
        if phase is NodePhase.STRAGGLER and not fatal:
            if self._missing() <= self._stragglers:
                return 0.0  # a substitute is already being launched
            if self.final_error is not None:
                self.final_error = None
                self.failures = 0
        return self._failed(error, now, chance, None if fatal else after_s, cause)

    def straggles(self, node: NodeId, now: float) -> bool:
        """Handle that ``node`` is a straggler: request a substitute. Return whether anything changed."""
        if self.nodes.get(node) is not NodePhase.BOOTING:
            return False
        self._move(node, NodePhase.STRAGGLER)
        self._balance(now)
        return True

    def node_lost(self, node: NodeId, now: float, chance: float, *, unfit: Exception | None = None) -> None:
        """Handle the loss of ``node``. ``unfit``: the error, if the node could start no worker and has run no task."""
        ready_at = self._ready_at.get(node)
        if (phase := self._forget(node)) is None:
            return
        self.orders.terminations.append(node)
        if phase is NodePhase.DRAINING:
            return
        if self._unfit_in_a_row(ready_at, now, chance, unfit=unfit is not None):
            self.final_error = unfit
            self._anew_at = max(self._not_before, now + ANEW_S)
            self._balance(now)
            return
        if phase in {NodePhase.READY, NodePhase.SPARE} and ready_at is not None and now - ready_at < FLAP_S:
            self._flaps += 1
            if self._flaps > FLAPS_FREE:
                self._wait(now, chance, self._flaps - FLAPS_FREE)
        else:
            self._flaps = 0
        self._try_anew(now)

    def noticed(self, node: NodeId, now: float) -> None:
        phase = self.nodes.get(node)
        if phase in {NodePhase.READY, NodePhase.SPARE}:
            self._move(node, NodePhase.NOTICED)
        elif self.booting(node):
            self._dismiss(node)
        else:
            return
        self._try_anew(now)

    def withdrawn(self, node: NodeId, now: float) -> None:
        """Handle that the preemption notice of ``node`` was withdrawn: ``node`` stays and works."""
        if self.nodes.get(node) is NodePhase.NOTICED:
            self._move(node, NodePhase.READY)
            self._balance(now)

    def emptied(self, node: NodeId) -> None:
        """Dismiss ``node``, which has no work left, if it is being drained.

        If it has a preemption notice, dismiss it only if enough other nodes work: the notice may be withdrawn.
        """
        phase = self.nodes.get(node)
        if phase is NodePhase.DRAINING or (phase is NodePhase.NOTICED and self._working >= self.wanted):
            self._dismiss(node)

    def away(self, node: NodeId) -> None:
        """Handle that the connection of ``node``, in any phase, is lost and that the pool tries to reconnect."""
        self._away.add(node)

    def back(self, node: NodeId, now: float) -> None:
        self._away.discard(node)
        self._balance(now)

    def resize(self, wanted: int, now: float) -> None:
        self.wanted = wanted
        self._try_anew(now)

    def scale(self, wanted: int, leaving: Iterable[NodeId], now: float) -> None:
        """Change the number of nodes to follow the load, and drain the nodes ``leaving``.

        Unlike `resize`, this does not make the fleet try again after it gave up.
        """
        for node in leaving:
            if self.nodes.get(node) is NodePhase.READY:
                self._drain(node)
        self.wanted = wanted
        self._balance(now)

    def tick(self, now: float) -> None:
        self._balance(now)

    def wake_at(self) -> float | None:
        """Return the time at which ``tick`` must be called; None: nothing is due."""
        if self._missing() <= 0 or (self.final_error is not None and not self._opened):
            return None
        return self._not_before if self.final_error is None else self._anew_at

    # --- queries of the state -------------------------------------------------------------------------------------

    @property
    def coming(self) -> int:
        """Return how many machines may still become ready nodes, including machines that are yet to be requested."""
        booting = self._count[NodePhase.BOOTING] + self._stragglers
        return booting + self.launching + (0 if self.final_error is not None else max(0, self._missing()))

    def booting(self, node: NodeId) -> bool:
        return self.nodes.get(node) in {NodePhase.BOOTING, NodePhase.STRAGGLER}

    @property
    def missing(self) -> int:
        """Return how many wanted machines have not been requested yet."""
        return max(0, self._missing()) + sum(self.orders.launches)

    @property
    def is_full(self) -> bool:
        """Return whether as many nodes work as are wanted, or more."""
        return self._working >= self.wanted

    @property
    def _working(self) -> int:
        return self._count[NodePhase.READY]

    @property
    def _present(self) -> int:
        return self._count[NodePhase.BOOTING] + self._count[NodePhase.READY] + self._count[NodePhase.SPARE]

    @property
    def _stragglers(self) -> int:
        return self._count[NodePhase.STRAGGLER]

    # --- decisions ------------------------------------------------------------------------------------------------

    def _missing(self) -> int:
        return self.wanted + self.spare - self._present - self.launching

    def _balance(self, now: float) -> None:
        missing = self._missing()
        if missing > 0 and self.final_error is not None and self._opened and now >= self._anew_at:
            self.final_error = None
            self.failures = 0
        if missing > 0 and self.final_error is None and now >= self._not_before:
            self.launching += missing
            self.orders.launches.append(missing)
        elif missing < 0:
            self._take_back(-missing)
        if self._working < self.wanted:
            self._promote(self.wanted - self._working)
        surplus = self._present - self.wanted - self.spare
        if surplus > 0 or self._working > self.wanted:
            self._shrink(max(0, surplus))
        if self._stragglers:
            self._dismiss_stragglers()

    def _promote(self, places: int) -> None:
        """Let up to ``places`` spare nodes work, the oldest first."""
        if not self._count[NodePhase.SPARE]:
            return  # most pools have no spares: do not look through all nodes
        spares = [node for node, phase in self.nodes.items() if phase is NodePhase.SPARE]
        for node in [node for node in spares if node not in self._away][:places]:
            self._move(node, NodePhase.READY)
            self.orders.promotions.append(node)

    def _take_back(self, machines: int) -> None:
        """Cancel launches that are decided but not requested yet, of up to ``machines`` machines in total."""
        orders = self.orders
        while machines > 0 and orders.launches:
            count = orders.launches.pop()
            fewer = min(count, machines)
            machines -= fewer
            self.launching -= fewer
            if count > fewer:
                orders.launches.append(count - fewer)

    def _shrink(self, surplus: int) -> None:
        """Give up ``surplus`` nodes: first queued, then booting, then spare, then working nodes; within each group the
        newest first.
        """
        # sorting is stable: the queued nodes and the other nodes each keep their order, the newest first
        booting = sorted(self._newest(NodePhase.BOOTING), key=lambda node: node not in self._queued)
        for node in booting[:surplus]:
            self._dismiss(node)
            surplus -= 1
        for node in self._newest(NodePhase.SPARE)[:surplus]:
            self._drain(node)
            surplus -= 1
        too_many = max(0, self._working - self.wanted)
        for node in self._newest(NodePhase.READY)[:too_many] if too_many else ():
            if surplus > 0:
                self._drain(node)
                surplus -= 1
            else:
                self._move(node, NodePhase.SPARE)
                self.orders.demotions.append(node)

    def _dismiss_stragglers(self) -> None:
        if self._working + self._count[NodePhase.SPARE] >= self.wanted + self.spare:
            for node in self._newest(NodePhase.STRAGGLER):
                self._dismiss(node)

    def _newest(self, phase: NodePhase) -> list[NodeId]:
        if not self._count[phase]:
            return []
        return sorted((node for node, its in self.nodes.items() if its is phase), reverse=True)

    def _drain(self, node: NodeId) -> None:
        self._move(node, NodePhase.DRAINING)
        self.orders.drains.append(node)

    def _move(self, node: NodeId, phase: NodePhase) -> None:
        before = self.nodes[node]
        if phase not in STEPS[before]:
            raise ImpossibleStep(f"node {node} cannot be {phase} after {before}")
        self._count[before] -= 1
        self.nodes[node] = phase
        self._count[phase] += 1

    def _dismiss(self, node: NodeId) -> None:
        self._move(node, NodePhase.DISMISSED)
        self._forget(node)
        self.orders.terminations.append(node)

    def _forget(self, node: NodeId) -> NodePhase | None:
        phase = self.nodes.pop(node, None)
        self._ready_at.pop(node, None)
        self._away.discard(node)
        self._queued.discard(node)
        if phase is not None:
            self._count[phase] -= 1
        return phase

    def _failed(
        self, error: Exception, now: float, chance: float, retry_after_s: float | None, cause: str = ""
    ) -> float | None:
        beside = self._is_beside
        if beside and self.final_error is not None:
            return None
        if self._is_systematic(cause, now) and not (beside or self._opened):
            retry_after_s = None
        enough = (
            (retry_after_s or 0.0) > START_WAIT_S or (self._counts(now) and self.failures >= self._retries)
        ) and not (beside or self._opened)
        if retry_after_s is None or enough:
            self.failures += not beside and self._counts(now)
            self.final_error = error
            self._anew_at = max(self._not_before, now + ANEW_S)
            return None
        delay = self._back_off(now, chance, least_s=retry_after_s)
        self._balance(now)
        return delay

    def _is_systematic(self, cause: str, now: float) -> bool:
        """Return whether failures in a row with the same cause are enough to give up (FLEET-14)."""
        if not cause or cause != self._cause:
            self._cause, self._repeats = cause, 0
        if cause and self._counts(now):
            self._repeats += 1
        return self._repeats >= SAME_CAUSE and not self._was_ready

    def _unfit_in_a_row(self, ready_at: float | None, now: float, chance: float, *, unfit: bool) -> bool:
        """Return whether a lost node is the last of `UNFIT_NODES` in a row that could start no worker (FLEET-12)."""
        newborn = unfit and ready_at is not None and now - ready_at < NEWBORN_S
        if not newborn or any(at > self._unfit_at and now - at >= NEWBORN_S for at in self._ready_at.values()):
            self._unfit = 0
        if not newborn:
            return False
        if self._counts(now):
            self._unfit += 1
            self._unfit_at = now
            self._wait(now, chance, self._unfit)
        return self._unfit >= UNFIT_NODES

    def _try_anew(self, now: float) -> None:
        """Try again if the fleet had given up: the situation has changed since then. Failures count from 0 again."""
        if self.final_error is not None:
            self.final_error = None
            self.failures = 0
        self._balance(now)

    def _counts(self, now: float) -> bool:
        """Return whether a failure counts now: a failure during a back-off does not count, as the failed machine was
        requested before the back-off began.
        """
        return now >= self._not_before

    @property
    def _is_beside(self) -> bool:
        """Return whether every missing machine is the substitute of a straggler that may still become ready."""
        return self._stragglers > 0 and self._missing() <= self._stragglers

    def _back_off(self, now: float, chance: float, *, least_s: float) -> float:
        if self._is_beside and self._counts(now):
            self._in_vain += 1
            self._wait(now, chance, self._in_vain)
        elif self._counts(now):
            self.failures += 1
            self._wait(now, chance, self.failures)
        self._not_before = max(self._not_before, now + least_s)
        return self._not_before - now

    def _wait(self, now: float, chance: float, times: int) -> None:
        """Back off for 50 to 100 % of a delay that doubles with each failure; the random share keeps pools from
        retrying together.
        """
        delay = min(BACK_OFF_LIMIT_S, BACK_OFF_S * 2.0 ** min(times - 1, 16)) * (0.5 + chance / 2)
        self._not_before = max(self._not_before, now + delay)
