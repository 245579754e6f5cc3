"""Recomputation of kept results: if a needed result is lost with its node, the call that computed it runs again.

`lineage` decides which calls are remembered and which may run again. A job with a lost result in its arguments waits in
this module, not in the pool's queue or in a slot, so that the call that recomputes the result can use a pool's only
slot.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ...actors.events import RemakeStarted, TaskGaveUp
from ...actors.interfaces import Ending, GaveUp, JobId, NodeId, Reason, Settled, TaskId, Verdict
from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..api.errors import NodeLost, PoolClosed
from ..api.printable import sentence
from ..serialization.payload import Blob, Received
from ..serialization.stored_objects import StoredObject, Whereabouts
from ..serialization.task_payload import Payload
from .lineage import Lineage, Need, Origin

if TYPE_CHECKING:
    from ..api.task_options import Options
    from ..client.jobs import JobOwner, SubmittedJob

# sends a job to the pool's actor, with the callback for the job's end
Send = Callable[[Callable[[Ending], None]], None]

RANK = "it is the result of a broadcast's rank, which cannot run alone"
LATER = "its call is not remembered any more, as those of later results took the room"


class Argument(NamedTuple):
    """An object in the arguments of a remembered call. The object itself cannot be recomputed."""

    stored: weakref.ref[StoredObject]
    made_by: str  # the function that returned the object; empty: the object is from `Pool.put`


@dataclass(slots=True, eq=False)
class RememberedCall:
    """The packed call of a kept result, without the objects that its arguments refer to."""

    name: str  # name of the result, by which the pickled arguments of other calls refer to it
    function: str  # the function's name, for messages
    payload: Payload
    options: Options
    on: int | None
    sources: tuple[Origin | Argument, ...]
    node: NodeId  # the node that computed the result last
    result: weakref.ref[StoredObject]


class Run:
    """The current repeated run of a remembered call. It is cancelled when no job waits for its result any more."""

    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task, self.waiting = task, 0


class Remaking:
    """The remembered calls of a pool's kept results, and their recomputation.

    Not thread-safe: only the thread of the pool's loop may use it.
    """

    def __init__(self, core: JobOwner) -> None:
        self.lineage = Lineage()
        self.waiting: dict[JobId, Waiting] = {}
        self._core = core
        self._runs: dict[Origin, Run] = {}

    # --- remembering calls ----------------------------------------------------------------------------------------

    def remembering(
        self, job: SubmittedJob[Any], on: int | None, settle: Callable[[Ending], None]
    ) -> Callable[[Ending], None]:
        """Return a ``settle`` callback that also remembers the job's call, if the result stays on its node."""

        def settled(ending: Ending) -> None:
            if type(ending) is Settled and isinstance(ending.outcome, StoredObject):
                self._remember(ending.outcome, ending.node, job.payload, job.options, on)
            settle(ending)

        return settled

    def _remember(self, stored: StoredObject, node: NodeId, payload: Payload, options: Options, on: int | None) -> None:
        if why_not := _forbidden(payload, options):
            stored.not_again = why_not
            return
        if payload.blob is not None and not payload.blob.keep():
            stored.not_again = "its arguments were too large to be remembered"
            return
        sources = tuple(_source(each) for each in payload.objects)
        own = copy.copy(payload)
        own.objects = ()
        call = RememberedCall(stored.name, own.name, own, options, on, sources, node, weakref.ref(stored))
        size_bytes = len(own.args.data) + (0 if own.blob is None else own.blob.kept_bytes)
        origins = [each for each in sources if isinstance(each, Origin)]
        origin = Origin(call, size_bytes, options.retries, origins, references=0)
        self._refers(stored, origin)
        self.lineage.remember(origin)
        self._forget()

    def _refers(self, stored: StoredObject, origin: Origin) -> None:
        call: Any = origin.call
        stored.origin, call.result = origin, weakref.ref(stored)
        self.lineage.refer(origin)
        weakref.finalize(stored, self._let_go_soon, origin).atexit = False

    def _let_go_soon(self, origin: Origin) -> None:
        """Count one reference less, in the loop's thread. Any thread may call this."""
        with suppress(RuntimeError):  # the loop has ended
            self._core.loop.call_soon_threadsafe(self._let_go, origin)

    def _let_go(self, origin: Origin) -> None:
        self.lineage.let_go(origin)
        self._forget()

    def _forget(self) -> None:
        forgotten, self.lineage.forgotten = self.lineage.forgotten, []
        for origin in forgotten:
            call: Any = origin.call
            if call.payload.blob is not None:
                call.payload.blob.let_go()
            call.payload, call.sources, origin.sources = None, (), ()

    # --- recomputing lost results ---------------------------------------------------------------------------------

    def submit(self, job: JobId, objects: Sequence[StoredObject], send: Send, settle: Callable[[Ending], None]) -> None:
        """Send a job to the pool's actor, by ``send``, when the objects in its arguments are available.

        Raises:
            PoolClosed
        """
        Waiting(self, job, objects, send, settle).begin()

    def cancel(self, job: JobId, ending: GaveUp | None = None) -> bool:
        """End a job that waits for a lost object. Return False if the job does not wait.

        ``ending``: how the job ends; None: as cancelled.
        """
        waiting = self.waiting.get(job)
        if waiting is None:
            return False
        waiting.give_up(ending or GaveUp(Reason.CANCELLED))
        return True

    def close(self) -> None:
        """End all waiting jobs, because the pool has ended."""
        for waiting in [*self.waiting.values()]:
            waiting.give_up(GaveUp(Reason.CLOSED))

    async def have(self, objects: Iterable[StoredObject]) -> None:
        """Recompute the lost objects, and return when none is lost. Cancelling one waiter does not affect the others.

        Raises:
            NodeLost: one of the objects cannot be recomputed.
            PoolClosed
        """
        lost = [each for each in objects if each.at.lost]
        if len(lost) == 1:
            await self._have(lost[0])
        elif lost:
            each_of_them = [asyncio.ensure_future(self._have(each)) for each in lost]
            try:
                await asyncio.wait(each_of_them, return_when=asyncio.FIRST_EXCEPTION)
                for task in each_of_them:  # awaited in order, so that the first of several losses is raised
                    if task.done():
                        task.result()
            finally:
                for task in each_of_them:
                    task.cancel()
                    task.add_done_callback(_seen)

    async def _have(self, stored: StoredObject) -> None:
        while stored.at.lost:
            origin = stored.origin
            if origin is None:
                raise _lost(stored.at, f"is not made again, as {stored.not_again or RANK}. Run that again.")
            self.lineage.lost(origin)
            match self.lineage.need(origin):
                case Need.RUN:
                    run = self._runs[origin] = Run(asyncio.ensure_future(self._run(origin)))
                    run.task.add_done_callback(_seen)
                    await self._until_over(origin, run)
                case Need.WAIT:
                    await self._until_over(origin, self._runs[origin])
                case Need.GIVE_UP:
                    often = f"it was made again as often as its retries= allow: {origin.again}"
                    why = often if origin.remembered else LATER
                    raise _lost(stored.at, f"is not made again, as {why}. Run that again.")
                case Need.NOTHING:
                    raise AssertionError("it is lost")

    async def _until_over(self, origin: Origin, run: Run) -> None:
        run.waiting += 1
        try:
            # unlike `await`, `asyncio.wait` does not cancel the task with its waiter: there may be other waiters
            await asyncio.wait([run.task])
        finally:
            run.waiting -= 1
            if not run.waiting and not run.task.done():
                run.task.cancel()
                del self._runs[origin]
                self.lineage.called_off(origin)
                self._forget()
        error = None if run.task.cancelled() else run.task.exception()
        if error is not None:
            another = copy.copy(error)  # a copy, so that each waiter has its own traceback
            another.__cause__ = error.__cause__
            raise another

    async def _run(self, origin: Origin) -> None:
        """Run a call again, and put its result in place of the lost one."""
        call: Any = origin.call
        try:
            remade, node = await self._remake(origin, call)
        except Exception:
            del self._runs[origin]
            self.lineage.failed(origin)
            self._forget()
            raise
        del self._runs[origin]
        if (stored := call.result()) is not None:
            before = stored.at
            for home, name in before.copies:
                home.forget(name)
            before.copies.clear()
            stored.is_now(remade)
        call.node = node
        self.lineage.restored(origin)
        self._forget()

    async def _remake(self, origin: Origin, call: RememberedCall) -> tuple[StoredObject, NodeId]:
        core, payload = self._core, copy.copy(call.payload)
        try:
            payload.objects = tuple(self._object_of(each) for each in call.sources)
            core.keep_result(payload)
            job: SubmittedJob[Any] = core.Job(core, payload, call.options)
            times = origin.again, origin.again + origin.left
            core.observer(RemakeStarted(job.id, int(call.node), payload.name, *times))
            try:
                core.hand_over(job, call.on, job)
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
                job.result()
        except PoolClosed:
            raise
        except Exception as error:
            story = f"could not be made again: {sentence(error)}"
            raise _lost(_at(call), story, payload.name) from error
        outcome = ending.outcome
        if isinstance(outcome, StoredObject):
            return outcome, ending.node
        small = cast("Received", outcome)
        return core.objects.keep(_as_object(small, call, job.id, ending.node)), ending.node

    def _object_of(self, source: Origin | Argument) -> StoredObject:
        """Return an object in a call's arguments, which may be lost.

        Raises:
            NodeLost: the object was freed, and cannot be recomputed.
        """
        if isinstance(source, Argument):
            if (stored := source.stored()) is not None:
                return stored
            what = f"what {source.made_by} has returned" if source.made_by else "a value that was put"
            raise NodeLost(f"{what}, which its call was given, is not there any more: keep its Ref for as long")
        call: Any = source.call
        if (stored := call.result()) is None:
            stored = self._core.objects.keep(_at(call))
            self._refers(stored, source)
        return stored


