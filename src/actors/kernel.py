"""The actors of a pool: an actor has a mailbox, handles one message at a time, and supervises its children.

An actor owns its state and handles one message at a time in ``receive``, which is synchronous: it cannot wait, so it
cannot ask another actor and wait for the answer. Slow work runs in the actor's task group (``Context.tasks``) and sends
its result back as a message. Other code holds a `Ref`, with methods such as ``tell`` and ``ask``. An actor that fails
is not restarted: its state would be gone. Every waiting caller gets the actor's error, and `running` raises the error
wherever in the tree of actors it occurs, so escalation needs no code.

A message whose sender expects an answer has a method ``bounce(error)``, which is called if no actor will ever handle
the message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint

from ..lazy_dataclass import dataclass

try:
    import sniffio
except ImportError:  # without sniffio, anyio finds the running event loop in another way
    sniffio = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")

# number of messages to handle before the event loop runs again, so that connections can write; takes about half a
# millisecond
BATCH = 128


class ActorStopped(Exception):
    """The error that the actor will never handle this message. ``args[0]`` is the actor's name, also in `MailboxFull`
    and `ActorFailed`.
    """


class MailboxFull(Exception):
    """The mailbox is full: the sender is faster than the actor."""


class ActorFailed(Exception):
    """The actor has failed; ``__cause__`` is its error."""


class Reply(Generic[R]):
    """The slot for the answer to a `Request`. It travels inside the request and can be written once."""

    __slots__ = ("_done", "_error", "_value")

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._value: R | None = None
        self._error: Exception | None = None

    def send(self, value: R) -> None:
        if not self._done.is_set():
            self._value = value
            self._done.set()

    def fail(self, error: Exception) -> None:
        if not self._done.is_set():
            self._error = error
            self._done.set()

    async def wait(self) -> R:
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return cast("R", self._value)


@dataclass(frozen=True, slots=True)
class Request(Generic[R]):
    """A message whose sender waits for an answer. Must be created inside a running event loop."""

    reply: Reply[R] = field(default_factory=Reply, kw_only=True, compare=False, repr=False)

    def bounce(self, error: Exception) -> None:
        self.reply.fail(error)


class Actor(Protocol[M_contra]):
    def receive(self, message: M_contra, /) -> None: ...

    def stopped(self, error: Exception | None, /) -> None:
        """Clean up after the actor has failed with ``error``, or was stopped (``error`` is None). The actor's ``tasks``
        have ended by then.
        """


class Ref(Generic[M]):
    """A reference to an actor, and the only way to reach it. Not thread-safe: use it in the actor's event loop."""

    __slots__ = (
        *("_actor", "_capacity", "_failure", "_idle", "_pending", "_queue", "_rests"),
        *("_stopped", "_variables", "_wake", "name"),
    )

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self._queue: deque[M] = deque()
        self._capacity = capacity
        self._idle = False  # whether the actor's task sleeps and no message has woken it
        # True while the actor handles no message, neither in its own task nor in the stack of a ``tell_inline`` caller
        self._rests = False
        self._stopped = False
        self._wake = anyio.Event()
        # set from the first time that the actor waits for messages until the actor's end
        self._actor: Actor[M] | None = None
        # the error that the actor raised while ``tell_inline`` ran it; the actor's own task raises it again
        self._failure: BaseException | None = None
        self._pending: set[Reply[object]] = set()
        self._variables = copy_context()  # the context in which ``tell_inline`` runs the actor; `_serve` sets it

    def tell(self, message: M) -> None:
        """Queue ``message`` and return at once.

        Raises:
            ActorStopped: the actor is gone.
            MailboxFull: the actor is too far behind.
        """
        if self._stopped:
            raise ActorStopped(self.name)
        queue = self._queue
        if len(queue) >= self._capacity:
            raise MailboxFull(self.name)
        queue.append(message)
        if self._idle:
            self._idle = False
            self._wake.set()

    def tell_inline(self, message: M) -> None:
        """Do as ``tell``; but if the actor is idle, run the actor's ``receive`` before this returns, in the caller's
        stack.

        This saves two iterations of the event loop for every task. Messages stay in order and are handled one at a
        time: unread messages before ``message``, and messages that arrive during the call after it. If the actor is
        busy, or has many unread messages, ``message`` is queued. If the actor fails, its own task raises the error, as
        always. Actors must not call this: their own ``receive`` has not returned yet.
        docs/decisions/0001-synchronous-receive.md describes the costs.

        Raises:
            ActorStopped, MailboxFull: as ``tell``.
        """
        actor, queue = self._actor, self._queue
        if not self._rests or actor is None or len(queue) >= BATCH:
            self.tell(message)
            return
        self._idle = self._rests = False
        try:
            if queue:
                queue.append(message)
                for _ in range(len(queue)):
                    message = queue.popleft()
                    self._variables.run(actor.receive, message)
            else:
                self._variables.run(actor.receive, message)
        except BaseException as error:  # noqa: BLE001 (raised again, in the actor's own task)
            _bounce(message, error if isinstance(error, Exception) else ActorStopped(self.name))
            self._failure = error
            self._wake.set()
            return
        self._rests = True
        if queue:
            self._wake.set()
        else:
            self._idle = True

    async def ask(self, request: Request[R], *, within_s: float | None = None) -> R:
        """Queue ``request`` and wait for the answer. Cancelling ends the wait, but not the requested work.

        Raises:
            ActorStopped, MailboxFull: as ``tell``.
            TimeoutError: no answer came within ``within_s`` seconds.
            Exception: the actor's own failure, if it failed before it answered.
        """
        reply = cast("Reply[object]", request.reply)
        self.tell(cast("M", request))
        self._pending.add(reply)
        try:
            with anyio.fail_after(within_s):
                return await request.reply.wait()
        finally:
            self._pending.discard(reply)

    def _end(self, failure: Exception | None) -> None:
        """Call ``bounce`` of each queued message, and fail the requests that the actor has not answered."""
        self._stopped = True
        stopped = ActorStopped(self.name)
        while self._queue:
            _bounce(self._queue.popleft(), stopped)
        for reply in self._pending:
            reply.fail(failure or stopped)


