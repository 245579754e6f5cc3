"""The broadcasts under way. `Broadcasts` carries out the decisions of each `Gang`, the decider of one broadcast.

Two small deciders of this module serve all broadcasts. `LongWaits` decides when a broadcast's wait is reported.
`StopAgreement` makes all ranks of a generation (one try of a broadcast with all its ranks) stop at the same step when
the machine of one of them will be taken: each node that runs ranks of the generation gets the preemption notice, the
ranks wait at their next stop check, which is a call of `should_stop`, each node reports how many checks its ranks have
made, and all ranks stop at the check after the highest of these numbers.

WAITS-1: the wait of a broadcast is due for a check after `LONG_S`, and again every `LONG_S` until the wait ends; when
    the broadcast begins to wait for something else, a new wait begins.
WAITS-2: a long wait is reported when it is first due, each time that its length has doubled, and at its end.

STOP-1: of the preemption notices of a generation's nodes, the one with the soonest deadline is the last that each of
    these nodes was sent.
STOP-2: a generation is sent at most one check to stop at: a check after all checks that its ranks had made.
STOP-3: no message is sent about a generation that is over.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import field, replace
from typing import assert_never

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from ..providers.base import PreemptionNotice
from . import events as ev
from .events import Observe
from .fencing import EndAll, GenerationStarted, KillRank, NeedPorts, RankEnded, RankFailed, RunRank
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
    Peer,
    PoolSpec,
    Reason,
    SettleAll,
    Settled,
    StopAt,
    StopChecks,
    Verdict,
    World,
)
from .ledger import Ledger
from .membership import Membership
from .placement import Claim, ReleaseSeat, WithdrawClaim
from .stalls import StallWatch

LONG_S = 10.0  # seconds of waiting after which the request for ports is repeated and the wait is reported


@dataclass(slots=True)
class Wait:
    """The wait of one broadcast. ``of``: what the broadcast waits for; a new value begins a new wait."""

    of: Hashable
    since: float
    due_at: float
    report_s: float = LONG_S  # seconds of waiting after which the wait is reported next
    text: str = ""  # reason in the last report of this wait, for people; empty: the wait was not reported yet


class LongWaits:
    def __init__(self) -> None:
        self.waits: dict[JobId, Wait] = {}

    def see(self, job: JobId, of: Hashable | None, now: float) -> Wait | None:
        """Set what a broadcast waits for (None: it does not wait). Return the broadcast's previous wait if it ends now
        and was reported.
        """
        wait = self.waits.get(job)
        if wait is None:
            if of is not None:
                self.waits[job] = Wait(of, now, now + LONG_S)
            return None
        if wait.of == of:
            return None
        if of is None:
            del self.waits[job]
        else:
            self.waits[job] = Wait(of, now, now + LONG_S)
        return wait if wait.text else None

    def due(self, now: float) -> list[JobId]:
        """Return the broadcasts whose waits are due, and set the time at which each is due next."""
        due = [job for job, wait in self.waits.items() if wait.due_at <= now]
        for job in due:
            self.waits[job].due_at = now + LONG_S
        return due

    def report(self, job: JobId, text: str, now: float) -> float | None:
        """Return how many seconds a broadcast has waited, if the wait is to be reported now, else None. ``text``: what
        it waits for.
        """
        wait = self.waits[job]
        waited_s = now - wait.since
        # the tolerance is for clocks that round: waits are checked every `LONG_S`, perhaps a little early
        if waited_s < wait.report_s - LONG_S / 2:
            return None
        while wait.report_s < waited_s + LONG_S / 2:
            wait.report_s *= 2
        wait.text = text
        return waited_s

    def wake_at(self) -> float | None:
        return min((wait.due_at for wait in self.waits.values()), default=None)


SAME_S = 1.0  # seconds; two times that differ by less than this are one deadline, reported twice with different delays


class Deadline(NamedTuple):
    """The time at which a node's machine will be taken, by a preemption notice."""

    at: float
    number: int  # number of the preemption notice; no two notices have the same number
    notice: PreemptionNotice


@dataclass(slots=True)
class Generation:
    world: World
    nodes: set[NodeId]  # nodes of the generation that are not lost
    # the deadline that the generation's nodes were sent last; None: no deadline was sent, or the last one was withdrawn
    sent: Deadline | None = None
    # numbers of the preemption notices that the generation's nodes were sent; emptied when no notice is valid any more
    numbers: set[int] = field(default_factory=set)
    checks: dict[NodeId, int] = field(default_factory=dict)
    stop_at: int | None = None


