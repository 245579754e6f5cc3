"""The kept results of a simulated pool: Outrider's real code for stored results and their recomputation, and a user.

The simulated user passes references of kept results to jobs, requests their values, stops waiting for a value, and
drops references. Threads are not simulated: the work that a thread would do for a value is done at once.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio

from ...actors.interfaces import Ending, JobId, Settled, Verdict
from ...engine.api.errors import NodeLost, PoolClosed
from ...engine.api.task_options import Options
from ...engine.client.job_intake import JobIntake
from ...engine.client.jobs import SubmittedJob
from ...engine.objects.pool_objects import Objects
from ...engine.objects.remaking import Remaking
from ...engine.serialization.payload import Blob, Received
from ...engine.serialization.stored_objects import StoredObject, Whereabouts
from ...engine.serialization.task_payload import Payload
from ...engine.wire.messages import Value
from .kept_values import Arguments, Result
from .scenario import Job

if TYPE_CHECKING:
    from ...actors.kernel import Ref as ActorRef
    from ...engine.api.refs import Ref
    from .simulation import Simulation

FREED_S = 10.0  # seconds to wait for the removal of results after the last reference was dropped


class PlayedObjects(Objects):
    async def _received(self, at: Whereabouts) -> Received | None:
        if at.blob is not None:
            return Received(b"".join(at.blob.parts), at.sizes)
        return await super()._received(at)


class PlayedIntake(JobIntake):
    """Outrider's real `JobIntake`, which accepts the user's jobs, connected to a simulated pool."""

    def __init__(self, sim: Simulation, observer: Any, over: Callable[[Job, Ending], None]) -> None:
        self.Job = PlayedJob  # type: ignore[assignment]
        self.sim, self.over = sim, over
        self.observer, self.loop = observer, sim.loop
        self.connector: Any = sim.connector
        self.remaking = Remaking(cast("Any", self))
        self.objects = PlayedObjects(lambda: self.packer, self._drop, self.remaking.recompute_lost)
        self._packer: Any = None
        self._ref: ActorRef[Any] | None = None
        self._failure = None
        self._ids = itertools.count(max(sim.jobs, default=0) + 1)

    def opened(self, ref: ActorRef[Any] | None) -> None:
        """Send jobs to the pool's actor ``ref`` from now on. None: reject all jobs."""
        self._ref = ref

    def release(self, payload: Payload) -> None:
        payload.objects = ()
        if payload.blob is not None:
            self._drop(payload.blob)
            payload.blob = None


class PlayedJob(SubmittedJob[Any]):
    """Outrider's real job, which also reports to the referee.

    ``submitted`` is the job in the scenario; None: this job recomputes a lost result.
    """

    __slots__ = ("_again", "_sim", "job")

    def __init__(self, core: PlayedIntake, payload: Payload, options: Options, submitted: Job | None = None) -> None:
        super().__init__(cast("Any", core), payload, options)
        self._sim, self._again = core.sim, submitted is None
        if submitted is not None:
            self.job, self.id = submitted, JobId(submitted.id)
            return
        root = Arguments.of(_arguments(payload)).job
        self.job = replace(self._sim.jobs[root], id=self.id, cancel_after_s=None)
        self._sim.jobs[self.id] = self.job
        self._sim.unsettled.add(self.id)
        self._sim.trace("remake", job=self.id, of=root)
        self._sim.referee.time_limits.submitted(self.job)
        self._sim.referee.kept.rerun(root, self.id)

    def __call__(self, ending: Ending) -> None:
        core: Any = self._core
        if self._again:
            self._sim.referee.settled(self.job, ending)
        else:
            core.over(self.job, ending)
        super().__call__(ending)

    def cancel(self) -> bool:
        if self._again and not self._settled:
            self._sim.trace("called_off", job=self.id)
            self._sim.referee.kept.called_off(self.id)
        return super().cancel()

    def refused(self) -> None:
        self._sim.unsettled.discard(self.id)
        self._sim.referee.kept.refused(self.id)
        super().refused()


