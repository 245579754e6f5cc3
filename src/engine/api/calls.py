"""Pending calls: what to run and how, immutable and typed, waiting for a pool to say where."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from .errors import NotACall, SpecError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..pool import Pool
    from ..sync import SyncPool
    from .compute import Decorated, Options, Streamed, TaskOptions

R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
Ts = TypeVarTuple("Ts")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


class Job(Protocol[R_co]):
    """A submitted call. Awaiting it gives the result; it runs whether or not anybody waits."""

    def __await__(self) -> Generator[Any, None, R_co]: ...

    def cancel(self) -> bool:
        """End the task on its node, with its whole process tree. False: it was over already."""
        ...

    def done(self) -> bool: ...

    def result(self) -> R_co:
        """The result of a job that is done.

        Raises:
            asyncio.InvalidStateError: it is not.
        """
        ...


# --- pending calls --------------------------------------------------------------------------------------------------


class Detached(NamedTuple):
    """A call's arguments as they travel: ``inputs`` are taken out and replaced by placeholders, in this order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Iterable[Any] | AsyncIterable[Any], ...]


class Pending:
    """The base of what waits for a pool: it is no result and has no truth value."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise _not_yet(self)

    if not TYPE_CHECKING:  # to a checker these do not exist, which is its way of saying the same

        def __await__(self) -> NoReturn:
            raise _not_yet(self)

        def __iter__(self) -> NoReturn:
            raise _not_yet(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PendingCall(Pending):
    """The base of every pending call, which is immutable."""

    function: Decorated[...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options

    @property
    def name(self) -> str:
        return self.options.name or self.function.__name__

    def with_(self, **options: Unpack[TaskOptions]) -> Self:
        """Return the same call with these options changed.

        Raises:
            SpecError: an option that does not exist or cannot mean anything.
        """
        return type(self)(self.function, self.args, self.kwargs, self.options.changed(**options))

    def detach(self) -> Detached:
        """The arguments, with those of streamed parameters (``Iterator[T]``, ...) taken out."""
        return _detach(self) if self.function.streamed else Detached(self.args, self.kwargs, ())

    def __repr__(self) -> str:
        arguments = [short.repr(each) for each in self.args]
        arguments += [f"{name}={short.repr(each)}" for name, each in self.kwargs.items()]
        return f"{self.function.__name__}({', '.join(arguments)})"


class Call(PendingCall, Generic[R_co]):
    """A call of a `@compute` function that has not run: ``await pool.run(call)``, or ``call >> pool``."""

    __slots__ = ()

    @overload
    def __rshift__(self, pool: Pool, /) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __rshift__(self, pool: SyncPool, /) -> R_co: ...
    def __rshift__(self, pool: Pool | SyncPool, /) -> Any:
        """Run it on one node."""
        return _runner(self, ">>", pool).run(self)

    @overload
    def __matmul__(self, pool: Pool, /) -> Coroutine[Any, Any, list[R_co]]: ...
    @overload
    def __matmul__(self, pool: SyncPool, /) -> list[R_co]: ...
    def __matmul__(self, pool: Pool | SyncPool, /) -> Any:
        """Run it on every node: the results by rank."""
        return _runner(self, "@", pool).broadcast(self)

    @overload
    def __gt__(self, pool: Pool, /) -> Job[R_co]: ...
    @overload
    def __gt__(self, pool: SyncPool, /) -> Future[R_co]: ...
    def __gt__(self, pool: Pool | SyncPool, /) -> Any:
        """Submit it, and go on."""
        return _runner(self, ">", pool).submit(self)

    @overload
    def __and__(self, other: Call[T], /) -> Group[R_co, T]: ...
    @overload
    def __and__(self, other: Group[*Ts], /) -> Group[R_co, *Ts]: ...
    def __and__(self, other: Call[Any] | Group[*tuple[Any, ...]], /) -> Any:
        """Group two calls, or a call and a group: ``(f(1) & g(2)) >> pool``."""
        return Group((self, *_members(self, other)))


class StreamCall(PendingCall, Generic[T]):
    """A pending call of a generator: ``pool.stream(call)``, or ``call >> pool``, gives its values as they are made."""

    __slots__ = ()

    @overload
    def __rshift__(self, pool: Pool, /) -> AsyncIterator[T]: ...
    @overload
    def __rshift__(self, pool: SyncPool, /) -> Iterator[T]: ...
    def __rshift__(self, pool: Pool | SyncPool, /) -> Any:
        """Run it on one node, and iterate over what it yields."""
        return _runner(self, ">>", pool).stream(self)

    if not TYPE_CHECKING:

        def _only_streams(self, _other: object) -> NoReturn:
            raise NotACall(f"{self!r} is a generator's call, which can only be streamed: {self!r} >> pool")

        __matmul__ = __gt__ = __and__ = _only_streams


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupedCalls(Pending, Generic[T]):
    calls: tuple[Call[Any], ...]

    def __repr__(self) -> str:
        return f"({' & '.join(map(repr, self.calls))})"


class Group(GroupedCalls[Any], Generic[*Ts]):
    """Calls that run together and give a tuple of their results, in this order."""

    __slots__ = ()

    @overload
    def __rshift__(self, pool: Pool, /) -> Coroutine[Any, Any, tuple[*Ts]]: ...
    @overload
    def __rshift__(self, pool: SyncPool, /) -> tuple[*Ts]: ...
    def __rshift__(self, pool: Pool | SyncPool, /) -> Any:
        """Run them all."""
        return _runner(self, ">>", pool).run_group(self)

    @overload
    def __gt__(self, pool: Pool, /) -> Job[tuple[*Ts]]: ...
    @overload
    def __gt__(self, pool: SyncPool, /) -> Future[tuple[*Ts]]: ...
    def __gt__(self, pool: Pool | SyncPool, /) -> Any:
        """Submit them all, and go on."""
        return _runner(self, ">", pool).submit_group(self)

    @overload
    def __and__(self, other: Call[T], /) -> Group[*Ts, T]: ...
    @overload
    def __and__(self, other: Group[*tuple[Any, ...]], /) -> Group[*tuple[Any, ...]]: ...
    def __and__(self, other: Call[Any] | Group[*tuple[Any, ...]], /) -> Any:
        return Group((*self.calls, *_members(self, other)))

    if not TYPE_CHECKING:

        def __matmul__(self, _pool: object) -> NoReturn:
            raise NotACall(f"{self!r} is a group, which runs each call once: broadcast the calls one by one")


class GroupStream(GroupedCalls[T]):
    """Calls that run together and whose results are iterated over as they come."""

    __slots__ = ()

    @overload
    def __rshift__(self, pool: Pool, /) -> AsyncIterator[T]: ...
    @overload
    def __rshift__(self, pool: SyncPool, /) -> Iterator[T]: ...
    def __rshift__(self, pool: Pool | SyncPool, /) -> Any:
        """Run them all, and iterate over the results in the order in which they are ready."""
        return _runner(self, ">>", pool).stream_group(self)


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
def gather(*calls: Call[Any], stream: bool = False) -> Any:
    """Group calls that are to run together: ``gather(f(1), g(2)) >> pool``.

    The results come as a tuple in the calls' order; with ``stream=True`` one by one, as they are ready.
    """
    if not calls:
        raise NotACall("gather() takes at least one pending call: gather(f(1), g(2))")
    for each in calls:
        pending(each)
    return GroupStream(calls) if stream else Group(calls)


class Callee:
    """The base of `@compute` functions, by which this module knows them. See `api.compute`."""

    __name__: str


def pending(value: object) -> Call[Any]:
    """Return ``value``, if it is a pending call with one result; otherwise the error names the fix."""
    if isinstance(value, Call):
        return value
    if isinstance(value, StreamCall):
        raise NotACall(f"{value!r} yields values one by one: use pool.stream({value!r})")
    if isinstance(value, GroupedCalls):
        raise NotACall(f"{value!r} is a group of calls: use {value!r} >> pool")
    if isinstance(value, Callee):
        name = value.__name__
        raise NotACall(f"{name} is a @compute function that was not called: write {name}(...), with its arguments")
    if isinstance(value, Coroutine):
        name = getattr(value, "__name__", "f")
        value.close()
        raise NotACall(f"{name}(...) is a coroutine, not a pending call: decorate {name} with @compute")
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        raise NotACall(f"{name} is a plain function: decorate it with @compute and write {name}(...)")
    raise NotACall(
        f"{short.repr(value)} is not a pending call. A function that was decorated with @compute gives one when called"
    )


def for_every_rank(call: Call[R]) -> Call[R]:
    """Return ``call``, if all of a broadcast's ranks can run it: none can that streams an argument."""
    if call.detach().inputs:
        raise SpecError(
            f"{call!r} streams an argument, which one task alone can consume. For a broadcast, annotate the parameter "
            "as Sequence[...] and give it a list, of which each rank takes its part with shard(...)."
        )
    return call


