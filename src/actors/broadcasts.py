"""The broadcasts under way. `Broadcasts` carries out the decisions of each `Gang`, the decider of one broadcast."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import assert_never

from ..providers.base import PreemptionNotice
from . import events as ev
from .broadcast_effects import EndAll, GenerationStarted, NeedPorts, RankEnded, RankFailed
from .events import Observe
from .fencing import KillRank, RunRank
from .generations import Gang, Phase
from .interfaces import (
    AttemptId,
    BroadcastSpec,
    Ending,
    Finished,
    GaveUp,
    JobId,
    Joined,
    NodeId,
    PoolSpec,
    Reason,
    SettleAll,
    Settled,
    StopChecks,
    Verdict,
)
from .ledger import Ledger
from .long_waits import LongWaits
from .membership import Membership
from .placement import Claim, ReleaseSeat, WithdrawClaim
from .stalls import StallWatch
from .stop_agreement import StopAgreement

# the phases in which a broadcast waits because its ranks cannot run yet
_WAITS = {Phase.WAITING, Phase.PORT, Phase.FENCING}


class Broadcasts:
    def __init__(
        self,
        pool: PoolSpec,
        ledger: Ledger,
        nodes: Membership,
        observe: Observe,
        attempts: Iterator[int],
        *,
        stalls: StallWatch | None = None,
    ) -> None:
        self._pool = pool
        self._ledger = ledger
        self._nodes = nodes
        self._observe = observe
        self._ids = attempts
        self._gangs: dict[JobId, Gang] = {}
        self._settles: dict[JobId, SettleAll] = {}
        # why the node that failed last did not become ready; None: a node became ready after it
        self.failure: Exception | None = None
        self._attempts: dict[AttemptId, Gang] = {}
        self._want_ports: dict[NodeId, list[tuple[Gang, NeedPorts]]] = {}
        # nodes with which to compare the numbers of used ports, once the current decisions are carried out
        self._compare_ports: dict[NodeId, None] = {}
        self._waits = LongWaits()
        self._stop_agreement = StopAgreement()
        self._stalls = StallWatch() if stalls is None else stalls

    def __len__(self) -> int:
        return len(self._gangs)

    @property
    def largest(self) -> int:
        """Return the number of nodes that the largest broadcast uses or waits for."""
        return max((gang.size() for gang in self._gangs.values() if gang.phase is not Phase.ENDING), default=0)

    def start(self, spec: BroadcastSpec, settle_all: SettleAll, now: float, *, minimum: int, wanted: int) -> None:
        gang = Gang(spec, self._pool, minimum=minimum, wanted=wanted, attempts=self._ids)
        self._gangs[spec.job] = gang
        self._settles[spec.job] = settle_all
        self._observe(ev.BroadcastSubmitted(spec.job))
        gang.start(now, ready=len(self._nodes.roster))
        self._carry_out(gang, now)

    def seated(self, job: JobId, granted: tuple[NodeId, ...], now: float) -> None:
        gang = self._gangs.get(job)
        if gang is None:
            for node in granted:
                self._ledger.unseat(node, job, now)
            return
        gang.seated(granted, self._nodes.ranked(), now)
        self._carry_out(gang, now)

    def finished(self, node: NodeId, report: Finished, now: float) -> bool:
        """Handle a rank's report from ``node``; return False if the only change is that one rank returned."""
        gang = self._attempts.get(report.attempt)
        if gang is None or not gang.finished(node, report.attempt, report.verdict, report.outcome, now):
            return False
        del self._attempts[report.attempt]
        if report.verdict is not Verdict.RETURNED and gang.listens_on(node):
            # the rank's attempt may not have begun, so the port that was counted for the rank may still be free
            self._compare_ports[node] = None
        self._carry_out(gang, now)
        if report.verdict is not Verdict.RETURNED or gang.wake_at() is not None:
            return True
        return not (gang.phase is Phase.RUNNING or gang.phase is Phase.OVER)

    def joined(self, report: Joined, now: float) -> bool:
        """Handle a rank's report that the ranks wait for each other from now on; return whether a time limit begins
        (GANG-17).
        """
        gang = self._attempts.get(report.attempt)
        if gang is None:
            return False
        gang.joined(now)
        self._carry_out(gang, now)
        return gang.wake_at() is not None

    def ports_free(self, node: NodeId, now: float) -> None:
        for gang, request in self._want_ports.pop(node, ()):
            self._give_ports(gang, request, now, again=True)
            self._carry_out(gang, now)

    def lost(self, node: NodeId, cause: str, now: float, *, since: float | None = None) -> None:
        self._want_ports.pop(node, None)
        self._compare_ports.pop(node, None)
        self._stalls.lost(node, now)
        self._stop_agreement.lost(node, now)
        self._send_agreements()
        for gang in self._each(now):
            gang.lost(node, cause, now, since=since)

    def leaving(self, node: NodeId, now: float, *, noticed: bool) -> None:
        for gang in self._each(now):
            gang.leaving(node, now, noticed=noticed)

    def noticed(self, node: NodeId, notice: PreemptionNotice, now: float) -> None:
        """Send the preemption notice of ``node`` to all nodes that run ranks of the same generations."""
        self._stop_agreement.noticed(node, notice, now)
        self._send_agreements()

    def stop_checks(self, node: NodeId, report: StopChecks) -> None:
        self._stop_agreement.checked(node, report)
        self._send_agreements()

    def staying(self, node: NodeId, now: float) -> None:
        for gang in self._each(now):
            gang.staying(node)

    def resized(self, now: float, *, minimum: int, wanted: int) -> None:
        for gang in self._each(now):
            gang.resized(minimum=minimum, wanted=wanted)
            gang.ready(len(self._nodes.roster), now)

    def ready(self, now: float) -> None:
        for gang in self._gangs.values():
            gang.ready(len(self._nodes.roster), now)

    def queued(self, now: float) -> None:
        """Handle that a machine waits in its provider's queue: the time limit of each wait for a node starts again."""
        for gang in self._gangs.values():
            gang.ready(len(self._nodes.roster), now, queued=True)

    def unreplaceable(self, now: float) -> None:
        for gang in self._each(now):
            gang.unreplaceable(now, ready=len(self._nodes.roster))

    def cancel(self, job: JobId, now: float, ending: GaveUp) -> None:
        gang = self._gangs.get(job)
        if gang is not None:
            gang.cancel(ending.reason, ending.why, ending.limit_s)
            self._carry_out(gang, now)

    def place_of(self, job: JobId) -> str:
        """Return the state of a broadcast as text for people; empty: the broadcast is over."""
        gang = self._gangs.get(job)
        if gang is None:
            return ""
        if text := self._waited_for(gang):
            return f"it was waiting for {text}"
        ranks = [f"rank {rank} on node {node}" for rank, node in sorted(gang.running.values())]
        return f"{', '.join(ranks[:3])}{f' and {len(ranks) - 3} others' if len(ranks) > 3 else ''} had not ended"

    def refuse(self, job: JobId, why: str, now: float) -> None:
        """End a broadcast that needs larger amounts than its nodes have. ``why``: for people."""
        gang = self._gangs.get(job)
        if gang is not None:
            gang.cancel(Reason.TOO_LARGE, why)
            self._carry_out(gang, now)

    def stalled(self, job: JobId, why: str, now: float) -> bool:
        """Handle that no rank of a broadcast has given a sign of life for long; return whether the broadcast runs
        again.
        """
        gang = self._gangs.get(job)
        again = gang is not None and gang.stalled(why, now)
        if gang is not None:
            self._carry_out(gang, now)
        return again

    def leave_rank(self, job: JobId, rank: int, now: float) -> None:
        gang = self._gangs.get(job)
        if gang is not None:
            gang.leave_rank(rank)
            self._carry_out(gang, now)

    def close(self, now: float) -> None:
        for gang in self._each(now):
            gang.close()

    def tick(self, now: float) -> None:
        for gang in self._each(now):
            gang.tick(now, ready=len(self._nodes.roster))
        for job in self._waits.due(now):
            self._wait_is_due(self._gangs[job], now)

    def wake_at(self) -> float | None:
        times = [at for gang in self._gangs.values() if (at := gang.wake_at()) is not None]
        return min((*times, at) if (at := self._waits.wake_at()) is not None else times, default=None)

    def _each(self, now: float) -> Iterator[Gang]:
        """Yield each broadcast's `Gang`; when the caller has used it, carry out its decisions and go to the next."""
        for gang in list(self._gangs.values()):
            yield gang
            self._carry_out(gang, now)

    # --- effects, and reports of long waits -----------------------------------------------------------------------

    def _carry_out(self, gang: Gang, now: float) -> None:  # noqa: PLR0912 (a table)
        ledger, links, job, watch = self._ledger, self._nodes.links, gang.spec.job, gang.spec.watch
        began = False
        while gang.effects:
            effects, gang.effects = gang.effects, []
            for effect in effects:
                match effect:
                    case RunRank(node, order):
                        self._attempts[order.attempt] = gang
                        links[node].run(order)
                        self._stalls.began(node, order, now)
                    case ReleaseSeat(node):
                        ledger.unseat(node, job, now)
                    case Claim():
                        ledger.withdraw(job, now)
                        ledger.claim(replace(effect, needs=gang.spec.needs) if gang.spec.needs else effect, now)
                    case WithdrawClaim():
                        ledger.withdraw(job, now)
                    case NeedPorts():
                        self._give_ports(gang, effect, now)
                    case KillRank(node, attempt):
                        links[node].kill(attempt)
                    case RankFailed(ending):
                        if gang.spec.failed is not None:
                            gang.spec.failed(ending)
                    case RankEnded(rank, ending):
                        assert watch is not None
                        watch.ended(rank, ending)
                    case EndAll(endings, generation):
                        verdicts = tuple((e.verdict if isinstance(e, Settled) else e.reason).value for e in endings)
                        self._observe(ev.BroadcastFinished(job, generation, verdicts))
                        self._stop_agreement.ended(job)
                        self._settles.pop(job)(tuple(map(self._explained, endings)), generation)
                    case GenerationStarted(world, ranks):
                        began = True
                        if watch is not None:
                            watch.began(world.size)
                        self._nodes.send_views(named=True)
                        self._stop_agreement.started(job, world, now)
                        self._send_agreements()
                        self._observe(
                            ev.GenerationStarted(
                                job, world.generation, world.nodes, ranks, head=world.head, head_port=world.head_port
                            )
                        )
                    case ev.GenerationLost():
                        self._observe(effect)
                    case _:
                        assert_never(effect)
        if gang.phase is Phase.OVER and self._gangs.pop(job, None) is not None:
            self._attempts = {attempt: of for attempt, of in self._attempts.items() if of is not gang}
        while self._compare_ports:
            self._nodes.compare_ports(self._compare_ports.popitem()[0])
        if began or gang.has_gaps or gang.phase is not Phase.RUNNING:
            self._see_wait(job, self._wait_of(gang), now)

    def _wait_of(self, gang: Gang) -> Hashable | None:
        """Return the key under which `LongWaits` counts the broadcast's present wait; None: the ranks run, or the
        broadcast is over.
        """
        if gang.phase is not Phase.RUNNING or gang.has_gaps:
            return (gang.phase, gang.has_gaps) if gang.has_gaps or gang.phase in _WAITS else None
        return "its arguments" if self._unsent(gang) else None

    def _unsent(self, gang: Gang) -> set[NodeId]:
        """Return the nodes that have ranks whose arguments are not sent yet."""
        return {node for attempt, (_, node) in gang.running.items() if not self._nodes.is_sent(node, attempt)}

    def _see_wait(self, job: JobId, of: Hashable | None, now: float) -> None:
        ended = self._waits.see(job, of, now)
        if ended is not None:
            self._observe(ev.BroadcastWaits(int(job), ended.text, now - ended.since, ended=True))

    def _wait_is_due(self, gang: Gang, now: float) -> None:
        """Report a wait that has become long, or has doubled since its last report; repeat the wait's requests for
        ports.
        """
        job, text = gang.spec.job, self._waited_for(gang)
        if not text:  # the ranks run, so the wait is over
            self._see_wait(job, None, now)
            return
        if (waited_s := self._waits.report(job, text, now)) is not None:
            self._observe(ev.BroadcastWaits(int(job), text, waited_s))
        for request in gang.port_requests:
            self._ask_again(gang, request, now)

    def _waited_for(self, gang: Gang) -> str:
        """Return, as text for people, what a broadcast waits for before its ranks can run; empty: it does not wait."""
        match gang.phase:
            case Phase.WAITING:
                return gang.lacking_nodes(len(self._nodes.roster))
            case Phase.FENCING:
                rank, node = next(iter(gang.running.values()), (0, 0))
                return f"rank {rank} on node {node} to end, which ran before"
            case Phase.PORT | Phase.RUNNING if gang.port_requests:
                nodes = sorted({node for request in gang.port_requests for node, _ in request.of})
                return f"free ports of {'nodes' if len(nodes) > 1 else 'node'} {', '.join(map(str, nodes))}"
            case Phase.RUNNING if gang.has_gaps:
                return "a node on which ranks of a lost one can run again"
            case Phase.RUNNING:
                unsent = self._unsent(gang)
                return f"its arguments to reach {len(unsent)} of its nodes, node {min(unsent)} first" if unsent else ""
            case _:
                return ""

    def _ask_again(self, gang: Gang, request: NeedPorts, now: float) -> None:
        """Check again whether the ports of ``request`` are free; compare the numbers of used ports with a node that has
        too few.
        """
        for waiting in self._want_ports.values():
            waiting[:] = [each for each in waiting if each[0] is not gang or each[1] != request]
        self._give_ports(gang, request, now)
        self._carry_out(gang, now)

    def _explained(self, ending: Ending) -> Ending:
        if isinstance(ending, GaveUp) and ending.reason is Reason.NO_REPLACEMENT:
            return replace(ending, failure=self.failure)
        return ending

    def _send_agreements(self) -> None:
        agreement, links = self._stop_agreement, self._nodes.links
        for node, notice, peer in agreement.notices:
            if node in links:
                links[node].notify(notice, peer)
        for node, stop in agreement.stops:
            if node in links:
                links[node].stop_at(stop)
        agreement.notices.clear()
        agreement.stops.clear()

    def _give_ports(self, gang: Gang, request: NeedPorts, now: float, *, again: bool = False) -> None:
        """Give ``gang`` all the free ports of ``request``: now, or when a node that has too few of them reports new
        free ports.

        Such a node is asked for a report. ``again``: the node has just reported, so do not ask it now, but only when
        the wait has become long.
        """
        ports: list[tuple[int, ...]] = []
        for node, count in request.of:
            member = self._nodes.members.get(node)
            if member is None:  # the node is lost; the gang handles this loss as a separate event
                return
            if len(member.ports) < count:
                self._want_ports.setdefault(node, []).append((gang, request))
                if not again:
                    self._compare_ports[node] = None
                return
            ports.append(member.ports.first(count))
        if gang.ports(request, ports, now):
            for node, count in request.of:
                self._nodes.members[node].ports.take(count)
