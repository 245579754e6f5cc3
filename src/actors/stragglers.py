"""Straggler detection. Pure. A straggler does not answer over SSH while most machines launched with it do.

A wave is the set of machines that one launch returned; its times count from that return. The measure for a machine is a
time t. Once `QUORUM` of its wave have answered, t is the time that this took. Before that, t is the longest time that
any machine of another wave took, so that a replacement launched alone has a measure too. Machines that end without an
answer leave their wave.

STRAGGLER-1: a machine is a straggler once `FACTOR` times t, and at least t + `GRACE_S`, has passed,
    not before, and only once.
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

QUORUM = 0.75
FACTOR = 1.5  # factor of the measured time; a false alarm costs a machine for a minute, a late alarm a whole boot time
GRACE_S = 10.0  # seconds for which one attempt to connect may hang
TOGETHER_S = 2.0  # seconds within which a provider reports machines that started together


class Straggler(NamedTuple):
    node: NodeId
    waited_s: float  # seconds since its launch returned
    others_s: float  # seconds that the machines took to answer with which this one is compared


@dataclass(slots=True, eq=False)
class _Wave:
    launched_at: float
    silent: dict[NodeId, float]  # when connecting to each began; infinity: the machine waits for its turn
    answers: list[float] = field(default_factory=list)  # seconds from the launch

    @property
    def measure_s(self) -> float | None:
        """Return how many seconds the wave's quorum took to answer; None: the quorum has not answered yet."""
        quorum = max(1, int(QUORUM * (len(self.answers) + len(self.silent))))
        return self.answers[quorum - 1] if len(self.answers) >= quorum else None


class Stragglers:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted  # number of nodes that should work
        self._waves: dict[_Wave, None] = {}  # waves with a machine that has not answered
        self._wave_of: dict[NodeId, _Wave] = {}  # waves of the machines that have not answered
        self._reported: set[NodeId] = set()  # stragglers that are not ready and whose machines have not ended
        # the longest boot time of a machine in a wave (one launch) of which enough machines have booted
        self._longest_s: float | None = None
        self._queued: set[NodeId] = set()  # machines that were in a wave, and wait in their provider's queue
        self._started: _Wave | None = None  # the last wave of machines that have left the queue
        # no machine is due before this time; it may be too early, because it is updated without examining all machines
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
        """Handle that a queued machine begins to run."""
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
        """Handle that connecting to ``node`` begins; infinity: it waits for its turn, and this wait does not count."""
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
                self._not_before = 0.0  # from now on, all machines have a measure
            self._longest_s = max(wave.answers[-1], self._longest_s or 0.0)

    def ready(self, node: NodeId, now: float) -> None:
        self.answered(node, now)
        self.gone(node)

    def ended(self, node: NodeId) -> None:
        """Handle that ``node`` has failed or is dismissed; its machine is being ended."""
        self._queued.discard(node)
        if (wave := self._wave_of.get(node)) is not None:
            self._leaves(node, wave)

    def gone(self, node: NodeId) -> None:
        """Handle that the machine of ``node``, which ended earlier, no longer exists."""
        if node in self._reported:
            self._reported.discard(node)
            self._not_before = 0.0  # the limit of STRAGGLER-3 may allow another straggler

    def overdue(self, now: float) -> list[Straggler]:
        """Return the new stragglers; if they are too many (STRAGGLER-3), return those that were due first."""
        due = sorted((at, each) for wave in self._waves for at, each in self._due(wave, now) if at <= now)
        new = [each for _, each in due[: self._room]]
        self._reported.update(each.node for each in new)
        self._not_before = self._first_at()
        return new

    def not_before(self) -> float | None:
        """Return a time before which ``overdue`` need not be called; None: no call is needed in the current state.

        The time may be too early: this is called after every event, so it does not examine all machines.
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
        """Handle that machines of a wave may be due earlier than before. ``tried_from``: when connecting to a single
        machine began.
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
