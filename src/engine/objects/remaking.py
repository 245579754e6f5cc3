"""Recomputation of kept results: if a needed result is lost with its node, the call that computed it runs again.

A kept result stays on the node that computed it (``keep=True``). `lineage` decides which calls are remembered and which
may run again; `Remaking` carries that out. A job with a lost result in its arguments waits here (`WaitingJob`), not in
the pool's queue or in a slot, so that the call that recomputes the result can use a pool's only slot.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...actors.events import Observe, RemakeStarted, TaskGaveUp
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
    from .pool_objects import Objects

Settle = Callable[[Ending], None]  # receives the ending of a job
Send = Callable[[Settle], None]  # sends a job to the pool's actor

OF_RANK = "it is the result of a broadcast's rank, which cannot run alone"
FORGOTTEN = "its call is not remembered any more, as those of later results took the room"


class CallRunner(Protocol):
    """The open pool, as recomputation uses it: `JobIntake`."""

    loop: asyncio.AbstractEventLoop
    objects: Objects

    @property
    def observer(self) -> Observe: ...

    async def run_again(
        self, payload: Payload, options: Options, on: int | None, *, started: Callable[[JobId], object]
    ) -> tuple[JobId, Settled]:
        """Run a call as a new job, and return the job with its ending if the call returned.

        Cancelling this cancels the job. ``started`` is called before the job is sent.

        Raises:
            PoolClosed
            Exception: the error of the call, if it did not return.
        """
        ...


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
    on: int | None  # rank of the call's node; None: any node
    sources: tuple[Origin | Argument, ...]
    node: NodeId  # the node that computed the result last
    result: weakref.ref[StoredObject]

    @property
    def producer(self) -> str:
        return _producer(self.function, self.node)

    def lost_result(self) -> Whereabouts:
        """Return the `Whereabouts` of the result when it is lost: no node has it."""
        return Whereabouts(self.name, None, 0, producer=self.producer)


class Run:
    """The current repeated run of a remembered call. It is cancelled when no job waits for its result any more."""

    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task, self.waiters = task, 0


class Remaking:
    """The remembered calls of a pool's kept results, and their recomputation.

    Not thread-safe: only the thread of the pool's loop may use it.
    """

    def __init__(self, pool: CallRunner) -> None:
        self.lineage = Lineage()
        self.waiting: dict[JobId, WaitingJob] = {}
        self._pool = pool
        self._runs: dict[Origin, Run] = {}

    @property
    def observer(self) -> Observe:
        return self._pool.observer

    # --- jobs -----------------------------------------------------------------------------------------------------

    def submit(self, job: JobId, objects: Sequence[StoredObject], send: Send, settle: Settle) -> None:
        """Send a job to the pool's actor, by ``send``, when the objects in its arguments are available.

        Raises:
            PoolClosed
        """
        WaitingJob(self, job, objects, send, settle).send_or_wait()

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

    # --- remembered calls -----------------------------------------------------------------------------------------

    def remembering(self, payload: Payload, options: Options, on: int | None, settle: Settle) -> Settle:
        """Return a callback for the job's ending.

        It remembers the job's call if the result stays on its node, and then calls ``settle``.
        """

        def settle_and_remember(ending: Ending) -> None:
            if type(ending) is Settled and isinstance(ending.outcome, StoredObject):
                self._remember(ending.outcome, ending.node, payload, options, on)
            settle(ending)

        return settle_and_remember

    def _remember(self, result: StoredObject, node: NodeId, payload: Payload, options: Options, on: int | None) -> None:
        if why_not := _why_never_again(payload, options):
            result.not_again = why_not
            return
        if payload.blob is not None and not payload.blob.keep():
            result.not_again = "its arguments were too large to be remembered"
            return
        sources = tuple(_source_of(argument) for argument in payload.objects)
        own = copy.copy(payload)
        own.objects = ()
        call = RememberedCall(result.name, own.name, own, options, on, sources, node, weakref.ref(result))
        size_bytes = len(own.args.data) + (0 if own.blob is None else own.blob.kept_bytes)
        origins = [source for source in sources if isinstance(source, Origin)]
        origin = Origin(call, size_bytes, options.retries, origins, references=0)
        self._attach(result, origin)
        self.lineage.remember(origin)
        self._release_forgotten()

    def _attach(self, result: StoredObject, origin: Origin) -> None:
        """Make ``result`` the result of ``origin``, which counts as a reference until ``result`` is freed."""
        _call_of(origin).result = weakref.ref(result)
        result.origin = origin
        self.lineage.refer(origin)
        weakref.finalize(result, self._detach_soon, origin).atexit = False

    def _detach_soon(self, origin: Origin) -> None:
        """Count one reference less, in the loop's thread. Any thread may call this."""
        with suppress(RuntimeError):  # the loop has ended
            self._pool.loop.call_soon_threadsafe(self._detach, origin)

    def _detach(self, origin: Origin) -> None:
        self.lineage.let_go(origin)
        self._release_forgotten()

    def _release_forgotten(self) -> None:
        """Free the arguments of calls that `lineage` has forgotten."""
        forgotten, self.lineage.forgotten = self.lineage.forgotten, []
        for origin in forgotten:
            call: Any = origin.call
            if call.payload.blob is not None:
                call.payload.blob.let_go()
            call.payload, call.sources, origin.sources = None, (), ()

    # --- recomputation of lost results ----------------------------------------------------------------------------

    async def recompute_lost(self, objects: Iterable[StoredObject]) -> None:
        """Recompute the lost objects, and return when none is lost. Cancelling one waiter does not affect the others.

        Raises:
            NodeLost: one of the objects cannot be recomputed.
            PoolClosed
        """
        lost = [stored for stored in objects if stored.at.lost]
        if len(lost) == 1:
            await self._recompute(lost[0])
        elif lost:
            tasks = [asyncio.ensure_future(self._recompute(stored)) for stored in lost]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in tasks:  # awaited in order, so that the first of several losses is raised
                    if task.done():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                    task.add_done_callback(_retrieve_error)

    async def _recompute(self, stored: StoredObject) -> None:
        """Recompute one object: start a run of its call, or wait for the run that another job has started."""
        while stored.at.lost:
            origin = stored.origin
            if origin is None:
                raise _not_remade(stored.at, stored.not_again or OF_RANK)
            self.lineage.lost(origin)
            match self.lineage.need(origin):
                case Need.RUN:
                    run = self._runs[origin] = Run(asyncio.ensure_future(self._run(origin)))
                    run.task.add_done_callback(_retrieve_error)
                    await self._wait_for(run, origin)
                case Need.WAIT:
                    await self._wait_for(self._runs[origin], origin)
                case Need.GIVE_UP:
                    often = f"it was made again as often as its retries= allow: {origin.again}"
                    raise _not_remade(stored.at, often if origin.remembered else FORGOTTEN)
                case Need.NOTHING:
                    raise AssertionError("it is lost")

    async def _wait_for(self, run: Run, origin: Origin) -> None:
        """Wait for the end of a run. If the last waiter is cancelled, cancel the run.

        Raises:
            Exception: the error of the run.
        """
        run.waiters += 1
        try:
            # unlike `await`, `asyncio.wait` does not cancel the task with its waiter: there may be other waiters
            await asyncio.wait([run.task])
        finally:
            run.waiters -= 1
            if not run.waiters and not run.task.done():
                run.task.cancel()
                del self._runs[origin]
                self.lineage.called_off(origin)
                self._release_forgotten()
        error = None if run.task.cancelled() else run.task.exception()
        if error is not None:
            another = copy.copy(error)  # a copy, so that each waiter has its own traceback
            another.__cause__ = error.__cause__
            raise another

    async def _run(self, origin: Origin) -> None:
        """Run a call again, and put its result in place of the lost one."""
        call = _call_of(origin)
        try:
            remade, node = await self._compute(origin, call)
        except Exception:
            del self._runs[origin]
            self.lineage.failed(origin)
            self._release_forgotten()
            raise
        del self._runs[origin]
        if (result := call.result()) is not None:
            _replace(result, remade)
        call.node = node
        self.lineage.restored(origin)
        self._release_forgotten()

    async def _compute(self, origin: Origin, call: RememberedCall) -> tuple[StoredObject, NodeId]:
        """Run a call again. Return its new result, with the node that has computed it.

        Raises:
            NodeLost: the call has failed, or one of its arguments cannot be recomputed.
            PoolClosed
        """
        payload = copy.copy(call.payload)

        def report(job: JobId) -> None:
            times = origin.again, origin.again + origin.left
            self.observer(RemakeStarted(job, int(call.node), payload.name, *times))

        try:
            payload.objects = tuple(self._object_of(source) for source in call.sources)
            job, ending = await self._pool.run_again(payload, call.options, call.on, started=report)
        except PoolClosed:
            raise
        except Exception as error:
            reason = f"could not be made again: {sentence(error)}"
            raise _node_lost(call.lost_result(), reason, payload.name) from error
        if isinstance(ending.outcome, StoredObject):
            return ending.outcome, ending.node
        small = cast("Received", ending.outcome)
        return self._pool.objects.keep(_sendable(small, call, job, ending.node)), ending.node

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
        call = _call_of(source)
        if (stored := call.result()) is None:
            stored = self._pool.objects.keep(call.lost_result())
            self._attach(stored, source)
        return stored


