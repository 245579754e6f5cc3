"""Run one scenario: Outrider's real actors, link, session and scheduler on virtual time, with all else simulated.

>>> from outrider.testing import draw, play
>>> played = play(draw(7))
>>> played.violation is None and played.digest == play(draw(7)).digest
True
"""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import anyio
import msgpack
from anyio.lowlevel import checkpoint

from ...actors.amounts import Amounts
from ...actors.fleet_controller import NodePhase
from ...actors.interfaces import (
    BroadcastSpec,
    ConnectFailed,
    Dependencies,
    Ending,
    JobId,
    PoolSpec,
    Reason,
    ScaleByLoad,
    Stall,
    Task,
    TaskId,
)
from ...actors.kernel import ActorFailed, ActorStopped
from ...actors.messages import Broadcast, Cancel, PoolState, Resize, Snapshot, Submit, WhenReady
from ...actors.pool import CLOSE_S, supervise
from ...engine.client.budget import Budget, Metered
from ...engine.serialization.payload import Blob
from ...engine.serialization.task_payload import Payload
from ...engine.wire.messages import RunFlag, Value
from ...engine.wire.values import INLINE_BYTES
from ...lazy_dataclass import dataclass
from ...providers.base import EntryPoints, LaunchRequest
from ...providers.errors import ProviderError
from .clock import Spinning, Stuck, VirtualLoop
from .fault_schedule import FaultSchedule
from .keeping import Keeping
from .limit import cpu_limit
from .referee import Violation
from .scenario import Job, Scenario
from .simulation import Simulation
from .trace import KEPT, Trace

if TYPE_CHECKING:
    from ...actors.events import Event
    from ...actors.kernel import Ref
    from ...actors.messages import PoolMessage

RECONNECT_S = 3.0  # seconds; a test checks that `engine.client.opening` has the same value
PATIENCE_S = 4 * 3600.0  # jobs that have not ended so many seconds after the last fault count as waiting for ever
# seconds for which the idle pool must stay complete before the final checks; by then all leftovers are removed
REST_S = 90.0
LOOK_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of a simulated run. Two runs with equal digests have the same trace.

    Attributes:
        scenario: The scenario.
        violation: The first broken promise. None: no promise was broken.
        digest: The digest of the trace.
        simulated_s: The simulated seconds.
        wall_s: The real seconds.
        steps: How often the virtual clock advanced. The referee checks its rules at each step.
        events: The number of events of each kind.
        endings: The number of endings of jobs, by kind.
        faults: The number of injected faults, by kind. Faults without a target, or later than the end, do not count.
        machines: The number of launched machines.
        generations: The number of generations.
        recoveries_s: For each loss of a node with a broadcast, the seconds until the broadcast's next generation began.
        trace: The last lines of the trace, or all lines.
    """

    scenario: Scenario
    violation: Violation | None
    digest: str
    simulated_s: float
    wall_s: float
    steps: int  # how often the virtual clock advanced; the referee checks its rules at each step
    events: Counter[str]
    endings: Counter[str]
    faults: Counter[str]  # kind of fault -> number of injected faults
    machines: int
    generations: int
    recoveries_s: tuple[float, ...]  # seconds from each loss of a node to the next generation of its broadcast
    trace: Sequence[str]  # the last lines of the trace, or all lines


def play(scenario: Scenario, *, keep: int | None = KEPT, enough_s: float | None = None) -> Played:
    """Run a scenario until its end or the first broken promise. Call this only in the main thread of a process.

    Args:
        scenario: The scenario.
        keep: The number of last lines of the trace to keep. Default: 400. None: all lines.
        enough_s: Seconds of CPU time after which a run counts as endless (SIM-9). None: no limit.

    Returns:
        The result, with the broken promise if there is one.
    """
    began = time.perf_counter()
    loop = VirtualLoop()
    trace = Trace(loop.time, keep=keep)
    sim = Simulation(loop, scenario, trace)
    user = _User(sim)
    loop.at_rest = sim.referee.at_rest
    loop.set_exception_handler(user.failed)
    enabled = gc.isenabled()
    gc.disable()  # faster: the run's reference cycles are collected once, after the run
    with cpu_limit(enough_s, lambda: sim.broken("SIM-9", f"it has not ended after {enough_s} s of CPU time")):
        try:
            loop.run(user.main())
        except Violation:
            pass  # `sim.broken` has already recorded it
        except (Stuck, Spinning) as error:
            sim.broken("SIM-9", str(error))
        except Exception as error:  # noqa: BLE001  the pool must raise no error
            sim.broken("SIM-20", _story(error))
        finally:
            if enabled:
                gc.enable()
    return Played(
        scenario=scenario,
        violation=sim.violation,
        digest=trace.digest,
        simulated_s=loop.now,
        wall_s=time.perf_counter() - began,
        steps=loop.steps,
        events=user.events,
        endings=user.endings,
        faults=user.schedule.happened,
        machines=sim.cloud.launched,
        generations=sim.referee.worlds.generations,
        recoveries_s=tuple(sim.referee.worlds.recoveries_s),
        trace=trace.lines,
    )


def _story(error: BaseException) -> str:
    """Return the text of the error's innermost cause, and the file and line where it was raised."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[-1]
        elif isinstance(error, ActorFailed) and error.__cause__ is not None:
            error = error.__cause__
        else:
            break
    where = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{error!r} in " + "".join(f"{Path(at.filename).name}:{at.lineno}" for at in where)


