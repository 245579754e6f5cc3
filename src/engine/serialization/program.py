"""Define what a worker calls for a task: plugins' environment first, then the user's function, wrapped in their
sessions. For several items of a map the user's function is a chunk. Nodes import this module, so it imports nothing
that only clients have.
"""

from __future__ import annotations

import inspect
import os
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from ...lazy_named_tuple import NamedTuple
from ..api.secrets import allow_secrets
from ..node.context import LoadError, SetupError, current
from ..node.failure import failed
from ..wire.messages import Failed
from . import function_pickling

if TYPE_CHECKING:
    from ..api.compute import Decorated
    from ..api.instance import InstanceInfo
    from ..api.plugin import Plugin

Load = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def build(function: Decorated[...], plugins: Sequence[Plugin] = ()) -> bytes:
    """Return a pickled `Program`, for `wire.messages.Define`. ``plugins`` are the pool's; the function's own are added.

    Once per function and pool: a function of ``__main__`` takes its globals with it as they are now.

    Raises:
        SerializationError: what the function or a plugin holds cannot be pickled; says what.
    """
    from ..api.compute import StreamCompute
    from ..api.plugin import merged
    from .pickling_errors import cause_of, pickling_error

    chosen = merged(plugins, function.plugins)
    try:
        with allow_secrets():
            code = function_pickling.dumps_function(function)
            setup = _dumped_setup(function.options.setup)
            modules = {type(plugin).__module__ for plugin in chosen}
            extras = function_pickling.dumps(chosen, "plugins", *modules) if chosen else b""
    except Exception as error:  # noqa: BLE001  whatever a __reduce__ raises
        raise pickling_error(error, function.__name__, "The function") from cause_of(error)
    program = Program(function.__name__, code, extras, isinstance(function, StreamCompute))
    return pickle.dumps(program if setup is None else SetUpProgram(*program.__reduce__()[1], setup=setup), 5)


class Program:
    """A function with its plugins, as a worker keeps it. Unpickling one unpickles nothing of the user's."""

    __slots__ = ("_code", "_function", "_name", "_plugins", "_streams")

    def __init__(self, name: str, code: bytes, plugins: bytes, streams: bool) -> None:
        self._name = name
        self._code = code
        self._plugins = plugins
        self._streams = streams
        self._function: Callable[..., Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Program, (self._name, self._code, self._plugins, self._streams)

    def __call__(self, load: Load) -> Any:
        """Run it once in this process: its value, or (a generator) an iterator that must be closed.

        The order is the point: environment, sessions, function, arguments, call. A framework reads its environment when
        it is imported, and is set up before it is first used: unpickling the function or its arguments may do both.

        Raises:
            LoadError: the function cannot be unpickled here.
        """
        return self._iterator(load) if self._streams else self._value(load)

    def _value(self, load: Load) -> Any:
        if self._plugins:
            with self._prepared(load) as call:
                try:
                    return _awaited(self._called(call))
                except SystemExit as end:
                    return _value_of_exit(end)
        function = self._loaded()  # the same without plugins, 2 us quicker
        args, kwargs = load()
        try:
            if (task := current()) is not None and task.keeping is not None:
                return _awaited(self._called(partial(function, *args, **kwargs)))
            return _awaited(function(*args, **kwargs))
        except SystemExit as end:
            return _value_of_exit(end)

    def _called(self, call: Callable[[], Any]) -> Any:
        task = current()
        return call() if task is None or task.keeping is None else task.keeping(self._function, call)

    def _iterator(self, load: Load) -> Iterator[Any]:
        with self._prepared(load) as call:
            result = call()
            yield from _stepped(result) if isinstance(result, AsyncIterator) else result

    @contextmanager
    def _prepared(self, load: Load) -> Iterator[Callable[[], Any]]:
        from ..runtime.instance_info import instance_info

        plugins: tuple[Plugin, ...] = pickle.loads(self._plugins) if self._plugins else ()
        info = instance_info()
        with ExitStack() as stack:
            for plugin in plugins:
                stack.enter_context(environment(plugin.env(info)))
            for plugin in plugins:
                stack.enter_context(plugin.session(info))
            function = self._loaded()
            for plugin in reversed(plugins):
                function = _wrapped(function, plugin, info)
            args, kwargs = load()
            stack.push(_note_raised)  # the first to end
            yield partial(function, *args, **kwargs)

    def _loaded(self) -> Callable[..., Any]:
        if self._function is not None:
            return self._function
        try:
            self._function = function = pickle.loads(self._code)
        except Exception as error:
            raise LoadError from error
        return function  # type: ignore[no-any-return]


class SetUpProgram(Program):
    """A program whose function is given first what its setup has returned in this process."""

    __slots__ = ("_setup",)

    def __init__(self, *program: Any, setup: bytes) -> None:
        super().__init__(*program)
        self._setup = setup

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SetUpProgram, setup=self._setup), super().__reduce__()[1]

    def __call__(self, load: Load) -> Any:
        """Run it as any program, with the setup between the function and its arguments."""
        return super().__call__(partial(self._given, load))

    def _given(self, load: Load) -> tuple[tuple[Any, ...], dict[str, Any]]:
        state = _states[self._setup] if self._setup in _states else _set_up(self._setup)
        args, kwargs = load()
        return (state, *args), kwargs


