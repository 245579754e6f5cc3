"""Submission of jobs to an open pool: calls are packed, sent to the pool's actor, cancelled, and refused after the
pool's end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ...actors.interfaces import Ending, GaveUp, JobId, NodeId, OnLoss, RankWatch, Reason, Settled, Verdict
from ...actors.kernel import ActorStopped
from ...actors.messages import Broadcast, Cancel, LeaveRank, Resize, Submit
from ...lazy_named_tuple import NamedTuple
from ...providers.shared.threads import in_thread
from ..api.calls import Call, pending
from ..api.errors import PoolClosed
from ..api.settings import placement
from ..objects.pool_objects import Objects
from ..objects.remaking import Remaking
from ..serialization.packer import Packer
from ..serialization.payload import AT_ONCE_BYTES
from ..wire.messages import RunFlag
from .jobs import AnswerPolling, BroadcastJob, SubmittedJob, as_settled, broadcast_of, task_of

if TYPE_CHECKING:
    from ...actors.kernel import Ref
    from ..api.calls import AnyCall
    from ..api.plugin import Plugin
    from ..api.settings import Settings
    from ..api.snapshot import PoolSnapshot
    from ..api.task_options import Options
    from ..serialization.payload import Blob
    from ..serialization.task_payload import Payload
    from ..transport.connection import Connector
    from ..wire.importable import ImportableModules
    from . import jobs
    from .observer import Observer


class PackedCall(NamedTuple):
    """A packed call, ready to submit. ``on``: the rank of its node, as in `pool.run`."""

    payload: Payload
    options: Options
    on: int | None


def most_nodes(settings: Settings) -> int:
    """Return the largest number of nodes that the pool may have by its settings, before any resize."""
    return settings.nodes.max or settings.nodes.desired


class JobIntake:
    """The base class of `OpenPool`, which adds opening and closing. Accepts jobs while the pool's actor runs."""

    # `engine.pool` gets these names from an open pool, so that their modules are imported only when a pool opens
    Job, BroadcastJob, as_settled = (
        SubmittedJob,
        BroadcastJob,
        staticmethod(as_settled),
    )
    KEEP = int(RunFlag.KEEP)
    connector: Connector  # set when the provider is open; before that, no call can be packed

    def __init__(self, settings: Settings, observer: Observer) -> None:
        self.settings, self.observer = settings, observer
        self.most = most_nodes(settings)
        self.loop = asyncio.get_running_loop()
        self.polling = AnswerPolling(self.loop, observer.unfinished)
        if settings.traces:
            from .traced_packer import TracedPacker

            observer.traces = traces = observer.sinks.traces()
            make: Callable[..., Packer] = partial(TracedPacker, traces)
        else:
            make = Packer
        self.remaking = Remaking(self)
        self.objects = objects = Objects(lambda: self.packer, self._drop, self.remaking.recompute_lost)
        plugins, kind = settings.plugins, settings.worker.kind
        self._packer = make(plugins, kind, drop=self._drop, forget=self._forget, objects=objects)
        self._ref: Ref[Any] | None = None  # the pool's actor; None: it does not accept jobs
        self._failure: BaseException | None = None  # the error that ended the pool
        self.profile_until = 0.0  # `time.monotonic` at the end of the profile in progress
        self._ids = itertools.count(1)

    @property
    def takes_jobs(self) -> bool:
        return self._ref is not None

    def new_job(self) -> JobId:
        return JobId(next(self._ids))

    def explained(self, ending: Ending) -> Ending:
        """Return how a call has ended. If the pool's end has ended the call, add the reason for the pool's end."""
        return ending

    def keep_result(self, payload: Payload) -> None:
        """Keep the result of a call on its node; the results of a broadcast stay on the nodes of their ranks."""
        payload.keep = self.objects
        payload.flags |= self.KEEP

    def pack(
        self, call: AnyCall, on: int | Literal["head"] | None = None, *, keep: bool = False, owned: bool = False
    ) -> PackedCall:
        """Pickle a call. ``owned``: copy its large buffers now, which blocks the event loop."""
        packable = call if type(call) is Call else pending(call)
        rank = placement(on, most=self.most)
        payload = self.packer.pack(packable)
        if owned:
            self._packer.own(payload)
        if keep or packable.options.keep:
            self.keep_result(payload)
        return PackedCall(payload, packable.options, rank)

    async def own(self, payload: Payload) -> None:
        """Copy a call's large buffers in a thread. The caller must not change them before this returns.

        Raises:
            MemoryError
        """
        if payload.borrowed_bytes <= AT_ONCE_BYTES:
            self._packer.own(payload)
            return
        try:
            await in_thread(payload.own, abandon=True)
        except BaseException:
            self.release(payload)
            raise

    def begin(self, packed: PackedCall) -> SubmittedJob[Any]:
        """Submit a packed call as a job."""
        job: SubmittedJob[Any] = SubmittedJob(self, packed.payload, packed.options)
        self.submit(job, packed.on, job)
        return job

    def submit(self, job: SubmittedJob[Any], on: int | None, settle: Callable[[Ending], None]) -> None:
        payload = job.payload
        if payload.keep is not None:
            settle = self.remaking.remembering(payload, job.options, on, settle)
        try:
            if payload.objects:
                self.hand_over(job, on, settle)
            else:
                self.tell(Submit(task_of(job.id, payload, job.options, on), settle))
        except PoolClosed:
            job.refused()
            raise

    def hand_over(self, job: SubmittedJob[Any], on: int | None, settle: Callable[[Ending], None]) -> None:
        """Send a job to the pool's actor when the objects in its arguments are available."""

        def send(settle: Callable[[Ending], None]) -> None:
            self.tell(Submit(task_of(job.id, job.payload, job.options, on), settle))

        self.remaking.submit(job.id, job.payload.objects, send, settle)

    async def run_again(
        self, payload: Payload, options: Options, on: int | None, *, started: Callable[[JobId], object]
    ) -> tuple[JobId, Settled]:
        """Implement `objects.remaking.CallRunner`: run the call of a lost result again, and keep its new result."""
        self.keep_result(payload)
        job: SubmittedJob[Any] = self.Job(self, payload, options)
        started(job.id)
        try:
            self.hand_over(job, on, job)
        except PoolClosed:
            job.refused()
            raise
        try:
            await job.future
        except asyncio.CancelledError:
            job.cancel()
            raise
        ending = job.ending
        if type(ending) is not Settled or ending.verdict is not Verdict.RETURNED:
            job.result()  # raises the error of the call
        return job.id, ending

    def broadcast(self, job: jobs.BroadcastJob[Any], plugins: Sequence[Plugin], watch: RankWatch | None = None) -> None:
        """Submit a broadcast. ``plugins``: the plugins of the called function; their errors are raised here."""
        if any(plugin.fresh_ranks for plugin in plugins):
            job.payload.flags |= RunFlag.FRESH
        on_loss, nodes = self.settings.on_loss, self.connector.facts
        try:
            failed = partial(self.observer.rank_failed, job.id, job.payload.name)
            spec = broadcast_of(
                job.id, job.payload, job.options, plugins, on_loss=on_loss, nodes=nodes, failed=failed, watch=watch
            )
            if spec.on_loss is OnLoss.RESTART:
                self.connector.checkpoints.expect(job.id)
            self.remaking.submit(
                job.id,
                job.payload.objects,
                lambda _: self.tell(Broadcast(spec, job.settle_all)),
                lambda ending: job.settle_all((ending,), 0),
            )
        except BaseException:
            job.refused()
            raise

    def broadcast_over(self, job: JobId) -> None:
        self.connector.checkpoints.over(job)

    def cancel(self, job: JobId) -> None:
        if self._ref is not None and not self.remaking.cancel(job):
            with suppress(ActorStopped):  # the actor has stopped, so the job has ended already
                self._ref.tell(Cancel(job))

    def expire(self, job: JobId, deadline_s: float) -> None:
        """End a job that is not done ``deadline_s`` seconds after its submission."""
        where = "a kept result that it was given was being made again"
        ending = GaveUp(Reason.DEADLINE, why=where, limit_s=deadline_s)
        if self._ref is not None and not self.remaking.cancel(job, ending):
            with suppress(ActorStopped):
                self._ref.tell(Cancel(job, Reason.DEADLINE, deadline_s))

    def leave_rank(self, job: JobId, rank: int) -> None:
        if self._ref is not None:
            with suppress(ActorStopped):
                self._ref.tell(LeaveRank(job, rank))

    def map_slots(self) -> int:
        """Return the number of slots that a map should keep busy with its items.

        For a pool that scales by load, this includes the slots of nodes that the pool would add for the items.
        """
        most = self.most * self.settings.worker.concurrency if self.settings.nodes.scale else 0
        return max(self.observer.slots(), most)

    def resize(self, count: int) -> None:
        self.most = max(self.most, count)
        self.tell(Resize(count))

    def tell(self, message: Any) -> None:
        """Send a message to the pool's actor.

        Raises:
            PoolClosed
        """
        if self._ref is None:
            raise self._gone()
        try:
            self._ref.tell_inline(message)
        except ActorStopped:  # the actor has failed, and the report of its end has not arrived yet
            raise self._gone() from None

    def _gone(self) -> PoolClosed:
        if self._failure is not None:
            error = PoolClosed(f"The pool failed ({self._failure}) and has ended: open another one.")
            error.__cause__ = self._failure
            return error
        return PoolClosed("The pool is not open: use it inside `async with Pool(...) as pool`.")

    @property
    def packer(self) -> Packer:
        """The packer, which pickles calls into payloads.

        Raises:
            PoolClosed
        """
        if self._ref is None:
            raise self._gone()
        return self._packer

    @property
    def node_modules(self) -> ImportableModules | None:
        """The modules that the nodes can import; None: the same modules as this program."""
        return self._packer.node_modules

    def release(self, payload: Payload) -> None:
        """Release the resources of the packed call of a job that is over, whether or not the pool is still open."""
        self._packer.release(payload)

    def set_outer_plugins(self, plugins: Sequence[Plugin]) -> None:
        self._packer.set_outer_plugins(plugins)

    def with_traffic(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Return the snapshot of the pool's state, with the bytes sent to and received from each node added."""
        connector = getattr(self, "connector", None)
        if connector is None:  # the provider is still being opened
            return snapshot
        links = {link.node: link for link in connector.links}
        return replace(
            snapshot,
            nodes=tuple(
                replace(state, sent_bytes=link.sent_bytes, received_bytes=link.received_bytes)
                if (link := links.get(NodeId(state.node))) is not None
                else state
                for state in snapshot.nodes
            ),
        )

    def _drop(self, blob: Blob) -> None:
        self.connector.drop(blob)

    def _forget(self, digest: bytes) -> None:
        self.connector.forget(digest)
