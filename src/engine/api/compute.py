"""`@compute` turns a user's function into one that pools can run; calling it makes a pending call."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from ..serialization import pickling
from .calls import (
    AsyncRunner,
    Call,
    Callee,
    Detached,
    Group,
    GroupStream,
    Job,
    StreamCall,
    SyncRunner,
    gather,
    pending,
    short,
)
from .errors import NotACall, SpecError
from .settings import Options, TaskOptions
from .signature import Kind, Streamed, argument_check, kind_of, streamed_parameters

if TYPE_CHECKING:
    from .plugin import Plugin

__all__ = [
    "AsyncCompute",
    "AsyncRunner",
    "AsyncStreamCompute",
    "Call",
    "Compute",
    "Detached",
    "Group",
    "GroupStream",
    "Job",
    "StreamCall",
    "StreamCompute",
    "SyncCompute",
    "SyncRunner",
    "SyncStreamCompute",
    "compute",
    "gather",
    "pending",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PLUGINS = "__outrider_plugins__"  # set on a function by `integrations`


class Decorated(Callee, Generic[P]):
    """A `@compute` function: the user's ``function`` with its options."""

    function: Callable[..., Any]
    options: Options
    __qualname__: str

    def __new__(cls, *made_of: Any, **_options: Any) -> Self:
        if not made_of:  # `Compute(provider=...)` is a pool in other libraries
            raise SpecError(f"{cls.__name__} is what @compute makes of a function; a pool is Pool(provider=..., ...).")
        return object.__new__(cls)

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options
        functools.update_wrapper(self, function, updated=())  # type: ignore[arg-type]
        if not hasattr(self, "__name__"):
            self.__name__ = self.__qualname__ = type(function).__name__
        self._check = argument_check(function)

    def with_(self, **options: Unpack[TaskOptions]) -> Self:
        """The same function with these options changed.

        Raises:
            SpecError: an option does not exist, or its value is not valid.
        """
        return self._like(self.function, self.options.changed(**options))

    def wrapped(self, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Self:
        """The same with ``wrapper`` around the function, as if it had been put below `@compute`."""
        return self._like(wrapper(self.function), self.options)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins that `integrations` put on the function."""
        return getattr(self.function, PLUGINS, ())

    @functools.cached_property
    def streamed(self) -> dict[str, Streamed]:
        """The parameters whose arguments are streamed while the function runs."""
        return streamed_parameters(self.function)

    def _like(self, function: Callable[..., Any], options: Options) -> Self:
        other = copy.copy(self)
        other.__dict__.pop("streamed", None)
        Decorated.__init__(other, function, options)
        return other

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        if pickling.has_name(self):
            return _by_name, (self.__module__, self.__qualname__, self.options.given())
        return _by_value, (self.function, self.options.given())

    def __repr__(self) -> str:
        return f"<compute {self.__qualname__}>"


class Compute(Decorated[P], Generic[P, R]):
    """A function that pools can run; calling it makes a pending call."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        self._check(*args, **kwargs)
        return Call(self, args, kwargs, self.options)


class SyncCompute(Compute[P, R]):
    """A `Compute` made from a ``def`` function."""

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, as if it were not decorated."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncCompute(Compute[P, R]):
    """A `Compute` made from an ``async def`` function."""

    def local(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the coroutine function here, as if it were not decorated."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class StreamCompute(Decorated[P], Generic[P, T]):
    """A generator that pools can run; calling it makes a pending call."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> StreamCall[T]:
        self._check(*args, **kwargs)
        return StreamCall(self, args, kwargs, self.options)


class SyncStreamCompute(StreamCompute[P, T]):
    """A `StreamCompute` made from a ``def`` function that yields."""

    def local(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        """Run the generator here, as if it were not decorated."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncStreamCompute(StreamCompute[P, T]):
    """A `StreamCompute` made from an ``async def`` function that yields."""

    def local(self, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """Run the async generator here, as if it were not decorated."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class ComputeDecorator(Protocol):
    """The decorator that `compute` returns for options."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncCompute[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> AsyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Iterator[T]], /) -> SyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncCompute[P, R]: ...


@overload
def compute(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncCompute[P, R]: ...  # type: ignore[overload-overlap]
@overload
def compute(function: Callable[P, AsyncIterator[T]], /) -> AsyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
@overload
def compute(function: Callable[P, Iterator[T]], /) -> SyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
@overload
def compute(function: Callable[P, R], /) -> SyncCompute[P, R]: ...
@overload
def compute(**options: Unpack[TaskOptions]) -> ComputeDecorator: ...
def compute(function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
    """Make a function one that pools can run: calling it makes a pending call instead of running it.

    Bare, or with options: ``timeout`` (of running) and ``queue_timeout`` (of waiting) in seconds or as a timedelta,
    ``retries`` (further attempts when a node is lost: 3), ``retry="never"`` (at most one attempt), ``max_restarts``
    (further attempts when the function raises or its process dies, in a broadcast on any rank: 0), ``on_loss``
    ("auto", "restart", "resend", "fail": what a broadcast does when it loses a rank), ``name`` (shown instead of the
    function's).

    ``def``, ``async def`` and generators of both kinds work. A parameter annotated ``Iterator[T]`` or
    ``AsyncIterator[T]`` is fed item by item from the iterable given for it, and one annotated ``Iterable[T]`` or
    ``AsyncIterable[T]`` where an iterator is given. Such calls, and generators, are never retried, whatever ``retries``
    and ``max_restarts`` say: items that were consumed or seen cannot be taken back.

    Raises:
        SpecError: an option does not exist, or its value is not valid.
    """
    chosen = Options.of(**options)
    if function is None:
        return functools.partial(_decorate, options=chosen)
    return _decorate(function, chosen)


_CLASSES: dict[Kind, type[Decorated[...]]] = {
    Kind.VALUE: SyncCompute,
    Kind.COROUTINE: AsyncCompute,
    Kind.ITERATOR: SyncStreamCompute,
    Kind.ASYNC_ITERATOR: AsyncStreamCompute,
}


def _decorate(function: Callable[..., Any], options: Options) -> Decorated[...]:
    if isinstance(function, Decorated):
        raise NotACall(f"{function.__name__} has @compute already: change its options with .with_(...)")
    if not callable(function) or isinstance(function, type):
        raise NotACall(f"@compute goes on a function, not on {short.repr(function)}; options are given by name")
    return _CLASSES[kind_of(function)](function, options)


def _by_name(module: str, qualname: str, options: TaskOptions) -> Decorated[...]:
    """Unpickle a `@compute` function that can be imported."""
    found: Decorated[...] = pickling.imported(module, qualname)
    chosen = Options.of(**options)
    return found if found.options == chosen else found._like(found.function, chosen)


def _by_value(function: Callable[..., Any], options: TaskOptions) -> Decorated[...]:
    return _decorate(function, Options.of(**options))