class Keeping:
    """The simulated user of kept results."""

    def __init__(self, sim: Simulation, observer: Any, over: Callable[[Job, Ending], None]) -> None:
        self._sim, self._over = sim, over
        self._noticed: Callable[[str], None] = observer.schedule.observed
        self.intake = PlayedIntake(sim, observer, self._job_over)
        self._refs: dict[int, Ref[Any]] = {}
        # number of planned actions of the user that have not happened yet: requests for values, dropped references
        self._planned = 0
        self._asking: dict[asyncio.Task[None], None] = {}
        self._has_kept = False  # whether any submitted job keeps its result, or takes a kept result as input

    @property
    def busy(self) -> bool:
        return bool(self._planned or self._asking)

    def submit(self, job: Job, payload: Payload) -> None:
        values: list[tuple[str, bool]] = []
        objects: list[StoredObject] = []
        inputs = [each for each in dict.fromkeys(job.inputs) if each in self._refs]
        for each in inputs:
            stored: Any = self._refs[each]._stored
            if stored.at.small is not None:
                values.append((Result.of(stored.at.small).value, False))
            else:
                values.append((stored.name, True))
                objects.append(stored)
        _give(payload, Arguments(job.id, tuple(values)))
        payload.objects = tuple(objects)
        self._has_kept = True
        if job.keep:
            self.intake.keep_result(payload)
        self._sim.referee.kept.submitted(job, inputs)
        options = Options(
            retries=job.retries, at_most_once=job.once, queue_timeout_s=job.queue_timeout_s, timeout_s=job.timeout_s,
            needs=payload.needs, deadline_s=job.deadline_s,
        )  # fmt: skip
        played = PlayedJob(self.intake, payload, options, job)
        if job.cancel_after_s is not None:
            self._sim.loop.call_later(job.cancel_after_s, self._cancel, JobId(job.id))
        try:
            self.intake.submit(played, job.on, played)
        except PoolClosed:
            pass  # the user may submit a job while the pool is being closed

    def _cancel(self, job: JobId) -> None:
        if job in self._sim.unsettled:
            self.intake.cancel(job)

    def _job_over(self, job: Job, ending: Ending) -> None:
        if job.keep and isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
            outcome: Any = ending.outcome
            self._refs[job.id] = self.intake.objects.result(outcome, f"job{job.id} on node {ending.node}")  # type: ignore[assignment]
            self._sim.referee.kept.held(job.id)
            self._noticed("kept")
            for after_s, for_s in job.asks:
                self._plan(after_s, partial(self._ask, job, for_s))
            if job.holds_s < math.inf:
                self._plan(job.holds_s, lambda: self._let_go(job.id))
        self._over(job, ending)

    def _plan(self, after_s: float, act: Callable[[], None]) -> None:
        self._planned += 1

        def do() -> None:
            self._planned -= 1
            act()

        self._sim.loop.call_later(after_s, do)

    def _let_go(self, job: int) -> None:
        if self._refs.pop(job, None) is not None:
            self._sim.trace("let_go", job=job)
            self._sim.referee.kept.let_go(job)

    def let_go_of_all(self) -> None:
        for job in [*self._refs]:
            self._let_go(job)

    def _ask(self, job: Job, for_s: float) -> None:
        ref = self._refs.get(job.id)
        if ref is not None and self.intake.takes_jobs:
            task = self._sim.loop.create_task(self._value(job, ref, for_s))
            self._asking[task] = None
            task.add_done_callback(self._asking.pop)

    async def _value(self, job: Job, ref: Ref[Any], for_s: float) -> None:
        """Request the value of ``ref``, and wait for at most ``for_s`` seconds."""
        kept, trace = self._sim.referee.kept, self._sim.trace
        trace("asked", job=job.id)
        kept.requested(job.id)
        try:
            with anyio.move_on_after(for_s):
                value = await ref.get()
                trace("got", job=job.id)
                kept.got(job.id, value)
        except NodeLost as error:
            trace("not_got", job=job.id, error=error)
            kept.not_got(job.id, str(error))
        except PoolClosed:
            if self.intake.takes_jobs:
                kept.reported_closed(job.id)
        finally:
            trace("answered", job=job.id)
            kept.answered(job.id)

    async def close(self) -> None:
        """Reject jobs and end recomputations, as a closing `OpenPool` does. Check that no request still waits."""
        self.intake.opened(None)
        self.intake.remaking.close()
        if self._asking:
            await asyncio.wait([*self._asking], timeout=1.0)
        if self._asking:
            self._sim.broken("SIM-9", f"the pool is closed, and {len(self._asking)} still ask for kept results")

    async def check_rest(self) -> None:
        """Check that, some time after the last reference was dropped, no kept result and no recomputation is left."""
        if not self._has_kept:
            return
        left = self._left()
        if left:  # reference cycles, such as an error that refers to itself, need a garbage collection
            gc.collect()
            await asyncio.sleep(FREED_S)
            left = self._left()
        if left:
            self._sim.broken("SIM-39", f"nobody has a reference, and there are still: {', '.join(left)}")

    def _left(self) -> list[str]:
        remaking = self.intake.remaking
        remembered: list[Any] = [each.call for each in remaking.lineage._calls]
        running: list[Any] = [each.call for each in remaking._runs]
        calls = [f"the call of job {Arguments.of(_arguments(each.payload)).job}" for each in remembered]
        waiting = [f"job {job}, which waits" for job in remaking.waiting]
        blobs = [
            f"{name} on host {host.number}"
            for host in self._sim.hosts.values()
            if host.daemon is not None and host.connected
            for name in host.daemon.blobs
            if name.startswith("kept-")
        ]
        return [*calls, *waiting, *(f"a run of {each.name}" for each in running), *blobs]


def _give(payload: Payload, arguments: Arguments) -> None:
    if payload.blob is None:
        payload.args = Value(arguments.pickled())
    else:
        data = arguments.pickled()
        payload.blob = Blob(payload.blob.name, [data], len(data))


def _arguments(payload: Payload) -> bytes:
    return payload.args.data if payload.blob is None else b"".join(payload.blob.parts)
