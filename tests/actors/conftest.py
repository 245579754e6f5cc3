"""Fixtures for everything under `actors`: trio with a clock that jumps, a fake cloud, and nodes that play executor."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from outrider.actors import events
from outrider.actors import messages as m
from outrider.actors.events import Event
from outrider.actors.interfaces import (
    AttemptId,
    AttemptSeen,
    BroadcastSpec,
    ConnectFailed,
    Dependencies,
    Ending,
    Finished,
    JobId,
    Looked,
    Lost,
    NodeFacts,
    NodeId,
    OnLoss,
    Order,
    Peer,
    PoolSpec,
    PortsFree,
    ReachabilityProbe,
    Report,
    Returned,
    Started,
    StopAt,
    Task,
    TaskId,
    Verdict,
)
from outrider.actors.kernel import Ref
from outrider.actors.late_nodes import Preparing
from outrider.actors.pool import supervise
from outrider.engine.node.freeports import PortBook
from outrider.providers.base import EntryPoints, LaunchRequest, Machine, PreemptionNotice, Provider
from outrider.testing.fake_provider import Fake, Script


@pytest.fixture
def anyio_backend(monkeypatch):
    """Trio shuffles what can run; here it shuffles every time alike."""
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    monkeypatch.setattr(trio._core._run, "_r", random.Random(7))
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@dataclass(frozen=True)
class Work:
    """What a played task does."""

    takes_s: float = 0.0
    verdict: Verdict = Verdict.RETURNED
    hangs: bool = False


@dataclass(eq=False)
class PlayedNode:
    """A machine's executor, as a test plays it: runs `Work`, `slots` at a time, in order."""

    site: Site
    node: NodeId
    machine: Machine
    reports: Callable[[Sequence[Report]], None]
    facts: NodeFacts
    orders: list[Order] = field(default_factory=list)
    killed: list[AttemptId] = field(default_factory=list)
    views: list[Sequence[tuple[NodeId, NodeFacts]]] = field(default_factory=list)
    notices: list[tuple[PreemptionNotice, Peer | None]] = field(default_factory=list)
    stops: list[StopAt] = field(default_factory=list)
    closed: bool = False
    dead: bool = False
    cut: bool = False  # the network: nothing arrives, what is said is kept
    waiting: deque[Order] = field(default_factory=deque)
    running: dict[AttemptId, anyio.CancelScope] = field(default_factory=dict)
    kept: list[Report] = field(default_factory=list)
    watcher: Callable[[Lost], object] | None = None
    lost: Lost | None = None  # nobody was told yet
    fresh: bool = False  # its executor has started anew
    heard_s: float | None = None  # how long ago its tasks have printed something
    quiet_s: float = 0.0  # since they have given a sign
    texts: dict[int, str] = field(default_factory=dict)  # of their stacks, by rank
    looked: list[int] = field(default_factory=list)
    unsent: set[AttemptId] = field(default_factory=set)  # their arguments are on their way
    compared: list[int] = field(default_factory=list)  # counts of taken ports

    # the port `Connection`

    @property
    def link(self) -> PlayedNode:
        return self

    def watch(self, lost: Callable[[Lost], object]) -> None:
        self.watcher = lost
        self.tell_lost()

    async def resume(self) -> bool:
        await anyio.sleep(0.05)
        if self.dead or self.cut:
            raise ConnectFailed("no answer")
        if self.fresh:
            return False
        self.say()
        return True

    async def close(self) -> None:
        self.closed = True
        await anyio.sleep(self.site.close_s)
        self.stop()

    # the port `Link`

    in_use = 0

    def run(self, order: Order) -> None:
        assert self.views, "it has heard who is there before its first task"
        self.orders.append(order)
        self.site.ran.append((self.node, order))
        if self.dead:
            return
        if order.world is not None:
            book = self.site.ports[self.node]
            book.named(order.attempt, order.world.port_of(order.rank))
            book.close_for(order.attempt)
            if book.is_short:
                self.offer_ports()
            self.begin(order)
        else:
            self.waiting.append(order)
            self.next()

    def kill(self, attempt: AttemptId) -> None:
        self.killed.append(attempt)
        for order in list(self.waiting):
            if order.attempt == attempt:
                self.waiting.remove(order)
                self.say(Finished(attempt, Verdict.KILLED, "killed", 0.0))
        if attempt in self.running and not self.site.deaf:
            self.running.pop(attempt).cancel()
            self.site.start(self.say_later, Finished(attempt, Verdict.KILLED, "killed", 0.0))
            self.next()

    def recall(self, attempts: Sequence[AttemptId]) -> None:
        back = [order for order in self.waiting if order.attempt in attempts]
        for order in back:
            self.waiting.remove(order)
        self.say(Returned(tuple(order.attempt for order in back)))

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        self.views.append(members)

    def place(self, rank: int, facts: NodeFacts, *, nodes: int, accelerators: int) -> None:
        raise AssertionError("no pool that is played here is so large")

    def notify(self, notice: PreemptionNotice, peer: Peer | None = None) -> None:
        self.notices.append((notice, peer))

    def stop_at(self, stop: StopAt) -> None:
        self.stops.append(stop)

    def heard(self, attempt: AttemptId) -> float | None:
        return self.heard_s

    def look(self, question: int, quiet_s: float) -> None:
        self.looked.append(question)
        ranks = {order.attempt: order.rank for order in self.orders}
        seen = {each: AttemptSeen(self.texts.get(ranks[each], ""), self.quiet_s) for each in self.running}
        self.site.start(self.say_later, Looked(question, seen))

    # inside

    def notice(self, source: str, seconds: float | None) -> None:
        self.say(PreemptionNotice(self.machine.id, source, seconds))

    def next(self) -> None:
        alone = sum(1 for scope in self.running.values())
        while self.waiting and alone < self.site.slots:
            self.begin(self.waiting.popleft())
            alone += 1

    def begin(self, order: Order) -> None:
        scope = self.running[order.attempt] = anyio.CancelScope()
        self.site.start(self.play, order, scope)

    async def play(self, order: Order, scope: anyio.CancelScope) -> None:
        work = order.task.content
        if callable(work):
            work = work(order)
        if order.announce:
            self.say(Started(order.attempt))
        with scope:
            await anyio.sleep(float("inf") if work.hangs else work.takes_s)
            if self.running.pop(order.attempt, None) is not None:
                self.say(Finished(order.attempt, work.verdict, f"{order.task.id}@{self.node}", work.takes_s))
                self.next()

    def is_sent(self, attempt: AttemptId) -> bool:
        return attempt not in self.unsent

    def compare_ports(self, taken: int) -> None:
        self.compared.append(taken)
        self.site.ports[self.node].compare(taken, ())
        self.offer_ports()

    def offer_ports(self) -> None:
        book = self.site.ports[self.node]
        book.fill()
        self.site.start(self.say_later, PortsFree(book.taken, tuple(book.offered)))

    async def say_later(self, report: Report) -> None:
        await anyio.sleep(0.01)
        self.say(report)

    def say(self, *reports: Report) -> None:
        self.kept += reports
        if not self.dead and not self.cut and self.kept:
            kept, self.kept = self.kept, []
            self.reports(kept)

    def stop(self) -> None:
        self.dead = True
        for scope in self.running.values():
            scope.cancel()
        self.running.clear()

    # a test's hands

    def die(self, *, silent: bool = False) -> None:
        """The machine is off; its connection closes, or (``silent``) nothing is heard of it any more."""
        self.stop()
        self.drop(silent=silent)

    def drop(self, *, silent: bool = False, cause: str = "connection closed", early_s: float = 0.0) -> None:
        self.lost = Lost(cause, silent, early_s)
        self.tell_lost()

    def tell_lost(self) -> None:
        watcher, lost = self.watcher, self.lost
        if watcher is not None and lost is not None:
            self.watcher = self.lost = None
            watcher(lost)