# --- helpers --------------------------------------------------------------------------------------------------------


def _detach(call: PendingCall) -> Detached:
    """Replace streamed arguments by placeholders, over which the task iterates instead."""
    from ..node.context import AsyncInput, Input

    inputs: list[Iterable[Any] | AsyncIterable[Any]] = []

    def placed(argument: Any, how: Streamed) -> Any:
        if not how.takes(argument):
            return argument
        inputs.append(argument)
        return (AsyncInput if how.asynchronous else Input)(len(inputs) - 1)

    given_there = () if call.options.setup is None else (None,)  # what the setup makes
    bound = inspect.signature(call.function.function).bind(*given_there, *call.args, **call.kwargs)
    for name, how in call.function.streamed.items():
        if name not in bound.arguments:
            continue
        match bound.signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(placed(each, how) for each in bound.arguments[name])
            case inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: placed(each, how) for key, each in bound.arguments[name].items()}
            case _:
                bound.arguments[name] = placed(bound.arguments[name], how)
    return Detached(bound.args[len(given_there) :], bound.kwargs, tuple(inputs))


def _runner(call: Pending, operator: str, pool: Any) -> Any:
    if isinstance(pool, type) or not hasattr(pool, "run_group"):
        raise NotACall(f"{call!r} {operator} ... takes an open pool on the right, not {short.repr(pool)}")
    return pool


def _members(first: object, other: object) -> tuple[Call[Any], ...]:
    if isinstance(other, Group):
        return other.calls
    if isinstance(other, Call):
        return (other,)
    if isinstance(other, Coroutine):
        other.close()
    raise NotACall(
        f"{first!r} & ... takes a pending call on the right, not {short.repr(other)}. "
        "Python binds >> and @ tighter than &: write (f(1) & g(2)) >> pool"
    )


def _not_yet(call: object) -> NotACall:
    run = f"pool.stream({call!r})" if isinstance(call, StreamCall) else f"await ({call!r} >> pool)"
    return NotACall(
        f"{call!r} is a pending call, not a result: run it with {run}, or here with .local(...). "
        "(Comparisons chain in Python: give a > pool parentheses of its own.)"
    )


short = reprlib.Repr()
short.maxstring = short.maxother = 60
