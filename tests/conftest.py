"""What all tests share: no credentials of the user, no records of runs, signals as terminals have them, and an end."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import inspect
import os
import signal
import sys
import weakref
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import anyio
import pytest

os.environ["OUTRIDER_RUNS"] = "0"  # programs that tests start leave no records among those of the user
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # else AWS's client asks the network who this computer may be
# Hosts of tests look for a python3.11. Where pyenv's come first, each is a script that starts twenty processes.
os.environ["PATH"] = os.pathsep.join([f"{sys.base_prefix}/bin", os.environ.get("PATH", os.defpath)])
# After `nohup make test &` these are ignored, and programs inherit that: those that tests start are to hear them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

if find_spec("hypothesis"):
    # It also draws constants from those of our modules that are loaded, so a search with a fixed seed was another one
    # after other tests: what proves an invariant must fail alike each time. There is no setting for it.
    drawing: Any = import_module("hypothesis.internal.conjecture.providers")
    assert callable(drawing._get_local_constants)
    drawing._get_local_constants = drawing.Constants
    # An example that takes 0.2 s failed its test, and slow drawing too: on a busy machine each does so now and then.
    from hypothesis import HealthCheck, settings

    # Of several failures it made a group, for which no `pytest.raises(AssertionError)` of a guard's test is meant.
    settings.register_profile(
        "drawn", deadline=None, suppress_health_check=[HealthCheck.too_slow], report_multiple_bugs=False
    )
    # A change is tested with the same examples as the one before it; `make nightly` draws new ones.
    settings.register_profile("same", settings.get_profile("drawn"), derandomize=True, database=None)
    settings.load_profile("same")

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
DECIDERS = {"Gang", "FaultInjector", "Observer"}  # where all of a pool's tasks wait for a word, these know whose
TOLD = 3000
PROCESSES: weakref.WeakSet[Any] = weakref.WeakSet()  # asyncio's transports, of all that tests started here


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An asynchronous test that hangs is cancelled, and says where its tasks were: threads' stacks show a poll(2).

    It is cancelled well before `faulthandler_timeout` ends the whole process. 0: nothing ends any of them.
    """
    if addressed := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"each of pytest-xdist's processes would name this test otherwise: {addressed[0]}")
    limit_s = 0.4 * float(config.getini("faulthandler_timeout"))
    for item in items:
        if limit_s and isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _limited(item.obj, limit_s)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What 9,000 collected tests and their imports are stays, and is looked through no more.

    Meanwhile the garbage collector rests: to look through it all again and again took a fifth of the time. Then it is
    frozen: each fork server that a test forks collects garbage, and so touched (that is: copied) the whole heap, half
    a second of a processor for each test of a node.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _nested_pytest_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put the temporary folders of nested pytest runs into this run's folder.

    In a common parent folder, each nested run deletes the folders of older runs at its end, which took minutes.
    """
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(tmp_path_factory.getbasetemp())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Nothing of a test is left to the next one: neither orphans that its process has adopted, nor its processes.

    Orphans go to init again after a test of something that adopts them, run here: nobody would wait for them.
    """
    yield
    if LIBC is not None:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0)
    ended = [each for each in PROCESSES if not each._closed and (each._loop is None or each._loop.is_closed())]
    left = [repr(each) for each in ended if _runs(each)]
    for each in ended:
        _let_go(each)
    if left:
        pytest.fail(f"The test ended before the processes that it started: {left}")


def _runs(process: Any) -> bool:
    """Whether it does, and not whether its loop has heard of its end."""
    return process._returncode is None and process._proc is not None and process._proc.poll() is None


def _let_go(process: Any) -> None:
    """Close what its loop had no turn left for: the collector warned of it amid another test, and failed that one.

    A pipe stays open until what the process had started has ended too, which on a busy computer is a little later.
    """
    with suppress(RuntimeError):  # its loop is closed
        process.close()
    for each in process._pipes.values():
        if each is not None and (pipe := each.pipe._pipe) is not None:
            each.pipe._pipe = None
            pipe.close()


def _remembered(begin: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(begin)
    def beginning(process: Any, *args: Any, **options: Any) -> None:
        begin(process, *args, **options)
        PROCESSES.add(process)

    return beginning


BaseSubprocessTransport.__init__ = _remembered(BaseSubprocessTransport.__init__)  # type: ignore[method-assign]


def _limited(test: Callable[..., Awaitable[None]], limit_s: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # trio's
            await test(**fixtures)
            return
        with anyio.CancelScope() as scope:
            timer = loop.call_later(limit_s, _end, scope)
            try:
                await test(**fixtures)
            finally:
                timer.cancel()
        if scope.cancel_called:
            pytest.fail(f"It hung for {limit_s:g} s.")

    return limited


def _end(hanging: anyio.CancelScope) -> None:
    for task in asyncio.all_tasks():
        print(f"{task.get_name()}:", *_awaited(task.get_coro()), sep="\n    ", file=sys.stderr)
    for each in gc.get_objects():
        if type(each).__name__ in DECIDERS:
            print(type(each).__name__, {name: str(value)[:TOLD] for name, value in vars(each).items()}, file=sys.stderr)
    hanging.cancel()


def _awaited(coroutine: Any) -> Iterator[str]:
    """Where it is, the innermost last. asyncio's own `Task.print_stack` shows the outermost alone."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        place = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} "
        yield f"{place}{getattr(coroutine, '__qualname__', coroutine)}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
