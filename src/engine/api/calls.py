"""Pending calls: immutable objects with a function, its arguments and its options, which a pool can run.

`gather` groups calls, whose results are returned as a tuple, or one by one as they become ready. A `Job` is the
caller's handle of a submitted call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from ...lazy_dataclass import dataclass
from .errors import NotACall, PoolClosed, SpecError
from .pending_base import Pending, called_with, short, shown
from .signatures import Detached, detached

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .refs import Ref, SyncRef
    from .signatures import Streamed
    from .task_options import Options, TaskOptions


R_co = TypeVar("R_co", covariant=True)


class Job(Protocol[R_co]):
    """A submitted call. Awaiting it returns the result. The call runs even if nothing awaits the job.

    `asyncio.wait` accepts a job like an `asyncio.Future`.
    """

    def __await__(self) -> Generator[Any, None, R_co]: ...

    def cancel(self) -> bool:
        """End the task on its node, with its whole process tree. Return False if the job was over already."""
        ...

    def done(self) -> bool:
        """Return whether the job is over."""
        ...

    def result(self) -> R_co:
        """Return the result of a job that is done.

        Raises:
            asyncio.InvalidStateError: The job is not done.
        """
        ...

    def exception(self) -> BaseException | None:
        """Return the error of a job that is done; None if it returned."""
        ...

    def cancelled(self) -> bool:
        """Return whether the job was stopped before its end.

        For a stopped job, `result` raises `TaskStopped`, and `exception` returns it. If the job was stopped because the
        task that awaited it was cancelled, both raise `asyncio.CancelledError`, as for a future.
        """
        ...

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        """Call ``function`` with the job, on the pool's event loop, once the job is done."""
        ...

    def remove_done_callback(self, function: Callable[[Any], object], /) -> int:
        """Remove a function that `add_done_callback` has added. Return how many times it was registered."""
        ...


R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
As = TypeVarTuple("As")
Ss = TypeVarTuple("Ss")
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")


class Callee:
    """The base class of `@compute` functions, which `api.compute` defines. Pending calls need no more of a function."""

    __name__: str
    __qualname__: str
    shown: str  # the function's name in the text of a call; methods with their class
    function: Callable[..., Any]  # the user's function
    options: Options
    takes_self: bool  # True if the first argument is the object that callers write before the dot

    @property
    def streamed(self) -> dict[str, Streamed]:
        """The parameters whose arguments are streamed, by name."""
        raise NotImplementedError

    @property
    def plugins(self) -> tuple[Any, ...]:
        """The plugins of this function alone, each an `api.plugin.Plugin`."""
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __and__(self, _other: object) -> NoReturn:
            pending(self)


class AsyncVerbs:
    """The base class of `Pool`, with the methods that plugins use. `Pool` adds options to some of these methods."""

    async def run(self, call: Call[R], /, *, on: int | Literal["head"] | None = None) -> R:
        """Run a call on one node, and return its result."""
        raise NotImplementedError

    def submit(self, call: Call[R], /, *, on: int | Literal["head"] | None = None) -> Job[R]:
        """Submit a call as `run` does, without waiting."""
        raise NotImplementedError

    async def broadcast(self, call: Call[R], /) -> list[R]:
        """Run a call on every ready node at the same time."""
        raise NotImplementedError

    async def put(self, value: T, /) -> Ref[T]:
        """Copy a value into the pool."""
        raise NotImplementedError


