"""The program that a worker runs for a task: it prepares the plugins, then calls the user's function.

If a task runs several items of a map, the function is wrapped in a `Chunk`. Nodes import this module, so it imports
nothing that only clients need.
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
from itertools import chain
from threading import get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from ...lazy_named_tuple import NamedTuple
from ..api.secrets import allow_secrets
from ..node import context, limits
from ..node.context import LoadError, SetupError, current
from ..node.failure import failed
from ..wire import random_streams, script_modules
from ..wire.copies import Watch
from ..wire.messages import Failed
from ..wire.spawned_main import SpawningSpec
from ..wire.values import INLINE_BYTES
from . import function_pickling

if TYPE_CHECKING:
    from ..api.calls import Callee
    from ..api.instance import InstanceInfo
    from ..api.plugin import Plugin
    from ..wire.script_modules import Script

Load = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def build(
    function: Callee,
    plugins: Sequence[Plugin] = (),
    *,
    describe: Callable[[Watch], Script] | None = None,
    watch: Watch | None = None,
) -> bytes:
    """Return a pickled `Program`, which `wire.messages.Define` sends to nodes.

    Functions of ``__main__`` are pickled with the current values of the global variables to which they refer.

    Args:
        function: The `@compute` function, which may have further plugins.
        plugins: The pool's plugins.
        describe: Returns the description of this process's script, from the dependencies of the pickled function.
        watch: Records the dependencies of the pickle.

    Raises:
        SerializationError: the function or a plugin refers to an object that cannot be pickled; the error names the
            object.
    """
    from ..api.compute import StreamCompute
    from ..api.plugin import merged
    from .error_notes import cause_of, pickling_error

    chosen = merged(plugins, function.plugins)
    watch = watch or Watch()
    try:
        with allow_secrets():
            code, setup = code_of(function, watch)
            watch.code = code + (setup or b"")
            modules = {type(plugin).__module__ for plugin in chosen}
            extras = function_pickling.dumps(chosen, "plugins", *modules) if chosen else b""
    except Exception as error:  # noqa: BLE001  a __reduce__ may raise anything
        raise pickling_error(error, function.__name__, "The function") from cause_of(error)
    script = None if describe is None else describe(watch)
    program = Program(function.__name__, code, extras, isinstance(function, StreamCompute), script)
    return pickle.dumps(program if setup is None else SetUpProgram(*program.__reduce__()[1], setup=setup), 5)


def code_of(function: Callee, watch: Watch) -> tuple[bytes, bytes | None]:
    """Return the pickle of a function, and the pickle of its setup (None if it has no setup)."""
    with allow_secrets():
        return function_pickling.dumps_function(function, watch), _dumped_setup(function.options.setup, watch)


class Program:
    """A function with its plugins, as a worker stores it.

    Unpickling a `Program` does not unpickle any object of the user.
    """

    __slots__ = (
        "_code",
        "_function",
        "_generators",
        "_name",
        "_names",
        "_namespace",
        "_plugins",
        "_script",
        "_streams",
    )
    _has_lasting_loop = False

    def __init__(self, name: str, code: bytes, plugins: bytes, streams: bool, script: Script | None = None) -> None:
        self._name = name
        self._code = code
        self._plugins = plugins
        self._streams = streams
        self._script = script
        self._function: Callable[..., Any] | None = None
        # namespace of the script, after the program has run once
        self._namespace: script_modules.Namespace | None = None
        # names and values that unpickling the function set in the script's modules
        self._names: list[script_modules.Record] = []
        self._generators: list[random_streams.Used] = []  # random number generators to which the function refers

    def __reduce__(self) -> tuple[Any, ...]:
        return Program, (self._name, self._code, self._plugins, self._streams, self._script)

    def __call__(self, load: Load) -> Any:
        """Run the program once in this process.

        Return its value or, for a generator, an iterator, which must be closed.

        The order is important: environment variables of plugins, sessions of plugins, function, arguments, call. A
        framework reads its environment variables when it is imported, and must be set up before its first use.
        Unpickling the function or its arguments may already import and use a framework.

        Raises:
            LoadError: the function cannot be unpickled in this process.
        """
        return self._iterator(load) if self._streams else self._value(load)

    def _value(self, load: Load) -> Any:
        if self._script is not None:
            self._enter(self._script)
        if self._plugins:
            with self._prepared(load) as call:
                try:
                    return self._awaited(self._called(call))
                except SystemExit as end:
                    return _value_of_exit(end)
        function = self._loaded()  # shortcut if there are no plugins, which saves 2 us
        args, kwargs = load()
        if self._generators or (self._namespace is not None and self._namespace.generators):
            self._begin_streams()
        try:
            if (task := current()) is not None and task.keeping is not None:
                return self._awaited(self._called(partial(function, *args, **kwargs)))
            return self._awaited(function(*args, **kwargs))
        except SystemExit as end:
            return _value_of_exit(end)

    def _called(self, call: Callable[[], Any]) -> Any:
        task = current()
        return call() if task is None or task.keeping is None else task.keeping(self._function, call)

    def _iterator(self, load: Load) -> Iterator[Any]:
        if self._script is not None:
            self._enter(self._script)
        with self._prepared(load) as call:
            result = call()
            if isinstance(result, AsyncIterator):
                yield from _stepped(result, is_lasting=self._has_lasting_loop)
            else:
                yield from result

    def _awaited(self, result: Any) -> Any:
        if not inspect.iscoroutine(result):
            return result
        import asyncio

        from ..node import event_loop

        try:
            return event_loop.run_lasting(result) if self._has_lasting_loop else asyncio.run(result)
        except BaseException as error:  # noqa: BLE001  raised again
            raise error.with_traceback(_users(error, event_loop.FILES))  # noqa: B904

    @contextmanager
    def _prepared(self, load: Load) -> Iterator[Callable[[], Any]]:
        from ..runtime.instance_info import instance_info

        plugins: tuple[Plugin, ...] = pickle.loads(self._plugins) if self._plugins else ()
        info = instance_info()
        if plugins and (task := current()) is not None:
            task.has_sessions = True
        with ExitStack() as stack:
            if any(plugin.collective for plugin in plugins):
                from ..runtime.instance_info import fill_cores, without_preemption

                if fill_cores(info):
                    stack.enter_context(without_preemption())
            for plugin in plugins:
                stack.enter_context(environment(plugin.env(info)))
            for plugin in plugins:
                stack.enter_context(plugin.session(info))
            function = self._loaded()
            for plugin in reversed(plugins):
                function = _wrapped(function, plugin, info)
            args, kwargs = load()
            if self._generators or (self._namespace is not None and self._namespace.generators):
                self._begin_streams()
            stack.push(_note_raised)  # pushed last, so that it runs first on exit
            yield partial(function, *args, **kwargs)

    def _loaded(self) -> Callable[..., Any]:
        if self._function is not None:
            return self._function
        try:
            with script_modules.recording(self._names), random_streams.loading(self._generators):
                self._function = function = context.run_lasting(partial(pickle.loads, self._code))
        except Exception as error:
            raise LoadError from error
        return function  # type: ignore[no-any-return]

    def _begin_streams(self) -> None:
        if (task := _job_and_rank()) is not None:
            late = () if self._namespace is None else self._namespace.generators.values()
            random_streams.begin_task([*self._generators, *chain.from_iterable(late)], *task)

    def _enter(self, script: Script) -> None:
        """Set this process's ``__main__`` to the client's script, with the names that the client has sent."""
        self._namespace = namespace = script_modules.entered(script)
        if self._function is None:
            namespace.update(script)
            main = namespace.module(script_modules.MAIN, {})
            if main.__spec__ is None:
                main.__spec__ = cast("Any", SpawningSpec(namespace))
        namespace.apply(self, self._names)


def _job_and_rank() -> tuple[int, int] | None:
    return None if (task := current()) is None else (task.job, task.info["rank"])


random_streams.task_of = _job_and_rank


class SetUpProgram(Program):
    """A program with a setup function, which runs once per process.

    The function gets the setup's result as first argument.
    """

    __slots__ = ("_setup",)
    _has_lasting_loop = True  # keep the event loop between tasks, because the setup's result may be bound to it

    def __init__(self, *program: Any, setup: bytes) -> None:
        super().__init__(*program)
        self._setup = setup

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SetUpProgram, setup=self._setup), super().__reduce__()[1]

    def __call__(self, load: Load) -> Any:
        """Run the program. The setup runs after the function is unpickled and before the arguments are unpickled."""
        return super().__call__(partial(self._arguments, load))

    def _arguments(self, load: Load) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # In a worker with threads, each thread has its own event loop. So async functions need one setup result per
        # thread, because the result may be bound to the thread's loop.
        thread = 0 if threading.current_thread() is threading.main_thread() or not self._is_async() else get_ident()
        key = self._setup, thread
        state = _states[key] if key in _states else _set_up(*key)
        args, kwargs = load()
        if (generators := _streams.get(key)) and (task := _job_and_rank()) is not None:
            random_streams.begin_task(generators, *task)
        return (state, *args), kwargs

    def _is_async(self) -> bool:
        function = self._loaded()
        kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction
        return isinstance(function, AsyncChunk) or any(is_kind(function) for is_kind in kinds)


# (pickle of the setup, id of the thread, or 0 for all threads) -> result of the setup, which all functions share
_states: dict[tuple[bytes, int], Any] = {}
# the same keys -> random number generators of the setup
_streams: dict[tuple[bytes, int], list[random_streams.Used]] = {}
# pickle of the setup -> its lock; with one lock per setup, threads only wait for the setup that they need
_setting_up: dict[bytes, threading.RLock] = {}
_LOOK_S = 0.1  # interval in which a thread that waits for a setup in another thread can be interrupted


def _set_up(setup: bytes, thread: int = 0) -> Any:
    key = setup, thread
    lock = _setting_up.setdefault(setup, threading.RLock())
    try:
        while not lock.acquire(timeout=_LOOK_S):  # a wait without a timeout could not be interrupted
            pass
        if key not in _states:
            generators: list[random_streams.Used] = []
            try:
                with random_streams.loading(generators):
                    make = pickle.loads(setup)
            except Exception as error:
                raise LoadError from error
            try:
                _states[key] = context.run_setup(make)
            except Exception as error:
                raise SetupError from error
            _streams[key] = generators
            limits.accept()
        return _states[key]
    finally:
        try:  # not `suppress`, because an interruption could come between entering `suppress` and `release`
            lock.release()
        except RuntimeError:  # an interruption came before the lock was acquired
            pass


def _dumped_setup(setup: Callable[[], Any] | None, watch: Watch) -> bytes | None:
    if setup is None:
        return None
    # the `__module__` of a partial object is functools, so use the module of its function
    module = getattr(getattr(setup, "func", setup), "__module__", None)
    return function_pickling.dumps(setup, "setup", *([module] if module else ()), watch=watch)


def _wrapped(function: Callable[..., Any], plugin: Plugin, info: InstanceInfo) -> Callable[..., Any]:
    if not isinstance(function, Chunk):
        return plugin.wrap(function, info)
    chunk = copy(function)
    chunk.function = plugin.wrap(function.function, info)
    return chunk


def _note_raised(kind: type[BaseException] | None, *_: object) -> None:
    """Store the time at which the function raised.

    Sessions that exit afterwards may take long, for example to leave a process group.
    """
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


def _value_of_exit(end: SystemExit) -> None:
    """Return None for ``sys.exit()`` with status 0 or None, which counts as success. Raise other exits again."""
    if end.code not in (None, 0):
        raise end


def _stepped(items: AsyncIterator[Any], *, is_lasting: bool) -> Iterator[Any]:
    """Iterate over an async iterator from synchronous code.

    Closing this generator also closes an async generator at once.
    """
    import asyncio

    from ..node import event_loop

    ended = object()

    async def step() -> Any:
        return await anext(items, ended)

    with ExitStack() as stack:
        loop: event_loop.LastingLoop | asyncio.Runner
        if is_lasting:
            loop = event_loop.lasting_loop()
            stack.callback(loop.settle)
        else:
            loop = stack.enter_context(asyncio.Runner())
        try:
            while True:
                try:
                    item = loop.run(step())
                except BaseException as error:  # noqa: BLE001  raised again
                    raise error.with_traceback(_users(error, event_loop.FILES))  # noqa: B904
                if item is ended:
                    return
                yield item
        finally:
            if inspect.isasyncgen(items):
                loop.run(_closed(items))


async def _closed(generator: Any) -> None:
    await generator.aclose()


def _users(error: BaseException, files: tuple[str, ...]) -> TracebackType | None:
    """Return the traceback from the first frame of the user's code on.

    The frames before it, which are of this module and of ``files``, are left out.
    """
    above = (*files, __file__)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(above):
        trace = trace.tb_next
    # there is no frame of the user if asyncio itself raised the error: then return the whole traceback
    return trace or error.__traceback__


class Raised(NamedTuple):
    failed: Failed


def _failed(error: Exception) -> Failed:
    """Return the error as a `Failed` message without a blob.

    An error that is too large for a frame is sent only as text.

    Also releases the local variables of the error's frames.
    """
    from ..node.after_call import release_frames

    failure, blob = failed(0, "call", error, most_bytes=INLINE_BYTES)
    release_frames(error)
    for fd in blob:
        os.close(fd)
    return failure._replace(error=None) if blob else failure


class Chunk:
    def __init__(self, function: Callable[[Any], Any], *, alone: bool, goes_on: bool) -> None:
        """Wrap a function that processes one item.

        ``alone``: the chunk has one item, and the item's error becomes the error of the task. ``goes_on``: continue
        with the next items after an item has failed.
        """
        self.function = function
        self.alone, self.goes_on = alone, goes_on
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        # the user's module, by which `function_pickling` decides how to send the code
        self.__module__ = getattr(function, "__module__", "builtins")
        # a name that is not in the module, so that the chunk is never sent by name
        self.__qualname__ = f"{self.__name__}.<map>"

    def __call__(self, *args: Any) -> list[Any]:
        """Return the results of the items. The last argument is the list of items; a setup's result may come before it.

        The result of a failed item is a `Raised`. Unless ``goes_on`` is set, it is the last result.
        """
        function, items = self._applied(*args)
        left = iter(items)
        results: list[Any] = []
        while len(results) < len(items):
            try:
                for item in left:
                    results.append(function(item))  # noqa: PERF401  results before an error are kept
            except SystemExit as end:
                results.append(_value_of_exit(end))  # type: ignore[func-returns-value]
            except Exception as error:  # the client raises this error when the user reads the item's result
                if self.alone:
                    raise
                results.append(Raised(_failed(error)))
                if not self.goes_on:
                    break
        return results

    def _applied(self, *args: Any) -> tuple[Callable[[Any], Any], list[Any]]:
        *state, items = args
        return partial(self.function, *state) if state else self.function, items


class AsyncChunk(Chunk):
    async def __call__(self, *args: Any) -> list[Any]:  # type: ignore[override]
        function, items = self._applied(*args)
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
