"""`@compute`: makes a user's function one that pools can run. Calling the decorated function returns a pending call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
)
from dataclasses import replace
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from ..wire import importable
from .calls import Call, Callee, StreamCall
from .checks import refuse, shown
from .errors import NotACall, SpecError
from .misuse import meant_of_function
from .pending_base import short
from .signatures import Streamed, argument_check, called_of, streamed, streamed_parameters
from .task_options import Options, TaskOptions

if TYPE_CHECKING:
    from .plugin import Plugin
    from .refs import Ref

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)

PLUGINS = "__outrider_plugins__"  # attribute in which `integrations` stores the plugins of a function


class Decorated(Callee, Generic[P]):
    """A `@compute` function: the user's ``function`` with its options.

    In the body of a class, a `@compute` function becomes a method, like any function: ``a.f(2)`` is ``A.f(a, 2)``, and
    ``a`` is an argument of the call.
    """

    function: Callable[..., Any]
    options: Options
    # for a bound method ``a.f``: (a,), which is passed before the caller's arguments; otherwise empty
    self_args: tuple[Any, ...] = ()
    takes_self = False  # True for methods, whose first argument is the object before the dot in ``a.f(2)``
    binds = True  # False for a static method: ``a.f(2)`` then does not pass ``a``
    __qualname__: str

    def __new__(cls, *arguments: Any, **_options: Any) -> Self:
        # users of libraries in which `Compute(provider=...)` opens a pool get an error that explains the difference
        if not arguments:
            raise SpecError(f"{cls.__name__} is what @compute makes of a function; a pool is Pool(provider=..., ...).")
        return object.__new__(cls)

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options
        functools.update_wrapper(self, function, updated=())  # type: ignore[arg-type]
        if not hasattr(self, "__name__"):
            self.__name__ = self.__qualname__ = type(function).__name__
        self.shown = self.__name__
        self._plain: Self | None = None
        check = argument_check(function)
        self._check = check if options.setup is None else functools.partial(check, None)

    def __set_name__(self, owner: type, name: str) -> None:
        if self.__qualname__ == f"{owner.__qualname__}.{name}":  # True if the function was defined in this class
            self.shown = f"{owner.__name__}.{name}"
            self.takes_self = self.binds

    def bound(self, instance: object) -> Self:
        """Return the method bound to ``instance``, as in ``instance.f``."""
        if instance is None or not self.binds or self.self_args:
            return self
        method = object.__new__(type(self))
        method.__dict__.update(self.__dict__, self_args=(instance,), _plain=self)
        # lets `inspect.signature` omit the first parameter
        method.__dict__["__wrapped__"] = MethodType(self.function, instance)
        method.__dict__.pop("here", None)
        return method

    @property
    def plain(self) -> Self:
        """For a bound method, the function without its object; otherwise the function itself."""
        return self if self._plain is None else self._plain

    def method_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Self, Any, Any, Options]:
        """Return (unbound function, arguments with the object, keyword arguments, options) for a method's call."""
        self.check_method()
        self._check(*self.self_args, *args, **kwargs)
        return self.plain, (*self.self_args, *args), kwargs, self.options

    def check_method(self) -> None:
        if self.options.setup is not None:
            refuse(
                f"{self.shown} is a method, whose first argument is its object, and setup= makes the first argument "
                "too: put @staticmethod above @compute, or take the function out of the class."
            )

    @functools.cached_property
    def here(self) -> Callable[..., Any]:
        """The function as `local` calls it: a method's object or the result of ``setup`` is the first argument."""
        if self.self_args:
            self.check_method()
            return functools.partial(self.function, *self.self_args)
        return self.function if self.options.setup is None else functools.partial(self.function, self.options.setup())

    def with_(self, **options: Unpack[TaskOptions]) -> Self:
        """Return a copy of the function with these options changed.

        Args:
            options: Options of `compute`, without ``setup`` and ``keep``.

        Raises:
            SpecError: The option does not exist, or its value is not valid.
        """
        return self.remade(self.function, self.options.changed(**options))

    def wrapped(self, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Self:
        """Return a copy, with ``wrapper`` applied to the user's function like a decorator below `@compute`."""
        return self.remade(wrapper(self.function), self.options)

    def remade(self, function: Callable[..., Any], options: Options) -> Self:
        result = type(self)(function, options)
        result.shown, result.binds, result.takes_self = self.shown, self.binds, self.takes_self
        return result.bound(*self.self_args) if self.self_args else result

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        return getattr(self.function, PLUGINS, ())

    @functools.cached_property
    def streamed(self) -> dict[str, Streamed]:  # pyright: ignore[reportIncompatibleMethodOverride]  # read, never set
        return streamed_parameters(self.function)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # the attribute exists, but its property raised an AttributeError: raise that error again
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            function = self.__dict__.get("__name__", "f")
            public = [] if name.startswith("_") else [each for each in dir(type(self)) if not each.startswith("_")]
            meant = public and meant_of_function(function, name, TaskOptions.__annotations__, public)
            error = f"the @compute function {function} has no {name!r}{f': {meant}' if meant else ''}"
            raise AttributeError(error, name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.self_args:
            return _method, (self.plain, *self.self_args)
        if importable.has_name(self):
            return _by_name, (self.__module__, self.__qualname__, replace(self.options, setup=None))
        return _decorate, (self.function, self.options)

    def __repr__(self) -> str:
        return f"<compute {self.__qualname__}{f' of {short.repr(self.self_args[0])}' if self.self_args else ''}>"


class Compute(Decorated[P], Generic[P, R]):
    """A function that pools can run. Calling the object returns a pending call."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        if self.self_args:
            return Call(*self.method_call(args, kwargs))
        self._check(*args, **kwargs)
        return Call(self, args, kwargs, self.options)


class SyncCompute(Compute[P, R]):
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(
        self: SyncCompute[Concatenate[Any, Q], R], instance: object, owner: type | None = None, /
    ) -> SyncCompute[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        return self.bound(instance)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this process, as if it were not decorated."""
        return self.here(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncCompute(Compute[P, R]):
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(
        self: AsyncCompute[Concatenate[Any, Q], R], instance: object, owner: type | None = None, /
    ) -> AsyncCompute[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        return self.bound(instance)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the coroutine function in this process, as if it were not decorated."""
        return self.here(*args, **kwargs)  # type: ignore[no-any-return]


class StreamCompute(Decorated[P], Generic[P, T]):
    """A generator function that pools can run. Calling the object returns a pending call."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> StreamCall[T]:
        if self.self_args:
            return StreamCall(*self.method_call(args, kwargs))
        self._check(*args, **kwargs)
        return StreamCall(self, args, kwargs, self.options)


class SyncStreamCompute(StreamCompute[P, T]):
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(
        self: SyncStreamCompute[Concatenate[Any, Q], T], instance: object, owner: type | None = None, /
    ) -> SyncStreamCompute[Q, T]: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        return self.bound(instance)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        """Run the generator in this process, as if it were not decorated."""
        return self.here(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncStreamCompute(StreamCompute[P, T]):
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(
        self: AsyncStreamCompute[Concatenate[Any, Q], T], instance: object, owner: type | None = None, /
    ) -> AsyncStreamCompute[Q, T]: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        return self.bound(instance)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """Run the async generator in this process, as if it were not decorated."""
        return self.here(*args, **kwargs)  # type: ignore[no-any-return]


if TYPE_CHECKING:

    class SyncKept(Compute[P, Ref[R]], Generic[P, R]):
        """The type that type checkers use for a function with ``keep=True``.

        At run time, the object is a `SyncCompute`.
        """

        @overload
        def __get__(self, instance: None, owner: type, /) -> Self: ...
        @overload
        def __get__(
            self: SyncKept[Concatenate[Any, Q], R], instance: object, owner: type | None = None, /
        ) -> SyncKept[Q, R]: ...
        def __get__(self, instance: object, owner: type | None = None, /) -> Any:
            return self.bound(instance)

        def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
            return self.here(*args, **kwargs)  # type: ignore[no-any-return]

    class AsyncKept(Compute[P, Ref[R]], Generic[P, R]):
        """The type of a coroutine function with ``keep=True`` for type checkers.

        At run time it is an `AsyncCompute`.
        """

        @overload
        def __get__(self, instance: None, owner: type, /) -> Self: ...
        @overload
        def __get__(
            self: AsyncKept[Concatenate[Any, Q], R], instance: object, owner: type | None = None, /
        ) -> AsyncKept[Q, R]: ...
        def __get__(self, instance: object, owner: type | None = None, /) -> Any:
            return self.bound(instance)

        def local(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
            return self.here(*args, **kwargs)  # type: ignore[no-any-return]

    class KeepDecorator(Protocol):
        @overload
        def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncKept[P, R]: ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, function: Callable[P, R], /) -> SyncKept[P, R]: ...

    class SetupKeepDecorator(Protocol[S_co]):
        @overload
        def __call__(self, function: Callable[Concatenate[S_co, P], Coroutine[Any, Any, R]], /) -> AsyncKept[P, R]: ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, function: Callable[Concatenate[S_co, P], R], /) -> SyncKept[P, R]: ...


class ComputeDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncCompute[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> AsyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Iterator[T]], /) -> SyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncCompute[P, R]: ...


class SetupDecorator(Protocol[S_co]):
    """The type of the decorator ``compute(setup=...)``: callers leave out the first argument, the setup's result."""

    @overload
    def __call__(self, function: Callable[Concatenate[S_co, P], Coroutine[Any, Any, R]], /) -> AsyncCompute[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[S_co, P], AsyncIterator[T]], /) -> AsyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[S_co, P], Iterator[T]], /) -> SyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[S_co, P], R], /) -> SyncCompute[P, R]: ...