class WaitingJob:
    """A job with objects in its arguments.

    Either the pool's actor has the job, or the job waits here while an object is recomputed. The actor calls this
    object when the job has ended.
    """

    __slots__ = ("_job", "_objects", "_remaking", "_send", "_sent", "_settle", "_task", "_whereabouts")

    def __init__(
        self, remaking: Remaking, job: JobId, objects: Sequence[StoredObject], send: Send, settle: Settle
    ) -> None:
        self._remaking, self._job, self._objects = remaking, job, objects
        self._send, self._settle = send, settle
        self._whereabouts: list[Whereabouts] = []  # where the objects were when the job was sent
        self._sent = False
        self._task: asyncio.Task[None] | None = None

    def send_or_wait(self) -> None:
        """Send the job to the pool's actor if no object is lost; otherwise wait for the lost objects first."""
        if any(stored.at.lost for stored in self._objects):
            self._wait()
            return
        self._whereabouts = [stored.at for stored in self._objects]
        self._send(self)
        self._sent = True

    def __call__(self, ending: Ending) -> None:
        """End the job; if it was not sent to its node because an object was lost, wait for that object again."""
        if type(ending) is Settled and ending.verdict is Verdict.UNSENT and self._is_worth_a_wait():
            self._wait()
        else:
            self._end(ending)

    def give_up(self, ending: GaveUp) -> None:
        """Stop waiting for lost objects, and end the job with ``ending``."""
        self._remaking.waiting.pop(self._job, None)
        observe = self._remaking.observer
        if self._sent and observe.tasks and observe.wants(self._job):
            observe(TaskGaveUp(self._job, TaskId(self._job), ending.reason.value))
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._end(ending)

    def _is_worth_a_wait(self) -> bool:
        """Return whether an object is lost, or was recomputed since the job was sent."""
        sent = zip(self._objects, self._whereabouts, strict=True)
        return any(stored.at.lost or stored.at is not at for stored, at in sent)

    def _wait(self) -> None:
        self._remaking.waiting[self._job] = self
        self._task = asyncio.ensure_future(self._send_when_available())

    async def _send_when_available(self) -> None:
        try:
            await self._remaking.recompute_lost(self._objects)
            self._remaking.waiting.pop(self._job, None)
            self.send_or_wait()
        except PoolClosed:
            self.give_up(GaveUp(Reason.CLOSED))
        except Exception as error:  # noqa: BLE001  the job ends with the error
            self.give_up(GaveUp(Reason.LOST, failure=error))

    def _end(self, ending: Ending) -> None:
        # drop the references, so that objects that no other job needs are freed
        self._objects, self._whereabouts = (), []
        self._settle(ending)