class Site:
    """All played nodes of a pool, and what a test wants of them."""

    def __init__(self, slots: int, start: Callable[..., None]) -> None:
        self.slots = slots
        self.start = start
        self.nodes: dict[NodeId, PlayedNode] = {}
        self.ran: list[tuple[NodeId, Order]] = []
        self.ports: dict[NodeId, PortBook] = {}
        self.numbers = iter(range(20_000, 65_536))
        self.ports_each = 2
        self.refuse: dict[NodeId, list[ConnectFailed]] = {}
        self.connect_s = 0.01
        self.prepare_s: dict[NodeId, float] = {}  # from its answer to being ready
        self.breaks_s: dict[NodeId, float] = {}  # from its answer to the loss of its connection, the first time
        self.close_s = 0.0
        self.deaf = False  # kills are not answered

    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> PlayedNode:
        await anyio.sleep(self.connect_s)
        refusals = self.refuse.get(node) or self.refuse.get(NodeId(-1))
        if refusals:
            raise refusals[0] if len(refusals) == 1 else refusals.pop(0)
        answered()
        if node in self.breaks_s:
            await anyio.sleep(self.breaks_s.pop(node))
            raise ConnectFailed("the connection was lost")
        if node in self.prepare_s:
            await anyio.sleep(self.prepare_s[node])
        self.ports[node] = PortBook(
            lambda: next(self.numbers), lambda port: None, most=self.ports_each, few=self.ports_each - 1
        )
        self.ports[node].fill()
        facts = NodeFacts(f"host{node}", machine.private_address, tuple(self.ports[node].offered))
        self.nodes[node] = PlayedNode(self, node, machine, reports, facts)
        return self.nodes[node]


class Seen:
    """The `Observe` port: everything that was told, found by the names that events have in logs."""

    def __init__(self) -> None:
        self.tasks = True
        self.events: list[tuple[float, Event]] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append((anyio.current_time(), event))

    def wants(self, job: int) -> bool:
        return self.tasks

    def all(self, name: str) -> list[dict[str, object]]:
        """The facts of each."""
        return [_facts(event) for _, event in self._named(name)]

    def at(self, name: str) -> list[float]:
        return [at for at, _ in self._named(name)]

    def _named(self, name: str) -> list[tuple[float, Event]]:
        assert name in NAMES
        return [(at, event) for at, event in self.events if event.name == name]


