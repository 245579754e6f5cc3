"""The generations of one broadcast, and how one follows another: a decider without I/O; each event carries its time.

A generation runs the function once per rank under one immutable `World`, which is the list of nodes, ranks and ports
that the ranks see. When a rank's node is lost, `OnLoss` determines how the broadcast continues. RESTART ends the old
generation first, which is called fencing: every surviving attempt is killed, and the next generation begins only when
each of these attempts is reported as ended or its node is lost too. So two generations never run at the same time, and
one new generation follows, even if further nodes are lost during the fencing. RESEND runs only the ranks of the lost
node again, on another node, while the other ranks continue; these ranks are a `Rerun`. FAIL ends the broadcast.

A broadcast keeps its seats, which are slots kept for its ranks, from one generation to the next; `placement` grants the
missing seats. The missing seats are claimed as soon as a node gets a notice or is lost: a task that took such a slot
would delay the next generation. The wait for replacements of lost nodes is limited by `ReplacementWait`.

GANG-1: a broadcast ends exactly once, with one ending per rank.
GANG-2: (RESTART) no generation begins while an attempt of an older generation may still run.
GANG-3: a generation's ranks are 0..n-1 on distinct nodes, and all see the same world.
GANG-4: (RESTART) all results that a broadcast ends with are results of its last generation.
GANG-5: at most ``restarts`` generations in a row follow lost generations; (RESEND) no rank runs again alone more than
    ``restarts`` times. At most ``max_restarts`` generations follow a generation in which a rank failed by itself.
GANG-6: a broadcast that is over holds no seat and has no running attempt.
GANG-7: a generation's ports were free on the nodes for which they are named, and serve no other generation.
GANG-8: an at-most-once broadcast never runs a rank twice.
GANG-9: a broadcast with too few nodes, or with a rank that needs another node to run again, waits at most
    ``replace_timeout_s`` for one more node. The wait lasts longer while a machine waits in a provider's queue, unless
    the broadcast may continue with the nodes that are ready. Each node that the next generation lacks has the whole
    wait, also if the fencing takes longer than that. The wait ends at once if the provider has no machine.
GANG-10: only the node to which an attempt was given can end it by a report.
GANG-11: no node is asked for more ports than it can offer at once: such a wait would never end.
GANG-12: the end of a watched rank (its caller gets each rank's result) is reported once, as soon as it is final; the
    broadcast ends with the same ending.
GANG-13: a rank that its caller has abandoned is killed, and this ends no other rank.
GANG-14: at most ``restarts`` generations follow stalled generations; at the next stall the broadcast ends as STALLED.
GANG-15: ranks run again alone (RESEND) only in a generation that is running. Each rank of that generation runs, has
    ended, or waits for a node, for ports, or for the other ranks of its lost node to end. Once the generation is fenced
    or ends, no rank waits any more.
GANG-16: a broadcast (also before its first generation) may hold some seats, but too few, while enough nodes are ready
    and the others are busy. It holds those seats for at most ``replace_timeout_s``; then it frees them and queues anew.
GANG-17: once ranks wait for each other (`collective`, `joined`), the failure of one rank ends the others within
    `GRACE_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from . import events as ev
from .fencing import (
    Effect,
    EndAll,
    GenerationStarted,
    KillRank,
    Losses,
    NeedPorts,
    RankAttempts,
    RankEnded,
    RankFailed,
    Rerun,
    Reruns,
)
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
    World,
)
from .placement import Claim, ReleaseSeat, WithdrawClaim

# seconds for which other ranks of a collective may fail by themselves after a rank failed; their errors may tell more
GRACE_S = 2.0


class Phase(Enum):
    """The phases of a broadcast.

    ========  ==================================================  =====================================================
    Phase     The broadcast waits for                             Next phase
    ========  ==================================================  =====================================================
    WAITING   a seat on each node that it needs                   PORT
    PORT      free ports on these nodes                           RUNNING; WAITING if one of the nodes is gone
    RUNNING   the ends of its ranks                               OVER; FENCING if all ranks are to run again
    FENCING   the last attempts of the lost generation            WAITING
    ENDING    killed attempts, after the caller has the result    OVER
    OVER      nothing: it holds no seat, and no attempt runs
    ========  ==================================================  =====================================================

    A broadcast that is given up goes from any phase to ENDING, or to OVER if no attempt runs.
    """

    WAITING = auto()
    PORT = auto()
    RUNNING = auto()
    FENCING = auto()
    ENDING = auto()
    OVER = auto()


class ReplacementWait:
    """The limited time that a broadcast waits for replacements of lost nodes: the pool's ``replace_timeout``."""

    def __init__(self, timeout_s: float) -> None:
        # time at which the wait ends; None: the broadcast does not wait, or waits without a limit
        self.ends_at: float | None = None
        self.over_early = False  # whether the wait ended before all ranks of the old generation had ended (the fence)
        self._timeout_s = timeout_s

    def start(self, now: float) -> None:
        """Start the wait because a node is missing. A wait that has already started keeps its end."""
        self.ends_at = self.ends_at or now + self._timeout_s

    def restart(self, now: float) -> None:
        """Restart the wait because another node is missing: there is the whole time for each missing node."""
        self.ends_at = now + self._timeout_s

    def extend(self, now: float) -> None:
        """Handle that a machine waits in its provider's queue: if the broadcast waits, its time starts again now."""
        if self.ends_at is not None:
            self.restart(now)

    def generation_fenced(self, now: float) -> None:
        """Handle that all ranks of the old generation have ended. A wait that ended earlier has its effect now."""
        if self.over_early:
            self.ends_at = now

    def stop(self) -> None:
        """Stop the wait: its time limit has no consequences any more."""
        self.ends_at = None
        self.over_early = False