class SyncVerbs:
    """The base class of `SyncPool`, whose methods wait."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PendingCall(Pending):
    """The immutable base class of all pending calls."""

    function: Callee
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options

    @property
    def name(self) -> str:
        return self.options.name or self.function.__name__

    def with_(self, **options: Unpack[TaskOptions]) -> Self:
        """Return a copy of the call with these options changed.

        Raises:
            SpecError: An option does not exist, or its value is not valid.
        """
        return type(self)(self.function, self.args, self.kwargs, self.options.changed(**options))

    def detach(self) -> Detached:
        """Return the call's arguments, with placeholders in place of streamed arguments (``Iterator[T]``, ...)."""
        if not self.function.streamed:
            return Detached(self.args, self.kwargs, ())
        callee = self.function
        setup = self.options.setup is not None
        return detached(callee.function, callee.streamed, self.args, self.kwargs, with_setup=setup)

    @property
    def code(self) -> str:
        return called_with(self.function.shown, self.args, self.kwargs)

    @property
    def code_here(self) -> str:
        return called_with(f"{self.function.shown}.local", self.args, self.kwargs)

    def _not_yet(self, here: str = "") -> str:
        return Pending._not_yet(self, here or f", or here with {self.code_here}")

    def __repr__(self) -> str:
        return f"<{self.code} has not run: {self.code} >> pool runs it on a node, {self.code_here} here>"


