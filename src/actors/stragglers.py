"""Machines that start late: those that wait in a provider's queue for too long, and stragglers. Two pure deciders.

`LaunchQueue`: a machine waits in its provider's queue, as a job of a cluster does, from the provider's report
`MachineQueued` until it runs (`MachineStarted`) or has its address. During this wait the machine's time to boot does
not count, the machine is no straggler, and no other wait for this machine reaches its time limit.

`Stragglers`: a straggler does not answer over SSH while most machines launched with it do.

A wave is the set of machines that one launch returned; its times count from that return. A machine is late compared
with a time t. Once `QUORUM` (a fraction) of the machine's wave have answered, t is the time that this took. Before
that, t is the longest time that any machine of another wave took, so that a replacement launched alone can be compared
too. Machines that end without an answer leave their wave.

QUEUE-1: a machine's reason to wait is reported when its wait begins, and again only when the reason has changed.
QUEUE-2: a machine is overdue once it has waited for ``start_timeout_s`` without a break, not before, and only once.
QUEUE-3: a repeated report that a machine waits, or a new reason, does not restart its wait.
QUEUE-4: a machine that runs, or whose node has ended, does not wait.

STRAGGLER-1: a machine is a straggler once `FACTOR` times t, and at least t + `GRACE_S`, has passed, not before, and
    only once.
STRAGGLER-2: a machine that has answered is no straggler, however long it then takes to be ready.
STRAGGLER-3: there are at most half as many stragglers as wanted nodes, rounded up; others follow when these are ready,
    or when their machines have ended: until then they exist beside their substitutes.
STRAGGLER-4: a machine that waits for its turn to be connected is no straggler, nor within `GRACE_S` after its turn.
STRAGGLER-5: a machine in its provider's queue is no straggler and belongs to no wave. When it starts, its times count
    from then on, and it joins the wave of the machines that start within `TOGETHER_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from math import inf

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from .interfaces import NodeId


@dataclass(slots=True)
class Waiting:
    """A machine in the queue. ``starts_at``: Unix time at which the provider expects the machine to start; None: not
    known.
    """

    node: NodeId
    since: float
    reason: str
    starts_at: float | None


class LaunchQueue:
    def __init__(self, start_timeout_s: float | None) -> None:
        self._start_timeout_s = start_timeout_s
        self._waiting: dict[NodeId, Waiting] = {}  # the machine that began to wait first comes first
        self._left_at: float | None = None  # when a waiting machine last left the queue

    def __contains__(self, node: NodeId) -> bool:
        return node in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def queued(self, node: NodeId, reason: str, starts_at: float | None, now: float) -> bool:
        """Handle that a machine waits. Return whether the wait is new, or its reason has changed."""
        waiting = self._waiting.get(node)
        if waiting is None:
            self._waiting[node] = Waiting(node, now, reason, starts_at)
            return True
        changed = (waiting.reason, waiting.starts_at) != (reason, starts_at)
        waiting.reason, waiting.starts_at = reason, starts_at
        return changed

    def left(self, node: NodeId, now: float) -> float | None:
        """Handle that a machine runs, or that its node has ended. Return the seconds that the machine waited; None: it
        did not wait.
        """
        waiting = self._waiting.pop(node, None)
        if waiting is None:
            return None
        self._left_at = now
        return now - waiting.since

    def overdue(self, now: float) -> list[Waiting]:
        """Return and remove the machines that have waited for too long."""
        limit_s = self._start_timeout_s
        if limit_s is None:
            return []
        overdue = [each for each in self._waiting.values() if now >= each.since + limit_s]
        for each in overdue:
            self.left(each.node, now)
        return overdue

    def wake_at(self) -> float | None:
        """Return the time at which ``overdue`` must be called; None: no machine has a time limit."""
        if self._start_timeout_s is None or not self._waiting:
            return None
        return next(iter(self._waiting.values())).since + self._start_timeout_s

    def holds(self, now: float) -> bool:
        """Return whether a machine waits, or has stopped waiting just now. If so, the time limit of each wait for a
        node starts again.
        """
        return self.without_s(now) == 0.0

    def without_s(self, now: float) -> float | None:
        """Return the number of seconds for which no machine has waited; 0: a machine waits now; None: no machine has
        ever waited.
        """
        if self._waiting:
            return 0.0
        return None if self._left_at is None else now - self._left_at


QUORUM = 0.75
# a machine is late after this multiple of the time that others took; a false alarm costs a machine for a minute, a late
# alarm a whole boot time
FACTOR = 1.5
GRACE_S = 10.0  # seconds for which one attempt to connect to a machine may hang
TOGETHER_S = 2.0  # seconds; machines that a provider reports as started within this time belong together


class Straggler(NamedTuple):
    node: NodeId
    waited_s: float  # seconds since the machine's launch returned
    others_s: float  # seconds that the machines with which this machine is compared took to answer


@dataclass(slots=True, eq=False)
class _Wave:
    launched_at: float
    # by machine that has not answered: when connecting to it began; infinity: it waits for its turn to be connected
    silent: dict[NodeId, float]
    # for each machine that has answered: seconds from the launch to its answer, in ascending order
    answers: list[float] = field(default_factory=list)

    @property
    def measure_s(self) -> float | None:
        """Return how many seconds it took until `QUORUM` (a fraction) of the wave's machines had answered; None: fewer
        have answered.
        """
        quorum = max(1, int(QUORUM * (len(self.answers) + len(self.silent))))
        return self.answers[quorum - 1] if len(self.answers) >= quorum else None


class Stragglers:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted  # number of nodes that should work
        # waves with a machine that has not answered yet; a wave has the machines of one launch
        self._waves: dict[_Wave, None] = {}
        # by machine that has not answered yet: the wave (the machines of its launch)
        self._wave_of: dict[NodeId, _Wave] = {}
        self._reported: set[NodeId] = set()  # reported stragglers that are not ready and whose machines have not ended
        # seconds from launch to answer: the longest time in any wave (machines of one launch) of which most machines
        # have answered
        self._longest_s: float | None = None
        # machines that wait in their provider's queue, and that were in a wave (the machines of one launch) before
        self._queued: set[NodeId] = set()
        # the newest wave (machines that count as launched together) of machines that have left their provider's queue
        self._started: _Wave | None = None
        # no machine can be late before this time; the time may be too early, as it is updated without a look at all
        # machines
        self._not_before = inf

    def launched(self, nodes: Iterable[NodeId], now: float) -> None:
        wave = _Wave(now, dict.fromkeys(nodes, now))
        if wave.silent:
            self._waves[wave] = None
            self._wave_of |= dict.fromkeys(wave.silent, wave)
            self._may_be_due(wave)

    def queued(self, node: NodeId) -> None:
        if (wave := self._wave_of.get(node)) is not None:
            self._leaves(node, wave)
            self._queued.add(node)

    def started(self, node: NodeId, now: float) -> None:
        """Handle that a machine that was in its provider's queue begins to run."""
        if node not in self._queued:
            return
        self._queued.discard(node)
        wave = self._started
        if wave is None or now - wave.launched_at > TOGETHER_S:
            wave = self._started = _Wave(now, {})
        wave.silent[node] = now
        self._waves[wave] = None
        self._wave_of[node] = wave
        self._may_be_due(wave, now)

    def tried(self, node: NodeId, at: float) -> None:
        """Handle that connecting to ``node`` begins at the time ``at``; infinity: the node still waits for its turn,
        and the time of this wait does not count.
        """
        if (wave := self._wave_of.get(node)) is not None:
            wave.silent[node] = at
            self._may_be_due(wave, at)

    def answered(self, node: NodeId, now: float) -> None:
        wave = self._wave_of.get(node)
        if wave is None:
            return
        wave.answers.append(now - wave.launched_at)
        self._leaves(node, wave)
        if wave.measure_s is not None:
            if self._longest_s is None:
                # from now on there is a time to compare with for every machine, so some machines may already be late
                self._not_before = 0.0
            self._longest_s = max(wave.answers[-1], self._longest_s or 0.0)

    def ready(self, node: NodeId, now: float) -> None:
        self.answered(node, now)
        self.gone(node)

    def ended(self, node: NodeId) -> None:
        """Handle that ``node`` has failed or is dismissed, so that its machine is being ended."""
        self._queued.discard(node)
        if (wave := self._wave_of.get(node)) is not None:
            self._leaves(node, wave)

    def gone(self, node: NodeId) -> None:
        """Handle that the machine of ``node`` no longer exists."""
        if node in self._reported:
            self._reported.discard(node)
            self._not_before = 0.0  # STRAGGLER-3 limits the number of stragglers: there may be room for another one now

    def overdue(self, now: float) -> list[Straggler]:
        """Return the new stragglers; if there are too many of them (STRAGGLER-3), return the machines that were late
        first.
        """
        due = sorted((at, each) for wave in self._waves for at, each in self._due(wave, now) if at <= now)
        new = [each for _, each in due[: self._room]]
        self._reported.update(each.node for each in new)
        self._not_before = self._first_at()
        return new

    def not_before(self) -> float | None:
        """Return a time before which ``overdue`` need not be called; None: no call is needed in the present state.

        The time may be too early: this is called after every event, so it does not look at all machines.
        """
        return None if self._room <= 0 or self._not_before == inf else self._not_before

    def _first_at(self) -> float:
        return min((at for wave in self._waves for at, _ in self._due(wave, 0.0)), default=inf)

    @property
    def _room(self) -> int:
        return max(0, (self.wanted + 1) // 2 - len(self._reported))

    def _measure_s(self, wave: _Wave) -> float | None:
        measure_s = wave.measure_s
        return self._longest_s if measure_s is None else measure_s

    def _may_be_due(self, wave: _Wave, tried_from: float = -inf) -> None:
        """Handle a change by which machines of ``wave`` may be late sooner than before.

        ``tried_from``: if the change concerns a single machine, the time when connecting to it began.
        """
        others_s = self._measure_s(wave)
        if others_s is not None and wave.silent:
            self._not_before = min(self._not_before, max(_late_at(wave, others_s), tried_from + GRACE_S))

    def _due(self, wave: _Wave, now: float) -> Iterator[tuple[float, Straggler]]:
        others_s = self._measure_s(wave)
        if others_s is None:
            return
        at = _late_at(wave, others_s)
        for node, tried_from in wave.silent.items():
            if node not in self._reported:
                queued = tried_from > wave.launched_at
                due_at = max(at, tried_from + GRACE_S) if queued else at
                yield due_at, Straggler(node, now - wave.launched_at, others_s)

    def _leaves(self, node: NodeId, wave: _Wave) -> None:
        del self._wave_of[node]
        del wave.silent[node]
        if not wave.silent:
            del self._waves[wave]
        else:
            self._may_be_due(wave)


def _late_at(wave: _Wave, others_s: float) -> float:
    return wave.launched_at + max(FACTOR * others_s, others_s + GRACE_S)