NAMES = {kind.name for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}


def _facts(event: Event) -> dict[str, object]:
    return {each.name: getattr(event, each.name) for each in fields(event) if each.name != "at"}


@dataclass(eq=False)
class Rig:
    """A pool on a fake cloud with played nodes."""

    ref: Ref[m.PoolMessage]
    provider: Any  # mostly `Fake`
    fleet: Any
    site: Site
    seen: Seen
    endings: dict[JobId, Ending] = field(default_factory=dict)
    all_endings: dict[JobId, tuple[Sequence[Ending], int]] = field(default_factory=dict)
    jobs: int = 0
    settlement: anyio.Event = field(default_factory=anyio.Event)  # the next one

    def submit(self, work: object = Work(), **options: object) -> JobId:
        self.jobs += 1
        job = JobId(self.jobs)
        assert job not in self.endings

        def settle(ending: Ending) -> None:
            assert job not in self.endings, "settled twice"
            self.endings[job] = ending
            self.tell_settlement()

        self.ref.tell(m.Submit(Task(TaskId(job), job, options.pop("function", b"f"), work, **options), settle))
        return job

    def broadcast(self, work: object = Work(), **options: object) -> JobId:
        self.jobs += 1
        job = JobId(self.jobs)

        def settle(endings: Sequence[Ending], generation: int) -> None:
            assert job not in self.all_endings, "settled twice"
            self.all_endings[job] = (endings, generation)
            self.tell_settlement()

        spec = BroadcastSpec(
            **{"job": job, "function": b"b", "content": work, "on_loss": OnLoss.RESTART, "collective": True}
            | {"ranks_per_node": lambda facts: 1}
            | options
        )
        self.ref.tell(m.Broadcast(spec, settle))
        return job

    async def ready(self) -> None:
        await self.ref.ask(m.WhenReady(), within_s=3600)

    async def state(self) -> m.PoolState:
        return await self.ref.ask(m.Snapshot(), within_s=60)

    def tell_settlement(self) -> None:
        told, self.settlement = self.settlement, anyio.Event()
        told.set()

    async def settled(self, *jobs: JobId, within_s: float = 3600) -> None:
        """Wait until they have ended, and a moment more: what goes with an end has happened too."""
        with anyio.fail_after(within_s):
            while not all(job in self.endings or job in self.all_endings for job in jobs):
                await self.settlement.wait()  # looking every 10 ms of an hour costs seconds
        await anyio.sleep(0.01)

    async def until(self, condition: Callable[[], bool], within_s: float = 3600) -> None:
        with anyio.fail_after(within_s):
            while not condition():
                await anyio.sleep(0.01)


DECIDERS = {
    f"outrider.actors.{module}"
    for module in (
        "failure_detector",
        "fleet_controller",
        "generations",
        "launch_queue",
        "ledger",
        "membership",
        "placement",
        "stragglers",
    )
}
SPEC = PoolSpec(desired=4, min=4, slots=1)


@pytest.fixture(autouse=True, scope="module")
def overrides_exist(request):
    """A decider that a test breaks overrides what there is: after a rename it is whole, and searched for minutes."""
    for broken in vars(request.module).values():
        if isinstance(broken, type) and (decider := broken.__base__) and decider.__module__ in DECIDERS:
            unknown = [name for name in vars(broken) if not (name.startswith("__") or hasattr(decider, name))]
            assert not unknown, f"{broken.__name__} overrides {unknown}, and {decider.__name__} has no such thing"


@pytest.fixture
def rig():
    """Open a pool: ``async with rig(script=..., desired=...) as rig``."""

    @asynccontextmanager
    async def open_rig(
        script: Script | None = None,
        *,
        prepare: Callable[[Site], None] = lambda site: None,
        provider: Provider | None = None,
        probe: ReachabilityProbe | None = None,
        preparing: Callable[[NodeId], Preparing | None] = lambda _: None,
        **spec: object,
    ) -> AsyncIterator[Rig]:
        if "desired" in spec:
            spec = {"min": spec["desired"]} | spec
        wanted = replace(SPEC, **spec)
        provider, seen = provider or Fake(script), Seen()
        request = LaunchRequest("ssh-ed25519 CLIENT", wanted.desired, least=wanted.min)
        async with anyio.create_task_group() as tasks, provider.open("p", EntryPoints()) as fleet:
            site = Site(wanted.slots, tasks.start_soon)
            prepare(site)
            chance = random.Random(1).random
            clock = anyio.current_time
            dependencies = Dependencies(fleet, request, wanted, site, seen, clock, probe, chance, preparing)
            async with supervise(dependencies) as ref:
                yield Rig(ref, provider, fleet, site, seen)
            tasks.cancel_scope.cancel()

    return open_rig


@pytest.fixture
def work():
    return Work