class _User:
    """The simulated user of the pool, who is also the pool's observer (`Observe`) and gets its events."""

    def __init__(self, sim: Simulation) -> None:
        self._sim, self._scenario = sim, sim.scenario
        # attribute of the `Observe` interface: whether the observer wants events of single tasks
        self.tasks = sim.scenario.announce
        self.events: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.schedule = FaultSchedule(sim, self._tell)
        self._ref: Ref[PoolMessage] | None = None
        self._coming = deque(sorted(sim.scenario.jobs, key=lambda job: job.at_s))
        self._due = len(sim.scenario.jobs)  # number of jobs that have not ended
        self._blobs: dict[int, Blob] = {}
        self.keeping: Keeping
        self._unfinished = {job.id for job in sim.scenario.jobs}
        # number of a job -> jobs to submit after its end, because they need its result
        self._until: dict[int, list[Job]] = {}
        self._news = asyncio.Event()

    def __call__(self, event: Event, /) -> None:
        self.events[event.name] += 1
        self._sim.trace(event.name, **{each.name: getattr(event, each.name) for each in fields(event)})
        self._sim.referee.observed(event)
        self.schedule.observed(event.name)

    def wants(self, job: int) -> bool:  # noqa: ARG002
        return self.tasks

    def job(self, job: int, name: str) -> None:
        pass  # part of the `Observe` interface; the simulation needs no names of jobs

    def job_over(self, job: int, ending: object = None, name: str = "") -> None:
        pass

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:  # noqa: ARG002
        self._sim.broken("SIM-20", f"{context.get('message')}: {context.get('exception')!r}")

    # --- the user -------------------------------------------------------------------------------------------------

    async def main(self) -> None:
        sim, scenario = self._sim, self._scenario
        self.keeping = Keeping(sim, self, self._settle)
        request = LaunchRequest("ssh-ed25519 CLIENT", scenario.nodes + scenario.spare)
        async with sim.cloud.open("simulated", EntryPoints()) as fleet:
            closing_at, costs = 0.0, sim.referee.costs
            costs.budget = Budget(since=sim.loop.now)
            dependencies = Dependencies(
                Metered(fleet, costs.budget, costs.change, sim.loop.time),
                request,
                self._spec(),
                sim.connector,
                self,
                sim.loop.time,
                probe=None if scenario.probe == "none" else sim.connector.probe,
                chance=Random(scenario.seed).random,  # noqa: S311
            )
            async with supervise(dependencies) as self._ref:
                self.keeping.intake.opened(self._ref)
                if self._coming:
                    sim.loop.call_at(self._coming[0].at_s, self._submit_due)
                with anyio.move_on_after(scenario.close_at_s if scenario.close_at_s is not None else float("inf")):
                    await self._use()
                closing_at = sim.loop.now
                self.keeping.intake.opened(None)
            if sim.loop.now - closing_at > CLOSE_S + 1.0:
                sim.broken("SIM-9", f"closing took {sim.loop.now - closing_at:.1f} s")
        await self.keeping.close()
        left = sim.unsettled
        if left:
            sim.broken("SIM-9", f"the pool is closed, and jobs {sorted(left)} never settled")
        sim.referee.closed()
        await checkpoint()  # lets the loop raise a violation that was just recorded

    async def _use(self) -> None:
        """Wait until all jobs have ended and the pool is complete again, and check its final state."""
        sim, scenario = self._sim, self._scenario
        assert self._ref is not None
        try:
            await self._ready(scenario.boot_timeout_s + scenario.replace_timeout_s)
        except (ProviderError, ConnectFailed, TimeoutError) as error:
            sim.trace("not_ready", error=error)
            return
        await self.schedule.over.wait()
        deadline = sim.loop.now + PATIENCE_S
        well_since: float | None = None
        while True:
            state: PoolState = await self._ref.ask(Snapshot(), within_s=60.0)
            if state.error is not None and scenario.idle_s is None:
                # the pool stopped launching nodes: a user would resize it once the cloud has capacity again
                self._tell(Resize(sim.referee.nodes.wanted))
            if not self._due and not self.keeping.busy:
                self.keeping.let_go_of_all()
            if not self.schedule.over.is_set():  # a late event may have triggered another fault
                deadline, well_since = sim.loop.now + PATIENCE_S, None
            elif self._due or self.keeping.busy or state.leased or not self._is_whole(state) or sim.cloud.unsure:
                well_since = None
            elif well_since is None:
                well_since = sim.loop.now
            elif sim.loop.now - well_since >= REST_S:
                self._check_rest(state)
                await self.keeping.check_rest()
                return
            if sim.loop.now >= deadline:
                self._report_hang(state)
                return
            await anyio.sleep(LOOK_S)

    async def _ready(self, within_s: float) -> None:
        """Wait until the pool is ready. Time in which a machine waits in the provider's queue does not count.

        Raises:
            TimeoutError: The pool was not ready within ``within_s`` seconds. Errors of the pool itself are raised, too.
        """
        assert self._ref is not None
        left_s = within_s
        while True:
            try:
                await self._ref.ask(WhenReady(), within_s=left_s)
            except TimeoutError:
                state: PoolState = await self._ref.ask(Snapshot(), within_s=60.0)
                if state.queued_ago_s is None or state.queued_ago_s >= within_s:
                    raise
                left_s = within_s - state.queued_ago_s
            else:
                return

    def _is_whole(self, state: PoolState) -> bool:
        phases = Counter(None if node.away else node.phase for node in state.nodes)
        wanted = self._sim.referee.nodes.wanted
        return phases == +Counter({NodePhase.READY: wanted, NodePhase.SPARE: self._scenario.spare})

    def _report_hang(self, state: PoolState) -> None:
        left = self._sim.unsettled
        if left:
            self._sim.broken(
                "SIM-9", f"jobs {sorted(left)} wait for ever; {state.queued} queued, {state.leased} leased"
            )
        elif state.leased or state.broadcasts:
            self._sim.broken("SIM-9", f"{state.leased} attempts and {state.broadcasts} broadcasts are never given up")
        else:
            nodes = ", ".join(f"{node.node} {node.phase}{' away' * node.away}" for node in state.nodes)
            self._sim.broken("SIM-11", f"{self._sim.referee.nodes.wanted} nodes are wanted, and there are: {nodes}")

    def _check_rest(self, state: PoolState) -> None:
        sim = self._sim
        if state.queued or state.leased or state.broadcasts:
            sim.broken("SIM-9", f"all jobs have settled; {state.queued} queued, {state.leased} leased")
        sim.referee.nodes.rested()
        sim.referee.scaling.rested()
        sim.referee.costs.rested()
        sim.referee.ports.rested(state.nodes)
        ranks = {node.machine.id: node.rank for node in state.nodes if node.rank is not None}
        for machine, rank in list(ranks.items())[:: max(1, len(ranks) // 64)]:
            daemon = sim.hosts[machine].daemon
            view = msgpack.unpackb(daemon.view) if daemon is not None and daemon.view else {}
            if view.get("total_nodes") != len(ranks) or view.get("node") != rank:
                seen = f"{view.get('node')} of {view.get('total_nodes')}"
                sim.broken("SIM-17", f"machine {machine} thinks that it is node {seen}; it is {rank} of {len(ranks)}")

    def _spec(self) -> PoolSpec:
        scenario = self._scenario
        return PoolSpec(
            desired=scenario.nodes,
            min=scenario.min,
            spare=scenario.spare,
            slots=scenario.slots,
            boot_timeout_s=scenario.boot_timeout_s,
            replace_timeout_s=scenario.replace_timeout_s,
            reconnect_s=RECONNECT_S,
            lease_s=scenario.lease_s,
            launch_retries=scenario.launch_retries,
            scale=None if scenario.idle_s is None else ScaleByLoad(scenario.max, scenario.idle_s),
        )

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _tell(self, message: PoolMessage) -> None:
        if self._ref is not None:
            try:
                self._ref.tell_inline(message)
            except ActorStopped:
                pass  # the pool is already closed

    def _submit_due(self) -> None:
        """Submit all jobs that are due, then set one timer for the next job, to keep the heap of timers small."""
        while self._coming and self._coming[0].at_s <= self._sim.loop.now:
            self._submit(self._coming.popleft())
        if self._coming:
            self._sim.loop.call_at(self._coming[0].at_s, self._submit_due)

    def _submit(self, job: Job) -> None:
        if self._ref is None or self._sim.referee.nodes.closing:
            return
        if (before := next((each for each in job.inputs if each in self._unfinished), None)) is not None:
            self._until.setdefault(before, []).append(job)
            return
        self._sim.unsettled.add(job.id)
        self._sim.trace("submit", job=job.id)
        self._sim.referee.time_limits.submitted(job)
        payload = self._payload(job)
        function = payload.function
        if job.keep or job.inputs:
            self.keeping.submit(job, payload)
            return
        if job.ranks:
            spec = BroadcastSpec(
                job=JobId(job.id),
                function=function,
                content=payload,
                on_loss=job.on_loss,
                collective=job.collective,
                ranks_per_node=lambda facts: job.ranks,  # noqa: ARG005
                at_most_once=job.once,
                queue_timeout_s=job.queue_timeout_s,
                restarts=job.retries,
                max_restarts=job.max_restarts,
                every_rank_listens=job.listens,
                stall=_stall(job),
                needs=None if payload.needs is None else payload.needs.times(job.ranks),
                watch=self._sim.referee.jobs.watch(job) if job.once else None,
            )
            self._tell(Broadcast(spec, lambda endings, generation: self._settle_all(job, endings, generation)))
        else:
            task = Task(
                TaskId(job.id), JobId(job.id), function, payload, job.on, job.retries, job.once, job.queue_timeout_s,
                needs=payload.needs, stall=_stall(job), has_deadline=job.deadline_s is not None,
            )  # fmt: skip
            self._tell(Submit(task, lambda ending: self._settle(job, ending)))
        if job.cancel_after_s is not None:
            self._sim.loop.call_later(job.cancel_after_s, self._tell, Cancel(JobId(job.id)))
        if job.deadline_s is not None:
            expire = Cancel(JobId(job.id), Reason.DEADLINE, job.deadline_s)
            self._sim.loop.call_later(job.deadline_s, self._tell, expire)

    def _payload(self, job: Job) -> Payload:
        function = f"{job.takes_s}{job.ends}{job.ranks}{job.large}{job.cpus}".encode()
        code = bytes(INLINE_BYTES + 1) if job.large and job.id % 2 else b"code"
        args, blob = Value(b"args"), None
        if job.large:
            self._blobs[job.id] = blob = Blob(f"args-{job.id}", [b"args"], 4)
            args = Value(b"", None, blob.name)
        flags = int(RunFlag.FRESH) if job.fresh or job.cpus else 0
        needs = Amounts(1000 * job.cpus) if job.cpus else None
        return Payload(f"job{job.id}", function, code, args, blob, job.timeout_s, flags, needs=needs)

    def _settle(self, job: Job, ending: Ending) -> None:
        self._sim.referee.settled(job, ending)
        self._over(job, (ending,))

    def _settle_all(self, job: Job, endings: Sequence[Ending], generation: int) -> None:
        self._sim.referee.settled_all(job, endings, generation)
        self._over(job, endings)

    def _over(self, job: Job, endings: Sequence[Ending]) -> None:
        self._due -= 1
        for ending in endings:
            self.endings[(getattr(ending, "verdict", None) or getattr(ending, "reason", None)).name.lower()] += 1  # type: ignore[union-attr]
        blob = self._blobs.pop(job.id, None)
        if blob is not None:
            self._sim.connector.drop(blob)
        self._unfinished.discard(job.id)
        for next_job in self._until.pop(job.id, ()):
            self._sim.loop.call_soon(self._submit, next_job)


def _stall(job: Job) -> Stall | None:
    return None if job.stall_s is None else Stall(job.stall_s, job.stall_restarts)