class Gang:
    """The decider of one broadcast.

    The caller reports events by the public methods, and carries out ``effects`` at once, in their order. The private
    methods stand in the order of a generation's life: wait for seats, prepare, run, lose ranks, run them again, end.
    """

    def __init__(
        self, spec: BroadcastSpec, pool: PoolSpec, *, minimum: int, wanted: int, attempts: Iterator[int]
    ) -> None:
        self.spec = spec
        self.phase = Phase.WAITING
        self.effects: list[Effect] = []
        self.minimum = minimum  # number of nodes without which the pool is not ready
        self.wanted = wanted  # number of nodes that the pool should have in the end
        self._on_loss = OnLoss.FAIL if spec.at_most_once else spec.on_loss
        # True if the broadcast may continue with fewer nodes than before
        self._may_shrink = pool.scale is not None or pool.min < pool.desired
        self._collective = spec.collective  # whether the ranks wait for each other, as in a collective operation
        self._task = Task(TaskId(int(spec.job)), spec.job, spec.function, spec.content, stall=spec.stall)
        # the nodes on which the broadcast has a seat (a slot that is kept for its ranks)
        self.seats: set[NodeId] = set()
        # facts of the nodes that were ready when seats were last granted, in the order of ranks
        self._facts: dict[NodeId, NodeFacts] = {}
        # nodes that take no new work; True: because of a preemption notice, False: because the pool drains the node
        self._leaving: dict[NodeId, bool] = {}
        self._needed = max(1, minimum)  # number of nodes that the next generation needs
        self._next_nodes: tuple[NodeId, ...] = ()  # nodes of the next generation, while it waits for free ports
        self._ranks_per_node = 1
        self._port_requests: list[NeedPorts] = []  # requests for ports that are not fulfilled yet
        # number of the present generation; it also grows when only the ranks of a lost node run again
        self.generation = 0
        self._full_generations = 0  # number of generations that began with all ranks
        self._world = World(0, (), 1, "", 0)
        self._attempts = RankAttempts(attempts)
        self._endings: dict[int, Ending] = {}
        self._abandoned: set[int] = set()  # ranks whose results the caller no longer wants
        self._losses = Losses(steady_s=spec.steady_s)
        self._reruns = Reruns()
        # True if `GRACE_S` has passed since a failure and the remaining ranks of this generation were killed
        self._killed = False
        # timers
        self._replacement_wait = ReplacementWait(pool.replace_timeout_s)
        self._expires_at: float | None = None  # when the broadcast ends because it has not begun yet
        self._kill_at: float | None = None  # when the other ranks are killed after the failure of a rank

    # --- what the caller reads ----------------------------------------------------------------------------------------

    def size(self) -> int:
        """Return how many nodes the next generation should have: as many as the last generation, but no more than the
        pool should have.
        """
        return max(1, min(self.wanted, len(self._world.nodes)) if self.generation else self.minimum)

    @property
    def running(self) -> Mapping[AttemptId, tuple[int, NodeId]]:
        """The attempts of this broadcast that may be running, each with its rank and node."""
        return self._attempts.running

    @property
    def has_reruns(self) -> bool:
        """Return whether ranks of lost nodes still wait to run again, while the other ranks continue."""
        return bool(self._port_requests or self._reruns.waiting)

    @property
    def port_requests(self) -> Sequence[NeedPorts]:
        """The requests for ports that are not fulfilled yet."""
        return tuple(self._port_requests)

    def listens_on(self, node: NodeId) -> bool:
        """Return whether a rank of the current generation listens on a port of ``node``."""
        world = self._world
        return node in world.nodes and (bool(world.ports) or node == world.head)

    def lacking_nodes(self, ready: int) -> str:
        """Return, as text for people, what the next generation still needs: ready nodes, or free slots. ``ready``:
        number of ready nodes.
        """
        needed = self._needed
        if ready < needed:
            return f"{needed - ready} of {needed} nodes to be ready"
        return f"a free slot on {max(1, needed - len(self.seats))} of {needed} nodes"

    def wake_at(self) -> float | None:
        return min(
            (at for at in (self._expires_at, self._replacement_wait.ends_at, self._kill_at) if at is not None),
            default=None,
        )

    # --- events that the caller reports -------------------------------------------------------------------------------

    def start(self, now: float, *, ready: int) -> None:
        if self.spec.queue_timeout_s is not None:
            self._expires_at = now + self.spec.queue_timeout_s
        self._claim_seats()
        self.ready(ready, now)

    def ready(self, count: int, now: float, *, queued: bool = False) -> None:
        """Handle that ``count`` nodes are ready. ``queued``: whether a machine waits in its provider's queue."""
        waits = self.phase is Phase.WAITING
        if queued and not ((waits and count >= self._needed) or self._may_continue_with(count)):
            self._replacement_wait.extend(now)
        if waits and count < self._needed:
            self._replacement_wait.start(now)
        elif waits and not (self.generation or self.seats):  # enough nodes are ready, but other work holds their slots
            self._replacement_wait.stop()

    def seated(self, granted: Iterable[NodeId], ranked: Sequence[tuple[NodeId, NodeFacts]], now: float) -> None:
        """Handle that the broadcast's claim of seats was granted.

        Args:
            ranked: every ready node, in the order of ranks; a granted node that is missing here has just gone.
        """
        self._facts = dict(ranked)
        self.seats.update(granted)
        if self.phase is Phase.WAITING:
            self._prepare_generation(now)
        elif self.phase is Phase.FENCING or (self.phase is Phase.RUNNING and self._on_loss is OnLoss.RESTART):
            self._claim_seats_ahead()
        else:
            self._rerun_on(granted, now)

    def ports(self, request: NeedPorts, ports: Sequence[tuple[int, ...]], now: float) -> bool:
        """Handle that ``ports`` are free for ``request``, one tuple for each of its nodes.

        Return False if ``request`` is obsolete, so that the ports stay free.
        """
        if request not in self._port_requests:
            return False
        self._port_requests.remove(request)
        if request.rerun is None:
            self._begin_generation(ports, now)
        else:
            self._rerun(request.rerun, request.of[0][0], now, ports=ports[0])
        return True

    def finished(self, node: NodeId, attempt: AttemptId, verdict: Verdict, outcome: object, now: float) -> bool:
        """Handle the end of an attempt; return False if this broadcast has no such attempt on ``node``."""
        rank = self._attempts.ended(attempt, node)
        if rank is None:
            return False
        if self.phase is not Phase.RUNNING:
            self._attempt_ended_on(node, now)
        elif verdict is Verdict.TERMINATED and self._leaving.get(node) and self._on_loss is not OnLoss.FAIL:
            self._ranks_lost(node, (rank,), "its processes ended after the machine's notice", now)
        else:
            self._end_rank(rank, Settled(verdict, outcome, node, rank, *self._attempts.latest[rank], now))
            self._rank_ended(rank, node, verdict, now)
        return True

    def joined(self, now: float) -> None:
        """Handle that the ranks wait for each other from now on, as in a collective operation."""
        self._collective = True
        if self.phase is Phase.RUNNING and self._has_failed():
            self._rank_failed(now)

    def stalled(self, why: str, now: float) -> bool:
        """Handle that no rank has given a sign of life for long; return True if all ranks run again, False if the
        broadcast ends.
        """
        if self.phase is not Phase.RUNNING or self.spec.at_most_once:
            return False
        # if a rank has failed, ranks that wait for it may never end by themselves
        if self._losses.stalls >= self.spec.restarts or self._has_failed():
            self._end_broadcast(Reason.STALLED, why)
            return False
        self._losses.stall(why)
        self._fence_generation(self._world.head, now)
        return True

    def lost(self, node: NodeId, cause: str, now: float, *, since: float | None = None) -> None:
        """Handle the loss of ``node``. ``since``: when the connection to the node was lost."""
        ranks = self._attempts.lost(node)
        had_seat = node in self.seats
        self.seats.discard(node)
        self._leaving.pop(node, None)
        match self.phase:
            case Phase.RUNNING:
                self._replan_reruns_on(node, now)
                if ranks:
                    self._ranks_lost(node, ranks, cause, now, since=since)
            case Phase.WAITING | Phase.PORT:
                self._candidate_gone(node, now, had_seat=had_seat)
            case Phase.FENCING:
                self._candidate_gone(node, now, had_seat=had_seat)
                if ranks:
                    self._losses.add(node, cause, now if since is None else since)
                    self._attempt_ended_on(node, now)
            case Phase.ENDING | Phase.OVER:
                if ranks:
                    self._attempt_ended_on(node, now)

    def leaving(self, node: NodeId, now: float, *, noticed: bool) -> None:
        """Handle that ``node`` takes no new work. Attempts on it may finish; the next generation does not use it."""
        self._leaving[node] = noticed
        had_seat = node in self.seats
        if self.phase in {Phase.WAITING, Phase.PORT}:
            self._release_seats(node)
            self._candidate_gone(node, now, had_seat=had_seat)
        elif self._replan_reruns_on(node, now):
            self._release_seats(node)
        elif self.phase is Phase.FENCING:
            self._candidate_gone(node, now, had_seat=had_seat)
        elif self.phase is Phase.RUNNING and self._on_loss is OnLoss.RESTART:
            self._claim_seats_ahead()

    def staying(self, node: NodeId) -> None:
        self._leaving.pop(node, None)
        if self._on_loss is OnLoss.RESTART and self.phase is Phase.RUNNING:
            self.effects.append(WithdrawClaim())
            self._release_seats(*sorted(self.seats.difference(self._world.nodes)))
            self._claim_seats_ahead()

    def resized(self, *, minimum: int, wanted: int) -> None:
        self.minimum, self.wanted = minimum, wanted
        if self.phase is Phase.WAITING:
            self._queue_for_seats()

    def unreplaceable(self, now: float, *, ready: int) -> None:
        """Handle that the provider has no machine: continue without a replacement. A wait for nodes that are busy keeps
        its time limit.
        """
        if self.phase is Phase.WAITING and ready >= self._needed:
            return
        self._replacement_wait.stop()
        self._replacement_wait_over(now, ready=ready)

    def tick(self, now: float, *, ready: int) -> None:
        if self._expires_at is not None and now >= self._expires_at:
            self._end_broadcast(Reason.QUEUE_TIMEOUT)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at, self._killed = None, True
            self.effects += self._attempts.kills()
        if self._replacement_wait.ends_at is not None and now >= self._replacement_wait.ends_at:
            self._replacement_wait.stop()
            self._replacement_wait_over(now, ready=ready)

    # --- orders of the caller -----------------------------------------------------------------------------------------

    def cancel(self, reason: Reason = Reason.CANCELLED, why: str = "", limit_s: float | None = None) -> None:
        self._end_broadcast(reason, why, limit_s)

    def leave_rank(self, rank: int) -> None:
        """Kill one rank of a broadcast, as the caller no longer wants this rank's result. The other ranks continue."""
        if self.phase is Phase.RUNNING and rank not in self._endings:
            self._abandoned.add(rank)
            running = self._attempts.running.items()
            self.effects += [KillRank(node, attempt) for attempt, (of, node) in running if of == rank]

    def close(self) -> None:
        """End the broadcast at once because the pool ends; do not wait for the ranks to end."""
        self._end_broadcast(Reason.CLOSED)
        if self.phase is not Phase.OVER:
            self._finish()

    # --- seats --------------------------------------------------------------------------------------------------------

    def _queue_for_seats(self, *, fewer: bool = False) -> None:
        """Claim seats for the next generation: nodes that are reserved for one rank each until the generation begins.

        ``fewer``: claim only as many as the pool needs to be ready.
        """
        self.phase = Phase.WAITING
        self._port_requests = []
        self._needed = max(1, self.minimum) if fewer else self.size()
        self._claim_seats()

    def _claim_seats(self) -> None:
        """Claim the seats that the next generation needs; the first generation claims a seat on every node of the
        pool.
        """
        least, again = max(0, self._needed - len(self.seats)), self.generation > 0
        claim = Claim(self.spec.job, least=least, every=not again, again=again, besides=frozenset(self.seats))
        self.effects.append(claim)

    def _claim_seats_ahead(self) -> None:
        """Claim in advance the seats that the next generation will lack, while the current generation still runs or is
        being ended.
        """
        if (missing := self.size() - len(self.seats.difference(self._leaving))) > 0:
            claim = Claim(self.spec.job, least=1, most=missing, again=True, besides=frozenset(self.seats))
            self.effects.append(claim)

    def _claim_replacements(self, count: int) -> None:
        """Claim ``count`` replacements for lost nodes; the current generation continues on its other nodes."""
        besides = self.seats.union(self._world.nodes)
        self.effects.append(Claim(self.spec.job, least=1, most=count, again=True, besides=frozenset(besides)))

    def _release_seats(self, *nodes: NodeId) -> None:
        for node in nodes:
            if node in self.seats:
                self.seats.discard(node)
                self.effects.append(ReleaseSeat(node))

    def _candidate_gone(self, gone: NodeId, now: float, *, had_seat: bool) -> None:
        """Handle that a node that the next generation might have used is lost or leaves.

        ``had_seat``: whether the broadcast had a seat on it.
        """
        was_in_world = gone in self._world.nodes
        if self.phase is Phase.FENCING:
            if had_seat or was_in_world:
                # `stop` also clears ``over_early``, which means that the wait ended before all old ranks had ended
                self._replacement_wait.stop()
                self._replacement_wait.restart(now)
                self._claim_seats_ahead()
            return
        if had_seat:
            self._queue_for_seats()
        if was_in_world and self.phase is Phase.WAITING:
            self._replacement_wait.restart(now)
        elif had_seat:  # a lost replacement must not restart the wait, or repeated losses would make the wait endless
            self._limit_wait(now)

    def _limit_wait(self, now: float) -> None:
        """Limit the wait of a broadcast that has already begun, or that holds seats that other broadcasts may need
        (GANG-16).
        """
        if self.generation or self.seats:
            self._replacement_wait.start(now)

    def _may_continue_with(self, ready: int) -> bool:
        """Return whether the broadcast may continue with ``ready`` nodes, which may be fewer than before."""
        return self._may_shrink and ready >= self.minimum

    # --- begin of a generation: its nodes, its ports, its world -------------------------------------------------------

    def _prepare_generation(self, now: float) -> None:
        """Request the ports of the next generation if it has its seats; otherwise claim the seats that it lacks."""
        if self._choose_nodes():
            self.phase = Phase.PORT
            self._replacement_wait.stop()
            self._request_ports(self._ports_of_generation())
            return
        self._claim_seats()
        self._limit_wait(now)

    def _choose_nodes(self) -> bool:
        """Choose each ready node on which the broadcast has a seat; return whether there are enough such nodes."""
        self._release_seats(*sorted(self.seats - self._facts.keys()))
        self._next_nodes = tuple([node for node in self._facts if node in self.seats])  # in the order of ranks
        if len(self._next_nodes) < self._needed:
            return False
        self._ranks_per_node = max(1, min(self.spec.ranks_per_node(self._facts[node]) for node in self._next_nodes))
        return True

    def _ports_of_generation(self) -> tuple[tuple[NodeId, int], ...]:
        """Return pairs of a node and the number of ports that the next generation needs on it: one port on the head
        (the node of rank 0), or one port for each rank.
        """
        if self.spec.every_rank_listens:
            return tuple((node, self._ranks_per_node) for node in self._next_nodes)
        return ((self._next_nodes[0], 1),)

    def _request_ports(self, of: tuple[tuple[NodeId, int], ...], rerun: Rerun | None = None) -> None:
        """Request free ports, or end the broadcast if a node can never offer the requested number (GANG-11)."""
        if why := self._why_ports_are_too_few(of):
            self._end_broadcast(Reason.NO_PORTS, why)
            return
        request = NeedPorts(of, rerun)
        self._port_requests.append(request)
        self.effects.append(request)

    def _why_ports_are_too_few(self, of: tuple[tuple[NodeId, int], ...]) -> str:
        """Return, as text for people, which node can never offer as many ports as ``of`` requests; empty: each node can
        (GANG-11).
        """
        for node, count in of:
            facts = self._facts[node]
            if count > facts.ports_at_once:
                has = f"node {node} ({facts.hostname}) keeps {facts.ports_at_once} free at a time"
                return f"{count} ranks of a node need a port each, and {has}"
        return ""

    def _begin_generation(self, ports: Sequence[tuple[int, ...]], now: float) -> None:
        """Run all ranks in a new generation. ``ports``: the free ports of each of its nodes."""
        self.phase = Phase.RUNNING
        self._make_world(ports)
        self._full_generations += 1
        self._losses.generation_began(now)
        self._stop_timers()
        self._killed, self._endings = False, {}
        self._run_ranks(tuple(range(self._world.size)))

    def _make_world(self, ports_by_node: Sequence[tuple[int, ...]]) -> None:
        """Make the world of the next generation: its nodes, ranks and ports. ``ports_by_node``: one tuple of ports for
        each node.
        """
        self.generation += 1
        ports = tuple(port for of_node in ports_by_node for port in of_node) if self.spec.every_rank_listens else ()
        address = self._facts[self._next_nodes[0]].address
        self._world = World(
            self.generation, self._next_nodes, self._ranks_per_node, address, ports_by_node[0][0], ports
        )

    def _run_ranks(self, ranks: tuple[int, ...]) -> None:
        world = self._world
        self.effects.append(GenerationStarted(world, ranks))
        self.effects += [self._attempts.begin(rank, world, self._task) for rank in ranks]

    # --- ends of ranks ------------------------------------------------------------------------------------------------

    def _end_rank(self, rank: int, ending: Ending) -> None:
        self._endings[rank] = ending
        if self.spec.watch is not None:
            self.effects.append(RankEnded(rank, ending))

    def _rank_ended(self, rank: int, node: NodeId, verdict: Verdict, now: float) -> None:
        """Continue after the end of a rank: with another generation, with the other ranks, or with the end of all."""
        if verdict is not Verdict.RETURNED and rank not in self._abandoned:
            if verdict not in {Verdict.KILLED, Verdict.UNSENT} and self._may_restart():
                self._losses.failed_by = f"rank {rank} {verdict.name.lower().replace('_', ' ')}"
                self._fence_generation(node, now)
                return
            self.effects.append(RankFailed(self._endings[rank]))
            self._rank_failed(now)
        elif node in self._reruns.half_lost:
            self._plan_rerun(node, (), now)
        self._attempt_ended_on(node, now)

    def _rank_failed(self, now: float) -> None:
        """Handle that a rank, and so the broadcast, has failed: run no rank again, but wait for the outcomes of the
        running ranks.
        """
        if self._reruns.waiting or self._reruns.half_lost or self._port_requests:
            self._give_up_reruns(Reason.LOST)
        if self._collective and self._kill_at is None and not self._killed:
            self._kill_at = now + GRACE_S

    def _has_failed(self) -> bool:
        return any(isinstance(e, GaveUp) or e.verdict is not Verdict.RETURNED for e in self._endings.values())

    def _may_restart(self) -> bool:
        """Return whether all ranks may run again after a rank has failed by itself."""
        return self._on_loss is OnLoss.RESTART and self._losses.failures < self.spec.max_restarts

    def _attempt_ended_on(self, node: NodeId, now: float) -> None:
        """Free a seat that is no longer needed; if no attempt runs any more, go to the next phase."""
        keeps_seat = self.phase is Phase.FENCING or (self.phase is Phase.RUNNING and self._on_loss is OnLoss.RESTART)
        if not keeps_seat and not self._attempts.on[node]:
            self._release_seats(node)
        if self._attempts.running:
            return
        if self.phase is Phase.FENCING:
            self._generation_fenced(now)
        elif self.phase is Phase.ENDING:
            self._finish()
        elif self.phase is Phase.RUNNING and not self._reruns.waiting and not self._port_requests:
            endings = tuple([self._endings[rank] for rank in range(self._world.size)])
            self.effects.append(EndAll(endings, self.generation))
            self._finish()

    # --- losses of ranks, and the end of a lost generation (fencing) --------------------------------------------------

    def _ranks_lost(
        self, node: NodeId, ranks: tuple[int, ...], cause: str, now: float, *, since: float | None = None
    ) -> None:
        """Handle the loss of ``ranks`` with their node: restart all (RESTART), run them again (RESEND), or fail."""
        self._losses.add(node, cause, now if since is None else since)
        if self._on_loss is OnLoss.RESTART and (self._collective or not self._has_failed()):
            self._fence_generation(node, now)
            return
        self.effects.append(ev.GenerationLost(self.spec.job, self.generation, self._losses.nodes, self._losses.cause))
        losing = any(
            self._attempts.latest[rank].number - self._full_generations >= self.spec.restarts for rank in ranks
        )
        if self._on_loss is OnLoss.RESEND and not losing and not self._has_failed():
            self._plan_rerun(node, ranks, now)
        else:
            reason = Reason.LOSING if losing and self._on_loss is OnLoss.RESEND else Reason.LOST
            for rank in ranks:
                self._end_rank(rank, GaveUp(reason, self._losses.all, rank))
            if not self._abandoned.issuperset(ranks):
                self._rank_failed(now)
        self._attempt_ended_on(node, now)

    def _fence_generation(self, node: NodeId, now: float) -> None:
        """End this generation and all plans to run ranks of lost nodes again: the next generation runs all ranks."""
        self.phase = Phase.FENCING
        self._cancel_reruns()
        self.effects.append(WithdrawClaim())
        self._kill_at = None
        self._replacement_wait.restart(now)
        self.effects += self._attempts.kills()
        self._claim_seats_ahead()
        self._attempt_ended_on(node, now)

    def _generation_fenced(self, now: float) -> None:
        """Handle that no attempt of the lost generation runs any more: the next generation may begin."""
        self.effects.append(ev.GenerationLost(self.spec.job, self.generation, self._losses.nodes, self._losses.cause))
        self._losses.count()
        self._endings = {}
        if self._losses.in_row > self.spec.restarts:
            self._end_broadcast(Reason.LOSING)
            return
        self._release_seats(*sorted(self.seats.intersection(self._leaving)))
        self._queue_for_seats()
        self._replacement_wait.generation_fenced(now)

    def _replacement_wait_over(self, now: float, *, ready: int) -> None:
        """Continue without a replacement node, or end the broadcast: no further node is waited for."""
        may_continue = self._may_continue_with(ready)
        if self.phase is Phase.FENCING:
            self._replacement_wait.over_early = True
        elif self.phase is Phase.RUNNING and self._reruns.waiting:
            last_lost = self._losses.all[-1][0]
            if may_continue:
                self._replacement_wait.over_early = True
                self._fence_generation(last_lost, now)
            else:
                self._give_up_reruns(Reason.NO_REPLACEMENT)
                self._attempt_ended_on(last_lost, now)
        elif self.phase is Phase.WAITING and ready >= self._needed:
            # the nodes are ready but busy: free the seats, as other broadcasts may need them
            if self.generation or self.seats:
                self._release_seats(*sorted(self.seats))
                self._queue_for_seats(fewer=self._needed < self.size())
        elif self.phase is Phase.WAITING:
            if may_continue:
                self._queue_for_seats(fewer=True)
                self._replacement_wait.start(now)
            else:
                self._end_broadcast(Reason.NO_REPLACEMENT)

    # --- ranks of lost nodes that run again while the other ranks continue (reruns) -----------------------------------

    def _plan_rerun(self, node: NodeId, ranks: tuple[int, ...], now: float) -> None:
        """Plan to run ``ranks`` again on another node, once no other rank of the broadcast runs on ``node``."""
        if not self._reruns.add(node, ranks, complete=not self._attempts.on[node]):
            return
        self._replacement_wait.restart(now)
        self._claim_replacements(len(self._reruns.waiting))

    def _rerun_on(self, granted: Iterable[NodeId], now: float) -> None:
        """Run the ranks of one lost node on each node of ``granted``; if these ranks need ports, request the ports
        first.
        """
        for node in granted:
            if not self._reruns.waiting or node not in self._facts:
                self._release_seats(node)
                continue
            rerun = self._reruns.waiting.pop(0)
            if ports := self._ports_of_rerun(rerun.lost):
                self._request_ports(((node, ports),), rerun)
            else:
                self._rerun(rerun, node, now)
        if self._reruns.waiting:
            self._claim_replacements(len(self._reruns.waiting))
        elif not self._port_requests:
            self._replacement_wait.stop()

    def _ports_of_rerun(self, lost: NodeId) -> int:
        """Return how many free ports the ranks of the node ``lost`` need on the node where they run again."""
        return self._world.ranks_per_node if self.spec.every_rank_listens else int(lost == self._world.head)

    def _rerun(self, rerun: Rerun, node: NodeId, now: float, *, ports: tuple[int, ...] = ()) -> None:
        self._replace_in_world(rerun, node, ports)
        self._losses.ranks_began(now)
        if not self._reruns.waiting:
            self._replacement_wait.stop()
        self._run_ranks(rerun.ranks)

    def _replace_in_world(self, rerun: Rerun, node: NodeId, ports: tuple[int, ...]) -> None:
        """Update the `World` that the ranks see: the ranks of ``rerun``, whose node was lost, run again on ``node``."""
        self.generation += 1
        self._world = self._world.with_replaced(rerun.lost, node, self._facts[node].address, ports, self.generation)

    def _replan_reruns_on(self, node: NodeId, now: float) -> bool:
        """Claim another node if ``node`` leaves and was a replacement that waited for ports; return whether it was."""
        again = [request for request in self._port_requests if request.rerun is not None and request.of[0][0] == node]
        self._port_requests = [request for request in self._port_requests if request not in again]
        self._reruns.waiting += [request.rerun for request in again if request.rerun is not None]
        if again:
            self._replacement_wait.start(now)
            self._claim_replacements(len(self._reruns.waiting))
        return bool(again)

    def _give_up_reruns(self, reason: Reason) -> None:
        self._replacement_wait.stop()
        self.effects.append(WithdrawClaim())
        # free the replacement nodes that still waited for ports
        self._release_seats(*[request.of[0][0] for request in self._port_requests])
        self._endings.update({rank: GaveUp(reason, self._losses.all, rank) for rank in self._cancel_reruns()})

    def _cancel_reruns(self) -> list[int]:
        """Cancel the plans to run ranks of lost nodes again; return these ranks."""
        self._reruns.waiting += [request.rerun for request in self._port_requests if request.rerun is not None]
        self._port_requests = []
        return self._reruns.drop()

    # --- end of the broadcast -----------------------------------------------------------------------------------------

    def _end_broadcast(self, reason: Reason, why: str = "", limit_s: float | None = None) -> None:
        """Give up the broadcast. Ranks that have ended keep their endings, unless their generation was lost."""
        if self.phase in {Phase.ENDING, Phase.OVER}:
            return
        keep = self._endings if self.phase is Phase.RUNNING else {}
        ranks = range(max(1, self._world.size))
        gave_up = GaveUp(reason, self._losses.all, why=why, limit_s=limit_s)
        endings = tuple(keep.get(rank) or replace(gave_up, rank=rank) for rank in ranks)
        self.effects += [WithdrawClaim(), EndAll(endings, self.generation)]
        self._cancel_reruns()
        self._stop_timers()
        if not self._attempts.running:
            self._finish()
            return
        if self.phase is not Phase.FENCING:
            self.effects += self._attempts.kills()
        self.phase = Phase.ENDING
        self._release_seats(*sorted(self.seats.difference(node for _, node in self._attempts.running.values())))

    def _stop_timers(self) -> None:
        self._expires_at = self._kill_at = None
        self._replacement_wait.stop()

    def _finish(self) -> None:
        self.phase = Phase.OVER
        self.effects.append(WithdrawClaim())
        self._attempts.clear()
        self._stop_timers()
        self._release_seats(*sorted(self.seats))