class Waiting:
    """A job with objects in its arguments.

    Either the pool's actor has the job, or the job waits here while an object is recomputed.
    """

    __slots__ = ("_job", "_objects", "_remaking", "_send", "_sent", "_settle", "_task", "_whereabouts")

    def __init__(
        self,
        remaking: Remaking,
        job: JobId,
        objects: Sequence[StoredObject],
        send: Send,
        settle: Callable[[Ending], None],
    ) -> None:
        self._remaking, self._job, self._objects = remaking, job, objects
        self._send, self._settle = send, settle
        self._whereabouts: list[Whereabouts] = []  # where the objects were when the job was sent
        self._sent = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if any(each.at.lost for each in self._objects):
            self._wait()
            return
        self._whereabouts = [each.at for each in self._objects]
        self._send(self)
        self._sent = True

    def __call__(self, ending: Ending) -> None:
        """Settle the job; if it was not sent to its node because an object was lost, wait for that object again."""
        if type(ending) is Settled and ending.verdict is Verdict.UNSENT and self._may_have_all():
            self._wait()
        else:
            self._over(ending)

    def _over(self, ending: Ending) -> None:
        # drop the references, so that objects that no other job needs are freed
        self._objects, self._whereabouts = (), []
        self._settle(ending)

    def _may_have_all(self) -> bool:
        """Return whether waiting can help: an object is lost, or was recomputed since the job was sent."""
        return any(each.at.lost or each.at is not at for each, at in zip(self._objects, self._whereabouts, strict=True))

    def _wait(self) -> None:
        self._remaking.waiting[self._job] = self
        self._task = asyncio.ensure_future(self._until_there())

    async def _until_there(self) -> None:
        try:
            await self._remaking.have(self._objects)
            self._remaking.waiting.pop(self._job, None)
            self.begin()
        except PoolClosed:
            self.give_up(GaveUp(Reason.CLOSED))
        except Exception as error:  # noqa: BLE001  whoever waits for the job is told
            self.give_up(GaveUp(Reason.LOST, failure=error))

    def give_up(self, ending: GaveUp) -> None:
        """Stop waiting for lost objects, and end the job with ``ending``."""
        self._remaking.waiting.pop(self._job, None)
        observe = self._remaking._core.observer
        if self._sent and observe.tasks and observe.wants(self._job):
            observe(TaskGaveUp(self._job, TaskId(self._job), ending.reason.value))
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._over(ending)