class Call(PendingCall, Generic[R_co]):
    """A pending call of a `@compute` function: ``await pool.run(call)``, or ``call >> pool``."""

    __slots__ = ()

    @overload
    def __rshift__(self, pool: AsyncVerbs, /) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __rshift__(self: Call[Ref[T]], pool: SyncVerbs, /) -> SyncRef[T]: ...
    @overload
    def __rshift__(self, pool: SyncVerbs, /) -> R_co: ...
    def __rshift__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Run the call on one node."""
        return _runner(self, ">>", pool).run(self)

    @overload
    def __matmul__(self, pool: AsyncVerbs, /) -> Coroutine[Any, Any, list[R_co]]: ...
    @overload
    def __matmul__(self: Call[Ref[T]], pool: SyncVerbs, /) -> list[SyncRef[T]]: ...
    @overload
    def __matmul__(self, pool: SyncVerbs, /) -> list[R_co]: ...
    def __matmul__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Run the call on every node, and return the results by rank."""
        return _runner(self, "@", pool).broadcast(self)

    @overload
    def __gt__(self, pool: AsyncVerbs, /) -> Job[R_co]: ...
    @overload
    def __gt__(self: Call[Ref[T]], pool: SyncVerbs, /) -> Future[SyncRef[T]]: ...
    @overload
    def __gt__(self, pool: SyncVerbs, /) -> Future[R_co]: ...
    def __gt__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Submit the call without waiting."""
        return _runner(self, ">", pool).submit(self)

    @overload
    def __and__(self, other: Call[T], /) -> Group[R_co, T]: ...
    @overload
    def __and__(
        self, other: StreamCall[T], /
    ) -> MixedGroup[tuple[R_co, AsyncGenerator[T, None]], tuple[R_co, Iterator[T]]]: ...
    @overload
    def __and__(self, other: Group[*Ts], /) -> Group[R_co, *Ts]: ...
    @overload
    def __and__(
        self, other: MixedGroup[tuple[*As], tuple[*Ss]], /
    ) -> MixedGroup[tuple[R_co, *As], tuple[R_co, *Ss]]: ...
    def __and__(self, other: Any, /) -> Any:
        """Return a group of this call and another call or group: ``(f(1) & g(2)) >> pool``."""
        return _joined(self, other)


class StreamCall(PendingCall, Generic[T]):
    """A pending call of a generator.

    Both ``pool.stream(call)`` and ``call >> pool`` iterate over the generator's values.
    """

    __slots__ = ()

    @overload
    def __matmul__(self, pool: AsyncVerbs, /) -> Coroutine[Any, Any, list[AsyncGenerator[T, None]]]: ...
    @overload
    def __matmul__(self, pool: SyncVerbs, /) -> list[Iterator[T]]: ...
    def __matmul__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Run the generator on every node, and return one iterator for each rank."""
        return _runner(self, "@", pool).broadcast(self)

    @overload
    def __and__(self, other: Call[B], /) -> MixedGroup[tuple[AsyncGenerator[T, None], B], tuple[Iterator[T], B]]: ...
    @overload
    def __and__(
        self, other: StreamCall[B], /
    ) -> MixedGroup[tuple[AsyncGenerator[T, None], AsyncGenerator[B, None]], tuple[Iterator[T], Iterator[B]]]: ...
    @overload
    def __and__(
        self, other: Group[*Ts], /
    ) -> MixedGroup[tuple[AsyncGenerator[T, None], *Ts], tuple[Iterator[T], *Ts]]: ...
    @overload
    def __and__(
        self, other: MixedGroup[tuple[*As], tuple[*Ss]], /
    ) -> MixedGroup[tuple[AsyncGenerator[T, None], *As], tuple[Iterator[T], *Ss]]: ...
    def __and__(self, other: Any, /) -> Any:
        """Return a group of this call and another call or group. The group's result for a generator is an iterator."""
        return _joined(self, other)

    @overload
    def __rshift__(self, pool: AsyncVerbs, /) -> AsyncIterator[T]: ...
    @overload
    def __rshift__(self, pool: SyncVerbs, /) -> Iterator[T]: ...
    def __rshift__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Run the generator on one node, and iterate over its values."""
        return _runner(self, ">>", pool).stream(self)

    def _awaited(self) -> str:
        return f"pool.stream({self.code})"

    if not TYPE_CHECKING:

        def __gt__(self, _pool: object) -> NoReturn:
            raise NotACall(
                f"{self.code} is a generator's call, which is streamed: {self.code} >> pool, or on a node of your "
                "choice pool.stream(..., on=rank)"
            )


AnyCall = Call[Any] | StreamCall[Any]
PENDING = TypeVar("PENDING", bound=AnyCall)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupedCalls(Pending, Generic[T]):
    calls: tuple[AnyCall, ...]

    @property
    def code(self) -> str:
        return f"({' & '.join(call.code for call in self.calls)})"

    if not TYPE_CHECKING:

        def __matmul__(self, _pool: object) -> NoReturn:
            raise NotACall(f"{self.code} is a group, which runs each call once: broadcast the calls one by one")


class Group(GroupedCalls[Any], Generic[*Ts]):
    """Calls that run together. The result is a tuple of their results, in the order of the calls."""

    __slots__ = ()

    @overload
    def __rshift__(self, pool: AsyncVerbs, /) -> Coroutine[Any, Any, tuple[*Ts]]: ...
    @overload
    def __rshift__(self, pool: SyncVerbs, /) -> tuple[*Ts]: ...
    def __rshift__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Run all calls."""
        return _runner(self, ">>", pool).run_group(self)

    @overload
    def __gt__(self, pool: AsyncVerbs, /) -> Job[tuple[*Ts]]: ...
    @overload
    def __gt__(self, pool: SyncVerbs, /) -> Future[tuple[*Ts]]: ...
    def __gt__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Submit all calls without waiting."""
        return _runner(self, ">", pool).submit_group(self)

    @overload
    def __and__(self, other: Call[T], /) -> Group[*Ts, T]: ...
    @overload
    def __and__(
        self, other: StreamCall[T], /
    ) -> MixedGroup[tuple[*Ts, AsyncGenerator[T, None]], tuple[*Ts, Iterator[T]]]: ...
    @overload
    def __and__(self, other: Group[*tuple[Any, ...]], /) -> Group[*tuple[Any, ...]]: ...
    @overload
    def __and__(self, other: MixedGroup[Any, Any], /) -> MixedGroup[Any, Any]: ...
    def __and__(self, other: Any, /) -> Any:
        return _joined(self, other)


class MixedGroup(GroupedCalls[Any], Generic[A, S]):
    """A `Group` that contains calls of generators. The result of a generator's call is an iterator over its values.

    The first type parameter is the type of the result in a `Pool`, where the iterators are asynchronous; the second is
    the type in a `SyncPool`.
    """

    __slots__ = ()

    @overload
    def __rshift__(self, pool: AsyncVerbs, /) -> Coroutine[Any, Any, A]: ...
    @overload
    def __rshift__(self, pool: SyncVerbs, /) -> S: ...
    def __rshift__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Run all calls."""
        return _runner(self, ">>", pool).run_group(self)

    @overload
    def __gt__(self, pool: AsyncVerbs, /) -> Job[A]: ...
    @overload
    def __gt__(self, pool: SyncVerbs, /) -> Future[S]: ...
    def __gt__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Submit all calls without waiting."""
        return _runner(self, ">", pool).submit_group(self)

    @overload
    def __and__(
        self: MixedGroup[tuple[*As], tuple[*Ss]], other: Call[T], /
    ) -> MixedGroup[tuple[*As, T], tuple[*Ss, T]]: ...
    @overload
    def __and__(
        self: MixedGroup[tuple[*As], tuple[*Ss]], other: StreamCall[T], /
    ) -> MixedGroup[tuple[*As, AsyncGenerator[T, None]], tuple[*Ss, Iterator[T]]]: ...
    @overload
    def __and__(self, other: Group[*tuple[Any, ...]] | MixedGroup[Any, Any], /) -> MixedGroup[Any, Any]: ...
    def __and__(self, other: Any, /) -> Any:
        return _joined(self, other)


class GroupStream(GroupedCalls[T]):
    """Calls that run together, whose results are iterated over as they become ready."""

    __slots__ = ()

    @overload
    def __rshift__(self, pool: AsyncVerbs, /) -> AsyncIterator[T]: ...
    @overload
    def __rshift__(self, pool: SyncVerbs, /) -> Iterator[T]: ...
    def __rshift__(self, pool: AsyncVerbs | SyncVerbs, /) -> Any:
        """Run all calls, and iterate over the results in the order in which they are ready."""
        return _runner(self, ">>", pool).stream_group(self)


def grouped(calls: tuple[AnyCall, ...]) -> Group[*tuple[Any, ...]] | MixedGroup[Any, Any]:
    return (MixedGroup if any(isinstance(each, StreamCall) for each in calls) else Group)(calls)


def pending(value: object) -> Call[Any]:
    """Return ``value`` if it is a pending call with a single result; otherwise raise an error that explains the fix."""
    if isinstance(value, Call):
        return value
    if isinstance(value, StreamCall):
        raise NotACall(f"{value.code} yields values one by one: use pool.stream({value.code})")
    if isinstance(value, GroupedCalls):
        raise NotACall(f"{value.code} is a group of calls: use {value.code} >> pool")
    if isinstance(value, Callee):
        name = value.__name__
        raise NotACall(f"{name} is a @compute function that was not called: write {name}(...), with its arguments")
    if isinstance(value, Coroutine):
        name = getattr(value, "__name__", "f")
        value.close()
        raise NotACall(f"{name}(...) is a coroutine, not a pending call: decorate {name} with @compute")
    if isinstance(value, Generator | AsyncGenerator):
        name = getattr(value, "__name__", "f")
        raise NotACall(f"{name}(...) is a generator, not a pending call: decorate {name} with @compute")
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        raise NotACall(f"{name} is a plain function: decorate it with @compute and write {name}(...)")
    raise NotACall(
        f"{short.repr(value)} is not a pending call. A function that was decorated with @compute gives one when called"
    )


def members(group: object) -> tuple[AnyCall, ...]:
    """Return the calls of a group; if ``group`` is something else, raise an error that explains the fix."""
    if isinstance(group, GroupedCalls):
        return group.calls
    raise NotACall(
        f"{shown(group)} is no group of calls, as (f(1) & g(2)) is: for others, write pool.gather(f(1), g(2))"
    )


def any_pending(value: object) -> AnyCall:
    """Return ``value`` if it is a pending call (also of a generator); otherwise raise an error with the fix."""
    return value if isinstance(value, StreamCall) else pending(value)


def for_every_rank(call: PENDING) -> PENDING:
    """Return ``call`` if all ranks of a broadcast can run it.

    Raise an error if the call has a streamed argument, because only one task can consume a streamed argument.
    """
    if call.detach().inputs:
        raise SpecError(
            f"{call.code} streams an argument, which one task alone can consume. For a broadcast, annotate the "
            "parameter as Sequence[...] and give it a list, of which each rank takes its part with shard(...)."
        )
    return call


# --- helpers --------------------------------------------------------------------------------------------------------


def _runner(call: Pending, operator: str, pool: Any) -> Any:
    unusable = getattr(pool, "unusable", None)
    if unusable is None or isinstance(pool, type):
        raise NotACall(f"{call.code} {operator} ... takes an open pool on the right, not {shown(pool)}")
    if unusable:
        raise PoolClosed(unusable)
    pool.check_thread()
    return pool


def _joined(first: AnyCall | GroupedCalls[Any], other: object) -> Group[*tuple[Any, ...]] | MixedGroup[Any, Any]:
    """Return the group for the expression ``first & other``."""
    calls = first.calls if isinstance(first, GroupedCalls) else (first,)
    return grouped((*calls, *_members(first, other)))


def _members(first: Pending, other: object) -> tuple[AnyCall, ...]:
    if isinstance(other, Group | MixedGroup):
        return other.calls
    if isinstance(other, Call | StreamCall):
        return (other,)
    if isinstance(other, Callee):
        pending(other)
    if isinstance(other, Coroutine):
        other.close()
    raise NotACall(
        f"{first.code} & ... takes a pending call on the right, not {shown(other)}. "
        "Python binds >> and @ tighter than &: write (f(1) & g(2)) >> pool"
    )


C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


@overload
def gather(a: Call[A], /, *, stream: Literal[False] = False) -> Group[A]: ...
@overload
def gather(a: Call[A], b: Call[B], /, *, stream: Literal[False] = False) -> Group[A, B]: ...
@overload
def gather(a: Call[A], b: Call[B], c: Call[C], /, *, stream: Literal[False] = False) -> Group[A, B, C]: ...
@overload
def gather(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], /, *, stream: Literal[False] = False
) -> Group[A, B, C, D]: ...
@overload
def gather(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], e: Call[E], /, *, stream: Literal[False] = False
) -> Group[A, B, C, D, E]: ...
@overload
def gather(*calls: Call[T], stream: Literal[False] = False) -> Group[*tuple[T, ...]]: ...
@overload
def gather(*calls: Call[T], stream: Literal[True]) -> GroupStream[T]: ...
@overload
def gather(
    a: StreamCall[A], b: Call[B], /, *, stream: Literal[False] = False
) -> MixedGroup[tuple[AsyncGenerator[A, None], B], tuple[Iterator[A], B]]: ...
@overload
def gather(
    a: Call[A], b: StreamCall[B], /, *, stream: Literal[False] = False
) -> MixedGroup[tuple[A, AsyncGenerator[B, None]], tuple[A, Iterator[B]]]: ...
@overload
def gather(
    a: StreamCall[A], b: StreamCall[B], /, *, stream: Literal[False] = False
) -> MixedGroup[tuple[AsyncGenerator[A, None], AsyncGenerator[B, None]], tuple[Iterator[A], Iterator[B]]]: ...
@overload
def gather(
    *calls: StreamCall[T], stream: Literal[False] = False
) -> MixedGroup[tuple[AsyncGenerator[T, None], ...], tuple[Iterator[T], ...]]: ...
@overload
def gather(*calls: AnyCall, stream: Literal[False] = False) -> Group[*tuple[Any, ...]] | MixedGroup[Any, Any]: ...
def gather(*calls: AnyCall, stream: bool = False) -> Any:
    """Group calls to run together: ``gather(f(1), g(2)) >> pool``.

    Args:
        calls: Pending calls.
        stream: False: the result is a tuple in the order of the calls, with an iterator for each generator. True: the
            result is an iteration over the results as they become ready; generators are not allowed.
    """
    if not calls:
        raise NotACall("gather() takes at least one pending call: gather(f(1), g(2))")
    for each in calls:
        if stream and isinstance(each, StreamCall):
            raise NotACall(
                f"gather(..., stream=True) gives each call's one result when it is ready, and {each.code} has many: "
                "leave out stream=True, and its place has an iterator"
            )
        any_pending(each)
    return GroupStream(calls) if stream else grouped(calls)