@overload
def compute(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncCompute[P, R]: ...  # type: ignore[overload-overlap]
@overload
def compute(function: Callable[P, AsyncIterator[T]], /) -> AsyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
@overload
def compute(function: Callable[P, Iterator[T]], /) -> SyncStreamCompute[P, T]: ...  # type: ignore[overload-overlap]
@overload
def compute(function: Callable[P, R], /) -> SyncCompute[P, R]: ...
@overload
def compute(
    *, setup: Callable[[], S], keep: Literal[True], **options: Unpack[TaskOptions]
) -> SetupKeepDecorator[S]: ...
@overload
def compute(*, keep: Literal[True], **options: Unpack[TaskOptions]) -> KeepDecorator: ...
@overload
def compute(
    *, setup: Callable[[], S], keep: Literal[False] = False, **options: Unpack[TaskOptions]
) -> SetupDecorator[S]: ...
@overload
def compute(*, keep: Literal[False] = False, **options: Unpack[TaskOptions]) -> ComputeDecorator: ...
def compute(
    function: Any = None,
    /,
    *,
    setup: Callable[[], Any] | None = None,
    keep: bool = False,
    **options: Unpack[TaskOptions],
) -> Any:
    """Make a function one that pools can run: a call then returns a pending call instead of running the function.

    The decorator works with and without options, on functions, coroutine functions, and generators of both kinds. An
    argument whose parameter is annotated ``Iterator[T]`` or ``AsyncIterator[T]`` is streamed: the function receives its
    items one by one while it runs. With ``Iterable[T]`` or ``AsyncIterable[T]``, the argument is streamed only if it is
    an iterator. Calls with streamed arguments and calls of generators are never retried, whatever the options, because
    consumed items and delivered values cannot be taken back. The object of a method is an argument of each call, as in
    Python; changes that a task makes to the object are lost.

    A task holds ``cpus``, ``memory_gb`` and ``gpus`` of its node while it runs, besides its slot. The task waits until
    a node has all of these free, and runs in a new process, in which ``setup`` runs again. A call that needs more than
    any node of the pool has raises `SpecError`.

    Times are numbers of seconds, or a timedelta.

    Args:
        function: The function, if the decorator is used without options.
        setup: A function without arguments that runs once in each process, before the first call there. Its result,
            such as a loaded model, becomes the first argument of each call; callers leave this argument out.
        keep: True keeps results on their nodes. A call then returns a `Ref`, which can be passed to other calls in
            place of the result. Not for maps and generators. If a result is lost but needed, its call runs again, at
            most ``retries`` times.
        timeout: The longest run time. After that, the task's processes are killed, and the call raises `TaskTimeout`.
            Default: no limit.
        queue_timeout: The longest wait for a slot. After that, the call raises `QueueTimeout`. Default: no limit.
        deadline: The longest time from the submission to the end, including all waits, transfers and further attempts.
            After that, the call raises `DeadlineExceeded`. Default: no limit.
        retries: The largest number of further attempts after losses of nodes. Default: 3.
        max_restarts: The largest number of further attempts after the function raises or its process dies; in a
            broadcast, on any rank. Default: 0.
        retry: ``"never"`` allows a single attempt only. Default: ``"on_loss"``.
        on_loss: What a broadcast does when it loses a rank: ``"auto"``, ``"restart"``, ``"resend"`` or ``"fail"``. This
            option overrides the pool's option of the same name.
        stall: The longest time without an output line, a metric or a step (in a broadcast, from any rank). After that,
            the task counts as stalled, and a `Stalled` event reports where it hangs. Default: no such event.
        on_stall: ``"report"``: only the event. ``"restart"``: the stalled task also runs again, as after a lost node.
        name: The name to show instead of the function's own name.
        cpus: Processors that the task holds, 0.001 or more. Libraries that respect OMP_NUM_THREADS use that many
            threads.
        memory_gb: Memory that the task holds, in GB (10^9 bytes). If its processes together use more, they are killed,
            and the call raises `TaskKilled` with ``out_of_memory``.
        gpus: The number of whole devices that the task holds; no other devices are visible to it.

    Raises:
        SpecError: The option does not exist, or its value is not valid.
    """
    if not isinstance(keep, bool):
        refuse(f"keep takes True or False, not {shown(keep)}.")
    chosen = Options(setup=None if setup is None else checked_setup(setup), keep=keep).changed(**options)
    if function is None:
        return functools.partial(_decorate, options=chosen)
    return _decorate(function, chosen)


def checked_setup(setup: object) -> Callable[[], Any]:
    if not callable(setup) or isinstance(setup, Decorated):
        refuse(f"setup takes a plain function, not {shown(setup)}.")
    if inspect.iscoroutinefunction(setup) or inspect.isgeneratorfunction(setup) or inspect.isasyncgenfunction(setup):
        refuse(f"setup={short.repr(setup)} is run once and returns what calls are given: it is a plain `def`.")
    try:
        inspect.signature(setup).bind()
    except TypeError as error:
        refuse(f"setup is called without arguments ({error}): give it those by functools.partial.")
    except ValueError:  # a builtin function without a signature: errors appear when it is called
        pass
    return setup


def _decorate(function: Callable[..., Any], options: Options) -> Decorated[...]:
    if isinstance(function, Decorated):
        raise NotACall(f"{function.__name__} has @compute already: change its options with .with_(...)")
    if isinstance(function, classmethod):
        raise NotACall(f"@classmethod goes above @compute: turn them round on {function.__name__}")
    if isinstance(function, staticmethod):
        decorated = _decorate(function.__func__, options)
        decorated.binds = False
        return decorated
    if not callable(function) or isinstance(function, type):
        raise NotACall(f"@compute goes on a function, not on {short.repr(function)}; options are given by name")
    return _build(function, options)


def _build(function: Callable[..., Any], options: Options) -> Decorated[...]:
    kind = kind_of(function)
    if options.keep and issubclass(kind, StreamCompute):
        refuse(f"{short.repr(function)} gives values as it makes them, which come here: keep=True is not for it.")
    return kind(function, options)


def for_items(function: Callable[..., Any]) -> Compute[..., Any]:
    """Return the function that a map calls with each item. Decorate the function if the user did not.

    Raises:
        NotACall: The object is no function that a map can call.
        SpecError: The options of the function do not allow a map.
    """
    called: Any = function
    if isinstance(of := getattr(called, "__func__", None), Decorated):
        called = of.bound(called.__self__)  # in Python 3.13, a decorated class method is a `method`
    make = _build if isinstance(called, type) else _decorate
    decorated: Any = called if isinstance(called, Decorated) else make(called, Options())
    if isinstance(decorated, StreamCompute):
        raise NotACall(
            f"{decorated.shown} yields values, and pool.map takes a function that returns one: have it return a list, "
            f"or stream each call by pool.stream({decorated.__name__}(item))"
        )
    if decorated.self_args:
        decorated.check_method()
    if decorated.options.keep:
        refuse(
            f"the results of a map come here, and those of {decorated.shown} stay where they are made: submit its "
            "calls."
        )
    return decorated  # type: ignore[no-any-return]


def _method(function: Decorated[...], instance: object) -> Decorated[...]:
    return function.bound(instance)


def _by_name(module: str, qualname: str, options: Options) -> Decorated[...]:
    function: Decorated[...] = importable.imported(module, qualname).plain
    # a pickle that names its function does not contain the option ``setup``: take it from the imported function, which
    # has the right one, because `with_` cannot change this option
    options = replace(options, setup=function.options.setup)
    return function if function.options == options else function.remade(function.function, options)


def kind_of(function: Callable[..., Any]) -> type[Decorated[...]]:
    """Return the subclass of `Decorated` for a function, chosen by the function's kind and its return annotation.

    The annotation matters because a plain function, which is no generator, may return an iterator.
    """
    if isinstance(function, type):
        return SyncCompute
    function = called_of(function)
    if inspect.isasyncgenfunction(function):
        return AsyncStreamCompute
    if inspect.isgeneratorfunction(function):
        return SyncStreamCompute
    if inspect.iscoroutinefunction(function):
        return AsyncCompute
    returned = streamed(getattr(function, "__annotations__", {}).get("return"), function)
    if returned is None or not returned.always:
        return SyncCompute
    return AsyncStreamCompute if returned.asynchronous else SyncStreamCompute
