"""Jobs that have stalled. `StalledJobs` carries out the decisions of `StallWatch`, which decides when a job has
stalled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from . import events as ev
from .events import Observe
from .interfaces import AttemptId, Finished, GaveUp, JobId, Looked, NodeId, Reason, Report, Returned
from .ledger import Ledger
from .membership import Membership
from .stalls import AskNode, HasStalled, StallWatch


class StalledJobs:
    def __init__(
        self,
        watch: StallWatch,
        nodes: Membership,
        ledger: Ledger,
        observe: Observe,
        *,
        restart_broadcast: Callable[[JobId, str, float], bool],
    ) -> None:
        """``restart_broadcast``: `Broadcasts.stalled`, which returns whether the broadcast runs again."""
        self._watch, self._nodes, self._ledger, self._observe = watch, nodes, ledger, observe
        self._restart_broadcast = restart_broadcast

    def received(self, node: NodeId, reports: Sequence[Report], now: float) -> bool:
        """Handle a node's reports; return whether they may have changed more than the state of the `StallWatch`."""
        for report in reports:
            match report:
                case Finished(attempt):
                    self._watch.finished(node, attempt, now)
                case Returned(attempts):
                    for attempt in attempts:
                        self._watch.finished(node, attempt, now)
                case Looked(question, seen):
                    self._watch.answered(node, question, seen, now)
                case _:
                    pass
        return self._carry_out(now)

    def tick(self, now: float) -> None:
        self._watch.tick(now, self._heard)
        self._carry_out(now)

    def _heard(self, node: NodeId, attempt: AttemptId) -> float | None:
        link = self._nodes.links.get(node)
        return None if link is None else link.heard(attempt)

    def _carry_out(self, now: float) -> bool:
        effects, self._watch.effects = self._watch.effects, []
        for effect in effects:
            match effect:
                case AskNode(node, question, quiet_s):
                    # a node without a link cannot be asked; its loss will be handled as an event
                    if (link := self._nodes.links.get(node)) is not None:
                        link.look(question, quiet_s)
                case HasStalled():
                    self._has_stalled(effect, now)
                case _:
                    assert_never(effect)
        return bool(effects)

    def _has_stalled(self, effect: HasStalled, now: float) -> None:
        job, places, culprit = effect.job, effect.places, effect.culprit
        generation, name = max(place.generation for place in places), effect.stall.name
        restart = effect.stall.restart and self._restart(effect, now)
        rank, reason = (None, "") if culprit is None else culprit
        ranks = tuple(place.rank for place in places)
        self._observe(ev.Stalled(job, generation, ranks, effect.quiet_s, rank, reason, name, restart))
        for place in places:
            text = effect.seen[place.attempt].text
            facts = {"ranks": place.ranks, "generation": place.generation}
            self._observe(ev.StackTaken(job, place.node, place.rank, text, name, **facts))

    def _restart(self, effect: HasStalled, now: float) -> bool:
        """End the attempts of a stalled job; return whether other attempts follow."""
        why, place = f"no sign of life for {effect.quiet_s:.0f} s", effect.places[0]
        if place.generation:
            return self._restart_broadcast(effect.job, why, now)
        entry = self._ledger.entry(place.node, place.attempt)
        if entry is None or entry.task.at_most_once:
            return False
        if not entry.may_restart():
            self._ledger.cancel(effect.job, now, GaveUp(Reason.STALLED))
            return False
        entry.stalled = True
        self._nodes.links[place.node].kill(place.attempt)
        return True