@dataclass(frozen=True, slots=True)
class Context(Generic[M]):
    """The `Ref` and the task groups that an actor gets when it is made.

    Slow work sends its results to the `Ref`; the task groups run slow work and children.
    """

    ref: Ref[M]
    # runs slow work, which ends before ``Actor.stopped`` is called; an error in it makes the actor fail
    tasks: TaskGroup
    # runs supervised tasks, which are cancelled only after ``Actor.stopped``, as they may take seconds to end
    children: TaskGroup


@asynccontextmanager
async def running(name: str, make: Callable[[Context[M]], Actor[M]], *, capacity: int = 1024) -> AsyncIterator[Ref[M]]:
    """Run the actor that ``make`` returns. Leaving the ``async with`` block stops the actor and its ``children``."""
    ref: Ref[M] = Ref(name, capacity)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run, ref, make, tasks, name=name)
        try:
            yield ref
        finally:
            tasks.cancel_scope.cancel()


async def _run(ref: Ref[M], make: Callable[[Context[M]], Actor[M]], children: TaskGroup) -> None:
    actor: Actor[M] | None = None
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            actor = make(Context(ref, tasks, children))
            await _serve(ref, actor)
    except Exception as error:  # noqa: BLE001 (raised again, with the actor's name)
        failure = sole(error)
        raise ActorFailed(ref.name) from failure
    finally:
        ref._idle, ref._rests, ref._actor, ref._failure = False, False, None, None
        try:
            if actor is not None:
                actor.stopped(failure)
        finally:
            ref._end(failure)


async def _serve(ref: Ref[M], actor: Actor[M]) -> None:
    queue = ref._queue
    ref._variables = _own_variables()
    while True:
        for _ in range(min(len(queue), BATCH)):
            message = queue.popleft()
            try:
                actor.receive(message)
            except BaseException as error:  # whatever error ends the actor, the sender of the message gets this error
                _bounce(message, error if isinstance(error, Exception) else ActorStopped(ref.name))
                raise
        if queue:
            await checkpoint()
            continue
        ref._wake = wake = anyio.Event()
        ref._idle, ref._rests, ref._actor = True, True, actor
        await wake.wait()
        ref._idle = ref._rests = False
        if ref._failure is not None:
            failure, ref._failure = ref._failure, None
            raise failure


def _own_variables() -> Variables:
    """Return a copy of the context variables in which anyio finds the event loop even within a callback of the loop.

    ``tell_inline`` may run the actor in such a callback, where there is no current task. If sniffio is installed, anyio
    uses it, and sniffio needs a current task unless this variable is set.
    """
    variables = copy_context()
    if sniffio is not None:
        variables.run(sniffio.current_async_library_cvar.set, sniffio.current_async_library())
    return variables


def sole(error: Exception) -> Exception:
    """Return the only exception inside nested groups that have one exception each; otherwise return the group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _bounce(message: object, error: Exception) -> None:
    bounce = getattr(message, "bounce", None)
    if bounce is not None:
        bounce(error)