def _forbidden(payload: Payload, options: Options) -> str:
    """Return why a call may not run again; empty: it may."""
    if payload.inputs or payload.shared:
        return "its call had streamed arguments, which are gone"
    if options.at_most_once:
        return 'its function may not run twice (retry="never")'
    return "" if options.retries else "its function may not run again after a loss (retries=0)"


def _source(stored: StoredObject) -> Origin | Argument:
    return Argument(weakref.ref(stored), stored.at.producer) if stored.origin is None else stored.origin


def _at(call: RememberedCall) -> Whereabouts:
    """Return the record of where a result is, for a result that is on no node yet."""
    return Whereabouts(call.name, None, 0, producer=_producer(call, call.node))


def _producer(call: RememberedCall, node: NodeId) -> str:
    return f"{call.function} on node {node}"


def _as_object(received: Received, call: RememberedCall, job: JobId, node: NodeId) -> Whereabouts:
    """Return the small result of a repeated run as an object that can be sent to nodes, as the first result was."""
    name, size_bytes = f"{call.name}-{job}", len(received.data)
    blob = Blob(name, [received.data], size_bytes)
    return Whereabouts(name, received.sizes or (size_bytes,), size_bytes, blob=blob, producer=_producer(call, node))


def _lost(at: Whereabouts, so: str, task: str = "") -> NodeLost:
    story = f"{at.story[0].upper()}{at.story[1:]}"
    return NodeLost(f"{story}, and {so}", task=task or at.producer.partition(" on node ")[0])


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
