"""The generations of one broadcast (a gang) and their fencing: pure decisions; time comes in with each event.

A generation runs the function once per rank under one immutable `World`. When a rank's node is lost, `OnLoss` says what
follows. RESTART fences first: every surviving attempt is killed and reported as ended (or its node is lost too) before
the next generation begins. So no two generations ever run at the same time, and however many nodes are lost meanwhile,
one new generation follows. Seats are kept from one generation to the next; `placement` grants the missing ones. They
are claimed from a node's notice or loss on: a task that took them would delay the next generation.

GANG-1: a broadcast ends exactly once, with one ending per rank.
GANG-2: (RESTART) no generation begins while an attempt of an older one may still run.
GANG-3: a generation's ranks are 0..n-1 on distinct nodes, and all see the same world.
GANG-4: (RESTART) the results that end a broadcast are all of its last generation.
GANG-5: at most ``restarts`` generations in a row follow lost ones; (RESEND) no rank runs again alone more often than
    that. At most ``max_restarts`` generations follow one in which a rank failed by itself.
GANG-6: when a broadcast is over it holds no seat and nothing of it runs.
GANG-7: a generation's ports were free where they are named, and serve no other generation.
GANG-8: an at-most-once broadcast never runs a rank twice.
GANG-9: with too few nodes, or a rank that waits for one to run again on, it waits ``replace_timeout_s`` for one more at
    most; and while one waits in a queue, but not where it may go on with the nodes that are ready. For each node that
    the next generation lacks it waits so long, also where the fence lasts longer; unless no machine is to be had.
GANG-10: an attempt ends by the report of the node that it was given to, and of no other.
GANG-11: no node is asked for more ports than it has at once: that wait would never end.
GANG-12: the end of a watched rank is told once, when it is known, and is the one that the broadcast ends with.
GANG-13: a rank that its caller has left is killed, and ends no other.
GANG-14: at most ``restarts`` generations follow one that stalled; then the broadcast ends with that.
GANG-15: ranks run again alone (RESEND) in a generation that runs, and in no other. Each of its ranks runs, has ended,
    or waits: for a node, ports, or the other ranks of its lost node. Once it is fenced or ends, none waits any more.
GANG-16: seats that do not suffice for a generation, be it the first, are held for ``replace_timeout_s`` at most where
    the nodes for the others are there, and busy: then they are freed, and the broadcast queues anew.
GANG-17: once ranks wait for each other (`collective`, `joined`), a failure ends the others within `GRACE_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto

from . import events as ev
from .broadcast_effects import EndAll, GenerationStarted, NeedPorts, RankEnded, RankFailed
from .broadcast_seats import BroadcastSeats
from .fencing import Gap, KillRank, Losses
from .interfaces import (
    AttemptId,
    BroadcastSpec,
    Ending,
    GaveUp,
    NodeFacts,
    NodeId,
    OnLoss,
    PoolSpec,
    Reason,
    Settled,
    Task,
    TaskId,
    Verdict,
)
from .placement import WithdrawClaim
from .replacement_wait import ReplacementWait

GRACE_S = 2.0  # for the other ranks of a collective to fail by themselves, with informative errors


class Phase(Enum):
    WAITING = auto()  # waits for seats
    PORT = auto()  # waits for free ports: the head's, or one for each rank
    RUNNING = auto()
    FENCING = auto()  # waits for the last attempts of a lost generation to end
    ENDING = auto()  # waits for killed attempts to end; the caller has its answer
    OVER = auto()


class Gang(BroadcastSeats):
    def __init__(
        self, spec: BroadcastSpec, pool: PoolSpec, *, minimum: int, wanted: int, attempts: Iterator[int]
    ) -> None:
        super().__init__(spec, minimum=minimum, wanted=wanted, attempts=attempts)
        self.phase = Phase.WAITING
        self._wait = ReplacementWait(pool.replace_timeout_s)
        self._elastic = pool.scale is not None or pool.min < pool.desired  # may go on with fewer nodes
        self._task = Task(TaskId(int(spec.job)), spec.job, spec.function, spec.content, stall=spec.stall)
        self._on_loss = OnLoss.FAIL if spec.at_most_once else spec.on_loss
        self._collective = spec.collective  # ranks wait for each other
        self._endings: dict[int, Ending] = {}
        self._begun = 0  # generations of all ranks
        self._left: set[int] = set()  # ranks of which the caller wants no more
        self._losses = Losses(steady_s=spec.steady_s)
        self._killed = False  # whether the rest of this generation was killed, after its grace
        self._expires_at: float | None = None
        self._kill_at: float | None = None

    # --- events ---------------------------------------------------------------------------------------------------

    def start(self, now: float, *, ready: int) -> None:
        if self.spec.queue_timeout_s is not None:
            self._expires_at = now + self.spec.queue_timeout_s
        self._claim()
        self.ready(ready, now)

    def ready(self, count: int, now: float, *, queued: bool = False) -> None:
        busy = self.phase is Phase.WAITING and count >= self._needed  # no further node is waited for
        if queued and not (busy or self._may_shrink(count)):
            self._wait.lasts_on(now)
        if self.phase is Phase.WAITING and count < self._needed:
            self._wait.begin(now)
        elif self.phase is Phase.WAITING and not (self.generation or self.seats):
            self._wait.stop()

    def seated(self, granted: Iterable[NodeId], ranked: Sequence[tuple[NodeId, NodeFacts]], now: float) -> None:
        """Handle a granted claim. ``ranked``: every ready node by rank; a granted node not in it has just gone."""
        self._facts = dict(ranked)
        self.seats.update(granted)
        if self.phase is Phase.WAITING:
            self._choose(now)
        elif self.phase is Phase.FENCING or (self.phase is Phase.RUNNING and self._on_loss is OnLoss.RESTART):
            self._reserve()
        else:
            self._fill(granted, now)

    def ports(self, request: NeedPorts, ports: Sequence[tuple[int, ...]], now: float) -> bool:
        """Take the ports of ``request``, node by node; return False if they are no longer needed and stay free."""
        if request not in self._port_requests:
            return False
        self._port_requests.remove(request)
        if request.gap is None:
            self._begin(ports, now)
        else:
            self._run_again(request.gap, request.of[0][0], now, ports=ports[0])
        return True

    def finished(self, node: NodeId, attempt: AttemptId, verdict: Verdict, outcome: object, now: float) -> bool:
        """Handle the end of an attempt; return False if ``node`` runs no such attempt of this broadcast."""
        rank = self._attempts.ended(attempt, node)
        if rank is None:
            return False
        if self.phase is not Phase.RUNNING:
            self._ended_on(node, now)
        elif verdict is Verdict.TERMINATED and self._leaving.get(node) and self._on_loss is not OnLoss.FAIL:
            self._lost_ranks(node, (rank,), "its processes ended after the machine's notice", now)
        else:
            self._end_rank(rank, Settled(verdict, outcome, node, rank, *self._attempts.latest[rank], now))
            if verdict is not Verdict.RETURNED and rank not in self._left:
                if verdict not in {Verdict.KILLED, Verdict.UNSENT} and self._may_restart():
                    self._losses.failed_by = f"rank {rank} {verdict.name.lower().replace('_', ' ')}"
                    self._fence(node, now)
                    return True
                self.effects.append(RankFailed(self._endings[rank]))
                self._failed(now)
            elif node in self._gaps.half_lost:
                self._leave_gap(node, (), now)
            self._ended_on(node, now)
        return True

    def joined(self, now: float) -> None:
        """Handle that the ranks wait for each other from now on."""
        self._collective = True
        if self.phase is Phase.RUNNING and self._has_failed():
            self._failed(now)

    def _may_restart(self) -> bool:
        return self._on_loss is OnLoss.RESTART and self._losses.failures < self.spec.max_restarts

    def lost(self, node: NodeId, cause: str, now: float, *, since: float | None = None) -> None:
        """Handle the loss of ``node``. ``since``: when its connection was lost."""
        ranks = self._attempts.lost(node)
        held = node in self.seats
        self.seats.discard(node)
        self._leaving.pop(node, None)
        if self.phase is Phase.RUNNING:
            self._regap(node, now)
            if ranks:
                self._lost_ranks(node, ranks, cause, now, since=since)
        elif self.phase in {Phase.WAITING, Phase.PORT}:
            self._lacks(node, now, held=held)
        else:
            if self.phase is Phase.FENCING:
                self._lacks(node, now, held=held)
                if ranks:
                    self._losses.add(node, cause, now if since is None else since)
            if ranks:
                self._ended_on(node, now)

    def stalled(self, why: str, now: float) -> bool:
        """Handle that no rank gives a sign of life; return whether all run again. Else the broadcast ends with that."""
        if self.phase is not Phase.RUNNING or self.spec.at_most_once:
            return False
        if self._losses.stalls >= self.spec.restarts or self._has_failed():  # a silent rank may never end by itself
            self._end_with(Reason.STALLED, why)
            return False
        self._losses.stall(why)
        self._fence(self._world.head, now)
        return True

    def leaving(self, node: NodeId, now: float, *, noticed: bool) -> None:
        """Handle that ``node`` takes no new work: attempts there may finish; the next generation does not use it."""
        self._leaving[node] = noticed
        held = node in self.seats
        if self.phase in {Phase.WAITING, Phase.PORT}:
            self._release(node)
            self._lacks(node, now, held=held)
        elif self._regap(node, now):
            self._release(node)
        elif self.phase is Phase.FENCING:
            self._lacks(node, now, held=held)
        elif self.phase is Phase.RUNNING and self._on_loss is OnLoss.RESTART:
            self._reserve()

    def staying(self, node: NodeId) -> None:
        self._leaving.pop(node, None)
        if self._on_loss is OnLoss.RESTART and self.phase is Phase.RUNNING:
            self.effects.append(WithdrawClaim())
            self._release(*sorted(self.seats.difference(self._world.nodes)))
            self._reserve()

    def resized(self, *, minimum: int, wanted: int) -> None:
        self.minimum, self.wanted = minimum, wanted
        if self.phase is Phase.WAITING:
            self._want()

    def cancel(self, reason: Reason = Reason.CANCELLED, why: str = "", limit_s: float | None = None) -> None:
        self._end_with(reason, why, limit_s)

    def leave_rank(self, rank: int) -> None:
        """Handle that the caller wants no more of a rank of a broadcast that it watches."""
        if self.phase is Phase.RUNNING and rank not in self._endings:
            self._left.add(rank)
            running = self._attempts.running.items()
            self.effects += [KillRank(node, attempt) for attempt, (of, node) in running if of == rank]

    def close(self) -> None:
        """End at once because the pool ends; wait for nothing."""
        self._end_with(Reason.CLOSED)
        if self.phase is not Phase.OVER:
            self._over()

    def unreplaceable(self, now: float, *, ready: int) -> None:
        """Handle that the provider has no machine: go on without. A wait for busy nodes keeps its time."""
        if self.phase is Phase.WAITING and ready >= self._needed:
            return
        self._wait.stop()
        self._without_replacement(now, ready=ready)

    def wake_at(self) -> float | None:
        return min((at for at in (self._expires_at, self._wait.ends_at, self._kill_at) if at is not None), default=None)

    def tick(self, now: float, *, ready: int) -> None:
        if self._expires_at is not None and now >= self._expires_at:
            self._end_with(Reason.QUEUE_TIMEOUT)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at, self._killed = None, True
            self.effects += self._attempts.kills()
        if self._wait.ends_at is not None and now >= self._wait.ends_at:
            self._wait.stop()
            self._without_replacement(now, ready=ready)

    # --- a generation begins --------------------------------------------------------------------------------------

    def _want(self, *, fewer: bool = False) -> None:
        self.phase = Phase.WAITING
        self._port_requests = []
        self._needed = max(1, self.minimum) if fewer else self.size()
        self._claim()

    def _lacks(self, gone: NodeId, now: float, *, held: bool) -> None:
        """Handle that a node on which the next generation may have run is gone. ``held``: it had a seat there."""
        own = gone in self._world.nodes
        if self.phase is Phase.FENCING:
            if held or own:
                self._wait.stop()  # also where it was over early
                self._wait.begin_anew(now)
                self._reserve()
            return
        if held:
            self._want()
        if own and self.phase is Phase.WAITING:
            self._wait.begin_anew(now)
        elif held:  # a replacement is lost: were the wait to begin anew each time, it might never end
            self._hold_for_a_time(now)

    def _hold_for_a_time(self, now: float) -> None:
        """Bound the wait of a broadcast that has begun, or that holds seats which others may wait for (GANG-16)."""
        if self.generation or self.seats:
            self._wait.begin(now)

    def _choose(self, now: float) -> None:
        if self._choose_nodes():
            self.phase = Phase.PORT
            self._wait.stop()
            self._ask(self._ports_of_chosen())
            return
        self._claim()
        self._hold_for_a_time(now)

    def _ask(self, of: tuple[tuple[NodeId, int], ...], gap: Gap | None = None) -> None:
        """Ask for free ports, or give up if a node never has so many (GANG-11)."""
        if why := self._lacking_ports(of):
            self._end_with(Reason.NO_PORTS, why)
            return
        request = NeedPorts(of, gap)
        self._port_requests.append(request)
        self.effects.append(request)

    def _begin(self, ports: Sequence[tuple[int, ...]], now: float) -> None:
        self.phase = Phase.RUNNING
        self._make_world(ports)
        self._begun += 1
        self._losses.generation_began(now)
        self._stop_waiting()
        self._killed, self._endings = False, {}
        self._run(tuple(range(self._world.size)))

    def _run(self, ranks: tuple[int, ...]) -> None:
        world = self._world
        self.effects.append(GenerationStarted(world, ranks))
        self.effects += [self._attempts.begin(rank, world, self._task) for rank in ranks]

    # --- an end ---------------------------------------------------------------------------------------------------

    def _end_rank(self, rank: int, ending: Ending) -> None:
        self._endings[rank] = ending
        if self.spec.watch is not None:
            self.effects.append(RankEnded(rank, ending))

    def _failed(self, now: float) -> None:
        """Handle that a rank, and so the broadcast, has failed: wait only for the outcomes of the other ranks."""
        if self._gaps.waiting or self._gaps.half_lost or self._port_requests:
            self._give_up_gaps(Reason.LOST)
        if self._collective and self._kill_at is None and not self._killed:
            self._kill_at = now + GRACE_S

    def _ended_on(self, node: NodeId, now: float) -> None:
        keeps_seat = self.phase is Phase.FENCING or (self.phase is Phase.RUNNING and self._on_loss is OnLoss.RESTART)
        if not keeps_seat and not self._attempts.on[node]:
            self._release(node)
        if self._attempts.running:
            return
        if self.phase is Phase.FENCING:
            self._fenced(now)
        elif self.phase is Phase.ENDING:
            self._over()
        elif self.phase is Phase.RUNNING and not self._gaps.waiting and not self._port_requests:
            endings = tuple([self._endings[rank] for rank in range(self._world.size)])
            self.effects.append(EndAll(endings, self.generation))
            self._over()

    def _end_with(self, reason: Reason, why: str = "", limit_s: float | None = None) -> None:
        """Give up the broadcast. Ranks that have ended keep their endings, unless their generation was lost."""
        if self.phase in {Phase.ENDING, Phase.OVER}:
            return
        keep = self._endings if self.phase is Phase.RUNNING else {}
        ranks = range(max(1, self._world.size))
        gave_up = GaveUp(reason, self._losses.all, why=why, limit_s=limit_s)
        endings = tuple(keep.get(rank) or replace(gave_up, rank=rank) for rank in ranks)
        self.effects += [WithdrawClaim(), EndAll(endings, self.generation)]
        self._drop_gaps()
        self._stop_waiting()
        if not self._attempts.running:
            self._over()
            return
        if self.phase is not Phase.FENCING:
            self.effects += self._attempts.kills()
        self.phase = Phase.ENDING
        self._release(*sorted(self.seats.difference(node for _, node in self._attempts.running.values())))

    def _stop_waiting(self) -> None:
        self._expires_at = self._kill_at = None
        self._wait.stop()

    def _over(self) -> None:
        self.phase = Phase.OVER
        self.effects.append(WithdrawClaim())
        self._attempts.clear()
        self._stop_waiting()
        self._release(*sorted(self.seats))

    # --- losses ---------------------------------------------------------------------------------------------------

    def _lost_ranks(
        self, node: NodeId, ranks: tuple[int, ...], cause: str, now: float, *, since: float | None = None
    ) -> None:
        self._losses.add(node, cause, now if since is None else since)
        if self._on_loss is OnLoss.RESTART and (self._collective or not self._has_failed()):
            self._fence(node, now)
            return
        self.effects.append(ev.GenerationLost(self.spec.job, self.generation, self._losses.nodes, self._losses.cause))
        losing = any(self._attempts.latest[rank].number - self._begun >= self.spec.restarts for rank in ranks)
        if self._on_loss is OnLoss.RESEND and not losing and not self._has_failed():
            self._leave_gap(node, ranks, now)
        else:
            reason = Reason.LOSING if losing and self._on_loss is OnLoss.RESEND else Reason.LOST
            for rank in ranks:
                self._end_rank(rank, GaveUp(reason, self._losses.all, rank))
            if not self._left.issuperset(ranks):
                self._failed(now)
        self._ended_on(node, now)

    def _leave_gap(self, node: NodeId, ranks: tuple[int, ...], now: float) -> None:
        """Have these ranks run again elsewhere, once no other rank of ``node`` runs there."""
        if not self._gaps.add(node, ranks, complete=not self._attempts.on[node]):
            return
        self._wait.begin_anew(now)
        self._claim_beside(len(self._gaps.waiting))

    def _has_failed(self) -> bool:
        return any(isinstance(e, GaveUp) or e.verdict is not Verdict.RETURNED for e in self._endings.values())

    def _fence(self, node: NodeId, now: float) -> None:
        """End this generation, with the ranks that wait to run again in it: the next one runs all ranks."""
        self.phase = Phase.FENCING
        self._drop_gaps()
        self.effects.append(WithdrawClaim())
        self._kill_at = None
        self._wait.begin_anew(now)
        self.effects += self._attempts.kills()
        self._reserve()
        self._ended_on(node, now)

    def _fenced(self, now: float) -> None:
        self.effects.append(ev.GenerationLost(self.spec.job, self.generation, self._losses.nodes, self._losses.cause))
        self._losses.count()
        self._endings = {}
        if self._losses.in_row > self.spec.restarts:
            self._end_with(Reason.LOSING)
            return
        self._release(*sorted(self.seats.intersection(self._leaving)))
        self._want()
        self._wait.fenced(now)

    def _may_shrink(self, ready: int) -> bool:
        return self._elastic and ready >= self.minimum

    def _without_replacement(self, now: float, *, ready: int) -> None:
        """Go on without a replacement, or give up: the time to wait for a replacement is over."""
        may_shrink = self._may_shrink(ready)
        if self.phase is Phase.FENCING:
            self._wait.over_early = True
        elif self.phase is Phase.RUNNING and self._gaps.waiting:
            if may_shrink:
                self._wait.over_early = True
                self._fence(self._losses.all[-1][0], now)
            else:
                self._give_up_gaps(Reason.NO_REPLACEMENT)
                self._ended_on(self._losses.all[-1][0], now)
        elif self.phase is Phase.WAITING and ready >= self._needed:
            if self.generation or self.seats:  # other broadcasts hold the nodes and may want our seats: free these
                self._release(*sorted(self.seats))
                self._want(fewer=self._needed < self.size())
        elif self.phase is Phase.WAITING:
            if may_shrink:
                self._want(fewer=True)
                self._wait.begin(now)
            else:
                self._end_with(Reason.NO_REPLACEMENT)

    # --- ranks that run again alone -------------------------------------------------------------------------------

    def _fill(self, granted: Iterable[NodeId], now: float) -> None:
        """Give each granted node the ranks of a lost one, after getting ports for them where they need some."""
        for node in granted:
            if not self._gaps.waiting or node not in self._facts:
                self._release(node)
                continue
            gap = self._gaps.waiting.pop(0)
            if ports := self._ports_in_place_of(gap.lost):
                self._ask(((node, ports),), gap)
            else:
                self._run_again(gap, node, now)
        if self._gaps.waiting:
            self._claim_beside(len(self._gaps.waiting))
        elif not self._port_requests:
            self._wait.stop()

    def _run_again(self, gap: Gap, node: NodeId, now: float, *, ports: tuple[int, ...] = ()) -> None:
        self._replace_in_world(gap, node, ports)
        self._losses.ranks_began(now)
        if not self._gaps.waiting:
            self._wait.stop()
        self._run(gap.ranks)

    def _regap(self, node: NodeId, now: float) -> bool:
        """Claim another node if ``node``, now gone, was a replacement that waited for ports; return whether it was."""
        again = [request for request in self._port_requests if request.gap is not None and request.of[0][0] == node]
        self._port_requests = [request for request in self._port_requests if request not in again]
        self._gaps.waiting += [request.gap for request in again if request.gap is not None]
        if again:
            self._wait.begin(now)
            self._claim_beside(len(self._gaps.waiting))
        return bool(again)

    def _give_up_gaps(self, reason: Reason) -> None:
        self._wait.stop()
        self.effects.append(WithdrawClaim())
        self._release(*[request.of[0][0] for request in self._port_requests])  # the nodes whose ranks waited for ports
        self._endings.update({rank: GaveUp(reason, self._losses.all, rank) for rank in self._drop_gaps()})

    def _drop_gaps(self) -> list[int]:
        """Cancel every rank's run alone; return the ranks that were to run again."""
        self._gaps.waiting += [request.gap for request in self._port_requests if request.gap is not None]
        self._port_requests = []
        return self._gaps.drop()
