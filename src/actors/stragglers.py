"""Straggler detection. Pure. A straggler has not answered at SSH while most machines launched with it have.

A wave is the machines that one launch returned; its times count from that return. Once `QUORUM` of a wave have
answered, the time t that this took is the measure for the others. Before that, t is the longest time that any machine
of another wave took, so that a replacement launched alone has a measure too. Machines that end without an answer leave
their wave.

STRAGGLER-1: a machine is a straggler once `FACTOR` times t, and at least t + `GRACE_S`, has passed,
    not before, and only once.
STRAGGLER-2: a machine that has answered is no straggler, however long it then takes to be ready.
STRAGGLER-3: there are at most half as many stragglers as nodes wanted, rounded up; others follow when these are ready,
    or when their machines have ended: until then these exist beside their substitutes.
STRAGGLER-4: a machine that waits for its turn to be connected to is no straggler, nor within `GRACE_S` from its turn.
STRAGGLER-5: a machine that waits in its provider's queue is no straggler, and its times count from when it starts: it
    belongs to no wave meanwhile, and then to that of those which start within `TOGETHER_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from math import inf

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from .interfaces import NodeId

QUORUM = 0.75
FACTOR = 1.5  # a false alarm costs a machine for a minute; a late alarm costs a whole boot
GRACE_S = 10.0  # one attempt to connect may hang for so long
TOGETHER_S = 2.0  # a provider reports machines that started together one after the other


class Straggler(NamedTuple):
    node: NodeId
    waited_s: float  # since its launch returned
    others_s: float  # the time by which the machines it is compared with had answered


@dataclass(slots=True, eq=False)
class _Wave:
    launched_at: float
    silent: dict[NodeId, float]  # when connecting to each began; infinity: it waits for its turn
    answers: list[float] = field(default_factory=list)  # seconds from the launch

    @property
    def measure_s(self) -> float | None:
        """Return how many seconds the wave's quorum took to answer; None: it has not answered yet."""
        quorum = max(1, int(QUORUM * (len(self.answers) + len(self.silent))))
        return self.answers[quorum - 1] if len(self.answers) >= quorum else None


class Stragglers:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted  # nodes that work
        self._waves: dict[_Wave, None] = {}  # those with a machine that has not answered
        self._wave_of: dict[NodeId, _Wave] = {}  # of the machines that have not answered
        self._reported: set[NodeId] = set()  # stragglers that are not ready and whose machines have not ended
        self._longest_s: float | None = None  # the longest time that a machine of a wave with a quorum took
        self._queued: set[NodeId] = set()  # those that were in a wave, and wait in their provider's queue
        self._started: _Wave | None = None  # the last wave of those that have left the queue
        self._not_before = inf  # none is due before; it may be too early, and is known without a look at all of them

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
        """Handle that a machine that was queued runs."""
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
        """Handle that connecting to ``node`` begins; infinity: it waits for its turn, which does not count."""
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
                self._not_before = 0.0  # now there is a measure for all
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
        """Handle that the machine of ``node``, which has ended before, does not exist any more."""
        if node in self._reported:
            self._reported.discard(node)
            self._not_before = 0.0  # there is room for another

    def overdue(self, now: float) -> list[Straggler]:
        """Return the new stragglers; if there are too many (STRAGGLER-3), those that were due first."""
        due = sorted((at, each) for wave in self._waves for at, each in self._due(wave, now) if at <= now)
        new = [each for _, each in due[: self._room]]
        self._reported.update(each.node for each in new)
        self._not_before = self._first_at()
        return new

    def not_before(self) -> float | None:
        """Return a time before which ``overdue`` need not be called; None: it never need be, as things are.

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
        """Handle that machines of a wave may be due earlier than before. ``tried_from``: when connecting began, for a
        single machine.
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