def _call_of(origin: Origin) -> RememberedCall:
    return cast("RememberedCall", origin.call)


def _source_of(argument: StoredObject) -> Origin | Argument:
    """Return the call that can recompute an argument of a remembered call, or a weak reference to the argument."""
    if argument.origin is None:
        return Argument(weakref.ref(argument), argument.at.producer)
    return cast("Origin", argument.origin)


def _why_never_again(payload: Payload, options: Options) -> str:
    """Return why a call may not run again; empty: it may."""
    if payload.inputs or payload.shared:
        return "its call had streamed arguments, which are gone"
    if options.at_most_once:
        return 'its function may not run twice (retry="never")'
    return "" if options.retries else "its function may not run again after a loss (retries=0)"


def _replace(result: StoredObject, remade: StoredObject) -> None:
    """Let ``result`` have the bytes of ``remade``; other nodes drop their copies of the lost bytes."""
    before = result.at
    for home, name in before.copies:
        home.forget(name)
    before.copies.clear()
    result.is_now(remade)


def _sendable(received: Received, call: RememberedCall, job: JobId, node: NodeId) -> Whereabouts:
    """Return the small result of a repeated run as an object that can be sent to nodes, as the first result was."""
    name, size_bytes = f"{call.name}-{job}", len(received.data)
    blob = Blob(name, [received.data], size_bytes)
    sizes = received.sizes or (size_bytes,)
    return Whereabouts(name, sizes, size_bytes, blob=blob, producer=_producer(call.function, node))


def _producer(function: str, node: NodeId) -> str:
    return f"{function} on node {node}"


def _not_remade(at: Whereabouts, why: str) -> NodeLost:
    return _node_lost(at, f"is not made again, as {why}. Run that again.")


def _node_lost(at: Whereabouts, reason: str, task: str = "") -> NodeLost:
    story = f"{at.story[0].upper()}{at.story[1:]}"
    return NodeLost(f"{story}, and {reason}", task=task or at.producer.partition(" on node ")[0])


def _retrieve_error(task: asyncio.Future[Any]) -> None:
    """Retrieve an error: asyncio would log it if all waiting jobs were cancelled."""
    if not task.cancelled():
        task.exception()
