"""Which machines are late: pure. Most of those launched with one have answered at SSH, and it has not.

A wave is the machines of one launch's answer, from which its times count. Once `QUORUM` of it have answered, the time t
that this took is the measure of the others; before, the longest that any machine of another wave took, so that a
replacement launched alone has one too. Those that end without an answer are no part of their wave any more.

LAGGARDS-1: a machine is late only after half as long again as t, and not less than `GRACE_S` after t; then it is, and
    once.
LAGGARDS-2: a machine that has answered is not late, however long it then takes to be ready.
LAGGARDS-3: at most half of the nodes wanted, rounded up, are late at a time; the next ones are when these have ended.
LAGGARDS-4: a machine that waits for its turn to be tried is not late, nor before `GRACE_S` from its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .ports import NodeId

QUORUM = 0.75
FACTOR = 1.5  # one that is late for nothing costs a machine for a minute; one that is not waited for, a whole boot
GRACE_S = 10.0  # as long as one try to connect may hang


class Late(NamedTuple):
    node: NodeId
    waited_s: float  # since its launch was answered
    others_s: float  # those that it is measured by had answered by then


class _Wave:
    __slots__ = ("answers", "launched_at", "silent")

    def __init__(self, nodes: Iterable[NodeId], now: float) -> None:
        self.launched_at = now
        self.silent = dict.fromkeys(nodes, now)  # from when on each is tried; infinity: it waits for its turn
        self.answers: list[float] = []  # seconds from the launch

    @property
    def measure_s(self) -> float | None:
        """How long its quorum took."""
        quorum = max(1, int(QUORUM * (len(self.answers) + len(self.silent))))
        return self.answers[quorum - 1] if len(self.answers) >= quorum else None


class Stragglers:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted  # nodes that work
        self._waves: dict[_Wave, None] = {}  # of which somebody is silent
        self._wave_of: dict[NodeId, _Wave] = {}  # of those that are silent
        self._late: set[NodeId] = set()  # not ready, nor ended
        self._longest_s: float | None = None  # that a machine of a wave with a quorum took

    def launched(self, nodes: Iterable[NodeId], now: float) -> None:
        wave = _Wave(nodes, now)
        if wave.silent:
            self._waves[wave] = None
            self._wave_of |= dict.fromkeys(wave.silent, wave)

    def queued(self, node: NodeId) -> None:
        """It waits for its turn to be tried: that is not its fault."""
        self._tried_from(node, float("inf"))

    def tried(self, node: NodeId, now: float) -> None:
        """Its turn has come."""
        self._tried_from(node, now)

    def answered(self, node: NodeId, now: float) -> None:
        wave = self._wave_of.get(node)
        if wave is None:
            return
        wave.answers.append(now - wave.launched_at)
        self._leaves(node, wave)
        if wave.measure_s is not None:
            self._longest_s = max(wave.answers[-1], self._longest_s or 0.0)

    def ready(self, node: NodeId, now: float) -> None:
        self.answered(node, now)
        self._late.discard(node)

    def ended(self, node: NodeId) -> None:
        self._late.discard(node)
        if (wave := self._wave_of.get(node)) is not None:
            self._leaves(node, wave)

    def overdue(self, now: float) -> list[Late]:
        """Those that are late from now on; those that were due first, where there are too many."""
        due = sorted((at, late) for wave in self._waves for at, late in self._due(wave, now) if at <= now)
        late = [each for _, each in due[: self._room]]
        self._late.update(each.node for each in late)
        return late

    def wake_at(self) -> float | None:
        """When ``overdue`` has something to say, if nothing else happens before."""
        if self._room <= 0:
            return None
        first = min((at for wave in self._waves for at, _ in self._due(wave, 0.0)), default=float("inf"))
        return None if first == float("inf") else first

    @property
    def _room(self) -> int:
        return max(0, (self.wanted + 1) // 2 - len(self._late))

    def _due(self, wave: _Wave, now: float) -> Iterator[tuple[float, Late]]:
        others_s = wave.measure_s
        if others_s is None:
            others_s = self._longest_s
        if others_s is None:
            return
        at = wave.launched_at + max(FACTOR * others_s, others_s + GRACE_S)
        for node, tried_from in wave.silent.items():
            if node not in self._late:
                queued = tried_from > wave.launched_at
                due_at = max(at, tried_from + GRACE_S) if queued else at
                yield due_at, Late(node, now - wave.launched_at, others_s)

    def _tried_from(self, node: NodeId, at: float) -> None:
        if (wave := self._wave_of.get(node)) is not None:
            wave.silent[node] = at

    def _leaves(self, node: NodeId, wave: _Wave) -> None:
        del self._wave_of[node]
        del wave.silent[node]
        if not wave.silent:
            del self._waves[wave]