class StopAgreement:
    def __init__(self) -> None:
        # preemption notices to be sent; the caller empties the list
        self.notices: list[tuple[NodeId, PreemptionNotice, Peer]] = []
        # orders to stop at a check, to be sent after the notices; the caller empties the list
        self.stops: list[tuple[NodeId, StopAt]] = []
        self._generations: dict[JobId, Generation] = {}
        # by node and by source: the deadline of each preemption notice
        self._deadlines: dict[NodeId, dict[str, Deadline]] = {}
        self._last = 0

    def started(self, job: JobId, world: World, now: float) -> None:
        """Handle that a generation of ``job`` begins, which replaces the job's previous generation."""
        self._generations[job] = generation = Generation(world, set(world.nodes))
        self._notify(job, generation, now)

    def ended(self, job: JobId) -> None:
        self._generations.pop(job, None)

    def noticed(self, node: NodeId, notice: PreemptionNotice, now: float) -> None:
        deadlines, source, seconds = self._deadlines.setdefault(node, {}), notice.source, notice.seconds
        known = deadlines.get(source)
        if seconds is None:
            deadlines.pop(source, None)
        elif known is None:
            self._last += 1
            deadlines[source] = Deadline(now + seconds, self._last, notice)
        elif abs(known.at - now - seconds) >= SAME_S:
            deadlines[source] = known._replace(at=now + seconds)
        if not deadlines:
            del self._deadlines[node]
        for job, generation in self._of(node):
            self._notify(job, generation, now)

    def lost(self, node: NodeId, now: float) -> None:
        self._deadlines.pop(node, None)
        for job, generation in self._of(node):
            generation.nodes.discard(node)
            generation.checks.pop(node, None)
            self._notify(job, generation, now)
            self._agree(job, generation)

    def checked(self, node: NodeId, report: StopChecks) -> None:
        """Handle a node's report of how many stop checks its ranks have made; ignore the report if it is about an
        outdated notice.
        """
        generation = self._generations.get(report.job)
        if generation is None or generation.world.generation != report.generation or node not in generation.nodes:
            return
        if report.number in generation.numbers:
            generation.checks[node] = report.checks
            self._agree(report.job, generation)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _of(self, node: NodeId) -> list[tuple[JobId, Generation]]:
        return [(job, generation) for job, generation in self._generations.items() if node in generation.nodes]

    def _notify(self, job: JobId, generation: Generation, now: float) -> None:
        """Send the soonest deadline to the generation's nodes, unless it is the deadline that they were sent last."""
        if not self._deadlines and generation.sent is None:
            return
        places = {node: place for place, node in enumerate(generation.world.nodes) if node in generation.nodes}
        known = [(deadline, node) for node in places for deadline in self._deadlines.get(node, {}).values()]
        soonest, of = min(known, key=lambda each: each[0][:2], default=(None, None))
        if soonest == generation.sent:
            return
        before, generation.sent = generation.sent, soonest
        if soonest is None or of is None:
            assert before is not None, "it differs from what was sent"
            generation.numbers.clear()
            generation.checks.clear()
            notice, number, place = replace(before.notice, seconds=None), before.number, 0
        else:
            generation.numbers.add(soonest.number)
            notice, number = replace(soonest.notice, seconds=max(0.0, soonest.at - now)), soonest.number
            place = places[of]
        peer = Peer(job, generation.world.generation, number, place)
        self.notices += [(node, notice, peer) for node in places]

    def _agree(self, job: JobId, generation: Generation) -> None:
        if generation.stop_at is None and generation.checks and generation.checks.keys() == generation.nodes:
            generation.stop_at = max(generation.checks.values()) + 1
            stop = StopAt(job, generation.world.generation, generation.stop_at)
            self.stops += [(node, stop) for node in sorted(generation.nodes)]


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
        # nodes to which the pool sends how many of their ports it has used, once the current decisions are carried out;
        # each node answers with its free ports
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
        if began or gang.has_reruns or gang.phase is not Phase.RUNNING:
            self._see_wait(job, self._wait_of(gang), now)

    def _wait_of(self, gang: Gang) -> Hashable | None:
        """Return the key under which `LongWaits` counts the broadcast's present wait; None: the ranks run, or the
        broadcast is over.
        """
        if gang.phase is not Phase.RUNNING or gang.has_reruns:
            return (gang.phase, gang.has_reruns) if gang.has_reruns or gang.phase in _WAITS else None
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
            case Phase.RUNNING if gang.has_reruns:
                return "a node on which ranks of a lost one can run again"
            case Phase.RUNNING:
                unsent = self._unsent(gang)
                return f"its arguments to reach {len(unsent)} of its nodes, node {min(unsent)} first" if unsent else ""
            case _:
                return ""

    def _ask_again(self, gang: Gang, request: NeedPorts, now: float) -> None:
        """Check again whether the ports of ``request`` are free; if a node has too few free ports, ask that node for a
        new report of its free ports.
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
            if member is None:  # the node is lost; the broadcast's `Gang` handles the loss as a separate event
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