_states: dict[bytes, Any] = {}  # what setups have returned in this process, by their pickles: functions share it
_setting_up: dict[bytes, threading.RLock] = {}  # threads wait for the setup that they need, and for no other
_LOOK_S = 0.1  # between looks at whether a thread that waits for another's setup is to end


def _set_up(setup: bytes) -> Any:
    lock = _setting_up.setdefault(setup, threading.RLock())
    try:
        while not lock.acquire(timeout=_LOOK_S):  # a wait without an end could not be interrupted
            pass
        if setup not in _states:
            try:
                make = pickle.loads(setup)
            except Exception as error:
                raise LoadError from error
            try:
                _states[setup] = make()
            except Exception as error:
                raise SetupError from error
        return _states[setup]
    finally:
        try:  # not `suppress`: an interruption may come between its call and the other
            lock.release()
        except RuntimeError:  # interrupted while it waited
            pass


def _dumped_setup(setup: Callable[[], Any] | None) -> bytes | None:
    if setup is None:
        return None
    module = getattr(getattr(setup, "func", setup), "__module__", None)  # a partial's own is functools
    return function_pickling.dumps(setup, "setup", *([module] if module else ()))


def _wrapped(function: Callable[..., Any], plugin: Plugin, info: InstanceInfo) -> Callable[..., Any]:
    if not isinstance(function, Chunk):
        return plugin.wrap(function, info)
    chunk = copy(function)
    chunk.function = plugin.wrap(function.function, info)
    return chunk


def _note_raised(kind: type[BaseException] | None, *_: object) -> None:
    """Note when the function raised: sessions that end after it, as by leaving a process group, may take long."""
    if kind is not None and (task := current()) is not None:
        task.raised_ns = perf_counter_ns()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def _awaited(result: Any) -> Any:
    if inspect.iscoroutine(result):
        import asyncio

        try:
            return asyncio.run(result)
        except BaseException as error:  # noqa: BLE001  raised again
            raise error.with_traceback(_users(error, asyncio))  # noqa: B904
    return result


def _value_of_exit(end: SystemExit) -> None:
    """Take ``sys.exit()`` for a return: it ends a program well."""
    if end.code not in (None, 0):
        raise end


def _stepped(items: AsyncIterator[Any]) -> Iterator[Any]:
    """Iterate here over an async iterator. Closing this closes an async generator at once, wherever that stands."""
    import asyncio

    ended = object()

    async def step() -> Any:
        return await anext(items, ended)

    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    item = runner.run(step())
                except BaseException as error:  # noqa: BLE001  raised again
                    raise error.with_traceback(_users(error, asyncio))  # noqa: B904
                if item is ended:
                    return
                yield item
        finally:
            if inspect.isasyncgen(items):
                runner.run(_closed(items))


async def _closed(generator: Any) -> None:
    await generator.aclose()


def _users(error: BaseException, module: ModuleType) -> TracebackType | None:
    """Return the traceback from the user's first frame on, without those of ``module`` and of this library above it."""
    above = (str(Path(module.__file__ or "").parent), __file__)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(above):
        trace = trace.tb_next
    return trace or error.__traceback__  # all of it, when it is asyncio's own error


class Raised(NamedTuple):
    failed: Failed


def _failed(error: Exception) -> Failed:
    """Return the error as it travels: without a blob, since one too large for a frame travels as its text."""
    said, blob = failed(0, "call", error)
    for fd in blob:
        os.close(fd)
    return said._replace(error=None) if blob else said


class Chunk:
    def __init__(self, function: Callable[[Any], Any], *, alone: bool, goes_on: bool) -> None:
        """``alone``: one item each, whose error is the task's. ``goes_on``: past items that fail."""
        self.function = function
        self.alone, self.goes_on = alone, goes_on
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        # Where the user's code is: `function_pickling` decides by it how the code travels.
        self.__module__ = getattr(function, "__module__", "builtins")
        self.__qualname__ = f"{self.__name__}.<map>"  # and finds nothing of this name there

    def __call__(self, *given: Any) -> list[Any]:
        """Return the results of the last of ``given``, behind what a setup has made. An item that failed has a `Raised`
        for one, and is the last unless the chunk goes on.
        """
        function, items = self._applied(*given)
        left = iter(items)
        results: list[Any] = []
        while len(results) < len(items):
            try:
                for item in left:
                    results.append(function(item))  # noqa: PERF401  what came before an error is kept
            except SystemExit as end:
                results.append(_value_of_exit(end))  # type: ignore[func-returns-value]
            except Exception as error:  # it is the item's, and raised where its result would be
                if self.alone:
                    raise
                results.append(Raised(_failed(error)))
                if not self.goes_on:
                    break
        return results

    def _applied(self, *given: Any) -> tuple[Callable[[Any], Any], list[Any]]:
        *state, items = given
        return partial(self.function, *state) if state else self.function, items


class AsyncChunk(Chunk):
    async def __call__(self, *given: Any) -> list[Any]:  # type: ignore[override]
        function, items = self._applied(*given)
        left = iter(items)
        results: list[Any] = []
        while len(results) < len(items):
            try:
                for item in left:
                    results.append(await function(item))  # noqa: PERF401
            except SystemExit as end:
                results.append(_value_of_exit(end))  # type: ignore[func-returns-value]
            except Exception as error:
                if self.alone:
                    raise
                results.append(Raised(_failed(error)))
                if not self.goes_on:
                    break
        return results
