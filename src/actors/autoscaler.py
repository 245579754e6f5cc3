"""Autoscaling: how many nodes a pool should have for its current work, and which idle nodes leave. Pure.

Waiting work makes the pool grow, to as many nodes as the work can use. A node that has held no work for ``idle_s``
leaves. The fleet controller launches and ends machines; this module only sets the number that it wants.

SCALE-1: a pool has at most ``most`` nodes, and at least its floor: ``least``, or the number of the user's last resize.
SCALE-2: the pool grows while work waits, to no more nodes than the work can use. It grows at once if it has no node, or
    if a broadcast or a rank needs so many nodes; otherwise when work has waited for `WAIT_S` without a break.
SCALE-3: only a node that has held no work for ``idle_s`` leaves, the newest first; and no node leaves while work waits.
SCALE-4: the nodes that the work and the floor need always stay.
SCALE-5: a missing (for example lost) machine is not replaced if nothing needs it; a machine that is being launched is
    given up when nothing has needed it for ``idle_s``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

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
