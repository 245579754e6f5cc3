"""The line of tasks that need amounts of a node: which task goes next, and for which task a node is saved. Pure.

Such a task needs a slot and its amounts of processors, memory or accelerators on one node at the same time. The line is
in the order of submission, but a task that fits goes before older tasks that do not fit: to wait for them would leave
amounts idle. So that a large task is not overtaken for ever, the first task in line is overtaken at most `OVERTAKES`
times; then one node is saved for it, on which no other task with amounts begins. If a node has the task's amounts free
but no slot, one slot is kept for the task.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable
from heapq import nsmallest
from itertools import chain

from .amounts import Amounts, describe
from .interfaces import JobId, NodeId
from .membership import Roster
from .placement import Placement
from .retries import QUEUED, Entry, Host
from .task_queue import TaskQueue

# how often other tasks may overtake a task. The limit is not a time: 16 short tasks end soon, and 16 long tasks use
# resources that were idle
OVERTAKES = 16
# largest number of lanes that are examined; a lane has the tasks with equal needs. Only lanes for any node count: each
# is compared with every node, which takes time.
LOOK = 64

Lane = tuple[Amounts, int | None]  # the needs of the tasks in one lane: (amounts, rank of the node; None: any node)

# a function that gets tasks, and a function that picks the host of each task
Send = Callable[[TaskQueue, Callable[[int], Host | None]], None]


class WaitingLine:
    def __init__(self, placement: Placement, roster: Roster) -> None:
        self.stirred = False  # whether a task in the line may fit a node now
        self._placement, self._roster = placement, roster
        self._lanes: dict[Lane, TaskQueue] = {}
        self._first: Entry | None = None
        self._saved: Host | None = None
        self._kept: Host | None = None
        # lanes (tasks with equal needs) whose tasks fit no node, except perhaps the nodes in `_freed`
        self._barren: set[Lane] = set()
        # amounts that no node has free, except perhaps the nodes in `_freed`; None: not known
        self._none_to_keep_for: Amounts | None = None
        self._freed: dict[NodeId, Host] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    @property
    def entries(self) -> list[Entry]:
        """Return the tasks in the line, in no particular order."""
        return [entry for lane in self._lanes.values() for entry in lane if entry.state == QUEUED]

    def add(self, entry: Entry) -> None:
        entry.stacks = False
        key = _lane_of(entry)
        self._clear(key)
        lane = self._lanes.setdefault(key, TaskQueue())
        if not lane:
            # if the lane has older tasks, these wait for the same amounts, so this task cannot begin either
            self.stirred = True
        if lane and entry.task.job < lane[-1].task.job:
            insort(lane, entry, key=_submitted)
        else:
            lane.append(entry)

    def ended(self, entry: Entry) -> None:
        """Handle the end of a task in the line: other tasks may use the node or the slot that was saved for this
        task.
        """
        self.stirred = bool(self._lanes)
        if (lane := self._lanes.get(_lane_of(entry))) is not None:
            lane.ended()

    def stir(self, host: Host | None = None) -> None:
        """Handle a change by which a task in the line may begin. ``host``: the node that has changed; None: any node
        may have.
        """
        if self._lanes:
            self.stirred = True
            if host is None:
                self._barren.clear()
                self._none_to_keep_for = None
            else:
                self._freed[host.id] = host

    def assign(self, queue: TaskQueue, send: Send) -> None:
        """Send the tasks of the line that fit now, and the tasks of ``queue``, which only need a slot, the oldest
        first.
        """
        pick = self._placement.pick
        while True:
            while (fit := self.next()) is not None:
                entry, host = fit
                send(queue, lambda stack, entry=entry: pick(stack) if _before(queue[0], entry.task.job) else None)  # type: ignore[misc]
                if self._fits(entry, host):
                    self._take(entry)
                    host.left = host.left.minus(_needs(entry))
                    send(TaskQueue([entry]), lambda _, host=host: host)  # type: ignore[misc]
            send(queue, pick)
            if not self._save(queued=queue[0].task.job if queue else None):
                break
        self._freed.clear()
        self.stirred = False

    def next(self) -> tuple[Entry, Host] | None:
        """Return the oldest task that fits a node now, with that node; None: no task fits. This does not send the
        task.
        """
        heads = self._heads()
        first = heads[0] if heads else None
        if first is not self._first:
            self._first = first
            self._hold(None, None)
        for entry in heads:
            if (host := self._best(entry)) is not None:
                return entry, host
            self._barren.add(_lane_of(entry))
        # remember only the lanes just examined; for other lanes, or while a broadcast claims seats, changes of nodes
        # are not noted
        self._barren = set(map(_lane_of, () if self._placement.claims else heads))
        return None

    def _take(self, entry: Entry) -> None:
        """Remove from the line a task that `next` has returned, because it is now sent to its node."""
        key = _lane_of(entry)
        self._lanes[key].popleft()
        self._clear(key)
        if self._first is not None and entry is not self._first:
            self._first.overtaken += 1

    def _fits(self, entry: Entry, host: Host) -> bool:
        return self._placement.has_room(host, _needs(entry), first=entry is self._first)

    def _save(self, *, queued: JobId | None) -> bool:
        """Save a node for the first task in line, and keep a slot free for it, if the task needs that.

        Args:
            queued: the oldest of the tasks that need only a slot; None: there is no such task.

        Returns:
            Whether a node or a slot is no longer saved, so that other tasks may fit there.
        """
        saved = self._to_save()
        none_for, self._none_to_keep_for = self._none_to_keep_for, None
        kept = self._to_keep(saved, none_for) if self._first is not None and _before(self._first, queued) else None
        freed = (self._saved is not None and saved is not self._saved) or (
            self._kept is not None and kept is not self._kept
        )
        self._hold(saved, kept)
        return freed

    def too_large(self) -> list[Lane]:
        """Return the lanes (tasks with equal needs) that no present node can hold; lanes whose nodes are not ready yet
        are left out.
        """
        lanes: list[Lane] = []
        for needs, on in self._lanes:
            hosts = self._staying(on)
            if hosts and not any(needs.fits_in(host.has) for host in hosts) and self._living((needs, on)):
                lanes.append((needs, on))
        return lanes

    def why(self, lane: Lane) -> str:
        """Describe for people what the lane's tasks need, and which amounts the possible nodes have."""
        return f"{lane[0]}, and the nodes have {describe(host.has for host in self._staying(lane[1]))}"

    def drop(self, lanes: Iterable[Lane]) -> list[Entry]:
        """Remove whole lanes (tasks with equal needs) from the line; return the tasks that waited in them."""
        dropped = [entry for key in lanes for entry in self._lanes.pop(key, ())]
        self._barren.intersection_update(self._lanes)
        if not self._lanes:  # with no task in the line, no node or slot needs to be saved
            self._first = self._none_to_keep_for = None
            self._hold(None, None)
        self.stirred = bool(self._lanes)
        return [entry for entry in dropped if entry.state == QUEUED]

    def lanes(self, ranks: Collection[int | None] | None = None) -> list[Lane]:
        """Return all lanes (tasks with equal needs); with ``ranks``, only those for one of these ranks (None: for any
        node).
        """
        return [key for key in self._lanes if ranks is None or key[1] in ranks]

    @property
    def ranks(self) -> set[int]:
        """Return the ranks that tasks in the line are bound to."""
        return {key[1] for key in self._lanes if key[1] is not None and self._living(key)}

    # --- nodes for a task -----------------------------------------------------------------------------------------

    def _hosts(self, on: int | None) -> Collection[Host]:
        hosts = self._placement.hosts
        if on is None:
            return hosts.values()
        node = self._roster.at(on)
        return () if node is None or node not in hosts else (hosts[node],)

    def _staying(self, on: int | None) -> list[Host]:
        """Return the possible hosts of a task that take new work; a node that is leaving begins no waiting task."""
        return [host for host in self._hosts(on) if host.open]

    def _places(self, entry: Entry | None) -> Collection[Host]:
        return () if entry is None else self._hosts(entry.task.on)

    def _best(self, entry: Entry) -> Host | None:
        """Return the least loaded node on which the task fits. A task that needs no accelerators prefers nodes with few
        of them.
        """
        needs, first, placement = _needs(entry), entry is self._first, self._placement
        places = self._places(entry)
        if entry.task.on is None and not placement.claims:
            if _lane_of(entry) in self._barren:
                places = self._freed.values()
            elif placement.alike:
                kept = () if self._kept is None else (self._kept,)
                lowest_first = chain(placement.with_slots(), kept)
                return next((host for host in lowest_first if placement.has_room(host, needs, first=first)), None)
        fitting = (host for host in places if placement.has_room(host, needs, first=first))
        return min(fitting, key=lambda host: (0 if needs.gpus else host.has.gpus, host.load), default=None)

    def _to_save(self) -> Host | None:
        if self._first is None or self._first.overtaken < OVERTAKES:
            return None
        needs, anywhere = _needs(self._first), self._first.task.on is None
        if anywhere and self._saved is not None and self._saved.open and needs.fits_in(self._saved.has):
            return self._saved
        could = [host for host in self._places(self._first) if host.open and needs.fits_in(host.has)]
        if self._saved in could:
            return self._saved
        return min(could, key=lambda host: needs.minus(host.left).share_of(host.has), default=None)

    def _to_keep(self, saved: Host | None, none_for: Amounts | None) -> Host | None:
        """Return a node on which the first task in line lacks only a free slot; prefer the node that already keeps a
        slot for it.

        ``none_for``: amounts that no node has free, unless a node in `_freed` has them.
        """
        assert self._first is not None
        needs, placement = _needs(self._first), self._placement

        def may_be(host: Host) -> bool:
            return host.open and placement.has_amounts(host, needs, first=True)

        places: Iterable[Host]
        if saved is not None or self._first.task.on is not None:
            places = self._places(self._first) if saved is None else (saved,)
        elif self._kept is not None and may_be(self._kept):
            return self._kept
        else:
            places = self._freed.values() if none_for == needs else placement.hosts.values()
        could = [host for host in places if may_be(host)]
        if not could and saved is None and self._first.task.on is None and not placement.claims:
            self._none_to_keep_for = needs
        return self._kept if self._kept in could else min(could, key=lambda host: host.load, default=None)

    def _hold(self, saved: Host | None, kept: Host | None) -> None:
        if saved is not self._saved:
            if self._saved is not None:
                self._saved.saved = False
                self._freed[self._saved.id] = self._saved
            if saved is not None:
                saved.saved = True
            self._saved = saved
        if kept is not self._kept:
            before, self._kept = self._kept, kept
            for host, keeps in ((before, 0), (kept, 1)):
                if host is not None:
                    host.keeps = keeps
                    self._freed[host.id] = host
                    self._placement.place(host)

    # --- lanes: tasks with equal needs ----------------------------------------------------------------------------

    def _heads(self) -> list[Entry]:
        """Return the oldest task of each lane, the oldest first: of all lanes for a rank, but of only `LOOK` lanes for
        any node.
        """
        for key in tuple(self._lanes):
            self._clear(key)
        anywhere = (lane[0] for (_, on), lane in self._lanes.items() if on is None)
        on_ranks = (lane[0] for (_, on), lane in self._lanes.items() if on is not None)
        return sorted((*nsmallest(LOOK, anywhere, key=_submitted), *on_ranks), key=_submitted)

    def _clear(self, key: Lane) -> None:
        """Remove ended tasks from the beginning of a lane, and the lane itself if no task is left in it."""
        lane = self._lanes.get(key)
        while lane and lane[0].state != QUEUED:
            lane.popleft()
        if lane is not None and not lane:
            del self._lanes[key]
            self._barren.discard(key)

    def _living(self, key: Lane) -> bool:
        return any(entry.state == QUEUED for entry in self._lanes.get(key, ()))


def _needs(entry: Entry) -> Amounts:
    assert entry.task.needs is not None, "it is in line for them"
    return entry.task.needs


def _lane_of(entry: Entry) -> Lane:
    return _needs(entry), entry.task.on


def _submitted(entry: Entry) -> JobId:
    return entry.task.job


def _before(entry: Entry, job: JobId | None) -> bool:
    return job is None or entry.task.job < job
