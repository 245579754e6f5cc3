"""The rules about a broadcast's world (the ranks, nodes and ports of one generation): SIM-4, 5, 10 and 19.

SIM-4: the ranks of a generation are 0..N-1, on distinct nodes, and every rank gets the same world: the head is the node
    of rank 0, and the head's port was free on that node and serves no other generation.
SIM-5: no rank begins while a rank of an older generation runs. An older rank may still run on a node that was given up
    because it was unreachable, but only until the node's lease ends.
SIM-10: a generation has fewer nodes than the previous one only if the user allowed this, and after the allowed wait.
SIM-19: if a spare node stands by and there is no other fault, the next generation begins within 5 s of a loss.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgpack

from ....actors.interfaces import NodeId, OnLoss, Order, World

if TYPE_CHECKING:
    from ....engine.wire.messages import Run
    from ..machines import Daemon, Host, Sim

ALL_UP_TO = 64  # in worlds of at most so many ranks, all ranks are checked; in larger worlds, a sample
SLACK_S = 5.0
RECOVERED_S = 5.0


class WorldRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._broken = sim.broken
        self.head: Host | None = None  # the head (the machine of rank 0) of the generation that began last
        self.generations = 0
        self.recoveries_s: list[float] = []  # seconds from each loss of a node to the next generation of its broadcast
        self._worlds: dict[tuple[int, int], World] = {}  # (job, generation) -> world
        self._last: dict[int, World] = {}  # job -> world of its last generation
        self._open: dict[int, frozenset[NodeId]] = {}  # job that has not ended -> nodes of its last generation
        self._ranks: dict[tuple[int, int], set[int]] = {}  # (job, generation) -> ranks that were sent to nodes
        # (job, generation, ranks) of each generation that began since the last check
        self._fresh: list[tuple[int, int, tuple[int, ...]]] = []
        self._running: dict[int, dict[int, dict[int, Order]]] = {}  # job -> generation -> running attempt -> its order
        self._ports: set[tuple[str, int]] = set()
        self._lost_at: dict[int, float] = {}  # job -> time of the first loss of a node since its last generation began
        # job -> time of the loss of a node, if it is the only loss so far and a spare stood by
        self._warm_at: dict[int, float] = {}
        # job -> smallest number of nodes that the user's resizes since its last generation allow
        self._smallest: dict[int, int] = {}
        # (time by which all work on the host must have ended, host, its node), for nodes that the pool gave up
        self._stale: deque[tuple[float, Host, NodeId]] = deque()

    # --- the world (ranks, nodes, ports) of a generation ------------------------------------------------------------

    def started(self, job: int, generation: int, ranks: tuple[int, ...]) -> None:
        self.generations += 1
        self._fresh.append((job, generation, ranks))  # checked later: tasks are sent after this event

    def ordered(self, node: NodeId, host: Host, order: Order) -> None:
        world = order.world
        assert world is not None
        key = (order.task.job, world.generation)
        known = self._worlds.get(key)
        if known is None:
            known = self._worlds[key] = self._last[key[0]] = world
            self._open[key[0]] = frozenset(world.nodes)
        ranks = self._ranks.setdefault(key, set())
        if world is not known and world != known:
            self._broken("SIM-4", f"job {key[0]}, generation {key[1]}: rank {order.rank} gets another world")
        if not ranks:
            self._begin(key[0], world)
        if order.rank in ranks or not 0 <= order.rank < world.size:
            self._broken(
                "SIM-4", f"job {key[0]}, generation {key[1]}: rank {order.rank} of {world.size} twice, or none"
            )
        ranks.add(order.rank)
        if world.nodes[order.rank // world.ranks_per_node] != node:
            self._broken("SIM-4", f"job {key[0]}, generation {key[1]}: rank {order.rank} runs on node {node}")
        if order.rank == 0:
            self.head = host
            if host.address != world.head_address:
                self._broken("SIM-4", f"job {key[0]}, generation {key[1]}: the head is not at {world.head_address}")
        if (port := _port_of(order)) is not None:
            if (host.address, port) in self._ports:
                self._broken("SIM-4", f"port {port} of {host.address} serves a second generation")
            self._ports.add((host.address, port))

    def delivered(self, daemon: Daemon, run: Run, order: Order) -> None:
        """Check what a rank receives on its node about its world (the ranks, nodes and ports of its generation)."""
        world = order.world
        assert world is not None
        if run.world is None or (world.size > ALL_UP_TO and order.rank % (world.size // 4)):
            return
        sent: dict[str, Any] = msgpack.unpackb(run.world)
        here = (sent["generation"], sent["world_size"], sent["rank"], sent["head_addr"], sent["head_port"])
        if here != (world.generation, world.size, order.rank, world.head_address, world.head_port):
            self._broken("SIM-4", f"rank {order.rank} of job {order.task.job} gets {here}")
        self._check_peers(daemon, order, sent.get("peers"))
        port = _port_of(order)
        kept = daemon.ports.kept.get(run.attempt)
        if port is not None and port != kept and daemon.let_go.get(port) != run.attempt:
            self._broken("SIM-4", f"port {port} was not free on node {daemon.host.number}")

    def _check_peers(self, daemon: Daemon, order: Order, named: list[dict[str, Any]] | None) -> None:
        """Check the list of peers (all ranks with their addresses) that a rank receives.

        ``named``: the list that was sent with the rank. None: the rank reads the list that was sent to its node.
        """
        world = order.world
        assert world is not None
        peers: list[dict[str, Any]] = msgpack.unpackb(daemon.views[order.attempt])["peers"] if named is None else named
        seats, hosts = self._sim.referee.nodes.seats, self._sim.hosts
        nodes = [node for node in world.nodes for _ in range(world.ranks_per_node)]
        right = [(rank, hosts[seats[node].machine].address) for rank, node in enumerate(nodes)]
        if [
            (peer["rank"], peer["address"] or address) for peer, (_, address) in zip(peers, right, strict=False)
        ] != right:
            self._broken("SIM-4", f"rank {order.rank} of job {order.task.job} gets other peers than {right}")
        ports = [peer["port"] for peer in peers] if named is not None else []
        if len(peers) != world.size or (ports and ports[order.rank] != (_port_of(order) or 0)):
            self._broken("SIM-4", f"rank {order.rank} of job {order.task.job} gets {len(peers)} peers, {ports}")

    def _begin(self, job: int, world: World) -> None:
        if len(set(world.nodes)) != len(world.nodes):
            self._broken("SIM-4", f"job {job}, generation {world.generation}: a node twice in {world.nodes}")
        scenario, before = self._sim.scenario, self._worlds.get((job, world.generation - 1))
        if before is None:
            if len(world.nodes) < min(scenario.min, self._sim.referee.least_wanted):
                self._broken("SIM-10", f"job {job} begins on {len(world.nodes)} nodes, of at least {scenario.min}")
        elif len(world.nodes) < min(len(before.nodes), self._smallest.get(job, len(before.nodes))):
            since = self._lacking_since(job, before)
            waited_s = self._sim.loop.now - since
            patient = waited_s >= scenario.replace_timeout_s - 1e-6 or self._sim.referee.nodes.gave_up_at >= since
            if (
                (scenario.idle_s is None and scenario.min >= scenario.nodes)
                or not patient
                or len(world.nodes) < scenario.min
            ):
                self._broken(
                    "SIM-10",
                    f"job {job}, generation {world.generation}: {len(world.nodes)} nodes after {len(before.nodes)}, "
                    f"{waited_s:.1f} s after the loss",
                )
        seats = self._sim.referee.nodes.seats
        lost_at = self._lost_at.get(job)
        # while one of these nodes has ended ("over"), its ranks still have to run again
        if all(seats[node].state != "over" for node in world.nodes):
            self._lost_at.pop(job, None)
        # with more nodes than the user's resizes require, only the ranks of lost nodes run again
        if len(world.nodes) <= self._smallest.get(job, 0):
            self._smallest.pop(job, None)
        warm_at = self._warm_at.pop(job, None)
        if lost_at is not None and before is not None:
            self.recoveries_s.append(self._sim.loop.now - lost_at)
            late = warm_at is not None and self._sim.loop.now - warm_at > RECOVERED_S
            if late and not self._sim.referee.nodes.disturbed(lost_at) and self._alone(job):
                waited = f"{self._sim.loop.now - lost_at:.1f} s after a loss, with a spare node at hand"
                self._broken("SIM-19", f"job {job}, generation {world.generation} begins {waited}")

    def _lacking_since(self, job: int, before: World) -> float:
        """Return the time at which a node of the generation ``before`` was first lost or got a preemption notice."""
        if job in self._lost_at:
            return self._lost_at[job]
        seats = [self._sim.referee.nodes.seats[node] for node in before.nodes]
        noticed = [at for seat in seats for at in seat.notices.values()]
        return min(noticed, default=self._sim.loop.now)

    def latest(self, job: int) -> World | None:
        """Return the world (ranks, nodes, ports) of the last generation of ``job``, or None if none has begun."""
        return self._last.get(job)

    # --- fencing: no rank runs beside an older generation -----------------------------------------------------------

    def began(self, order: Order) -> None:
        world, job = order.world, order.task.job
        assert world is not None
        generations = self._running.setdefault(job, {})
        if self._sim.jobs[job].on_loss is OnLoss.RESTART:
            older = [
                each
                for generation in generations
                if generation < world.generation
                for each in generations[generation].values()
            ]
            for other in older:
                self._check_fence(order, other)
        generations.setdefault(world.generation, {})[order.attempt] = order

    def _check_fence(self, order: Order, other: Order) -> None:
        host = self._sim.referee.jobs.running[other.attempt]
        if not self._sim.referee.nodes.abandoned_unreached(host):
            self._broken(
                "SIM-5",
                f"job {order.task.job}: rank {order.rank} of {_generation(order)} begins while rank {other.rank} of "
                f"{_generation(other)} runs on node {host.number}",
            )

    def ended(self, order: Order) -> None:
        generations = self._running[order.task.job]
        running = generations[_generation(order)]
        del running[order.attempt]
        if not running:
            del generations[_generation(order)]

    def _alone(self, job: int) -> bool:
        """Return whether ``job`` is the only broadcast that has not ended."""
        referee = self._sim.referee
        return not any(of != job and of not in referee.jobs.settled for of in self._open)

    def lost(self, node: NodeId, host: Host) -> None:
        now, spare = self._sim.loop.now, self._sim.referee.nodes.stands_by()
        for job, nodes in self._latest():
            if node in nodes:
                if spare and job not in self._lost_at:
                    self._warm_at[job] = now
                else:
                    self._warm_at.pop(job, None)
                self._lost_at.setdefault(job, now)
        if host.on:
            self._stale.append((now + self._sim.scenario.lease_s + SLACK_S, host, node))

    def resized(self, wanted: int) -> None:
        for job, nodes in self._latest():
            self._smallest[job] = min(wanted, self._smallest.get(job, len(nodes)))

    def at_rest(self) -> None:
        for job, generation, ranks in self._fresh:
            sent = self._ranks.get((job, generation), set())
            whole = generation == 1 or self._sim.jobs[job].on_loss is OnLoss.RESTART
            if sent != (set(range(self._worlds[job, generation].size)) if whole and sent else set(ranks)):
                self._broken("SIM-4", f"job {job}, generation {generation}: of ranks {ranks} were sent {sorted(sent)}")
        self._fresh.clear()
        now = self._sim.loop.now
        while self._stale and self._stale[0][0] <= now:
            _, host, node = self._stale.popleft()
            if self._sim.referee.jobs.running_on[host]:
                self._broken("SIM-5", f"node {node} was given up, and what ran there runs on after its lease")

    def _latest(self) -> list[tuple[int, frozenset[NodeId]]]:
        """Return (job, nodes of its last generation) for each broadcast that has not ended."""
        settled = self._sim.referee.jobs.settled
        for job in [job for job in self._open if job in settled]:
            del self._open[job]
        return list(self._open.items())


def _port_of(order: Order) -> int | None:
    """Return the port on which the rank of ``order`` listens. None: it listens on no port."""
    world = order.world
    assert world is not None
    if world.ports:
        return world.ports[order.rank]
    return world.head_port if order.rank == 0 else None


def _generation(order: Order) -> int:
    return 0 if order.world is None else order.world.generation
