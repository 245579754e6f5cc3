"""The state that one task leaves for the next: restored, or gone with the process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import decimal
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import pytest

from outrider.engine.node import context
from outrider.engine.serialization.program import SetUpProgram
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio
KINDS = pytest.mark.parametrize("kind", ["process", "thread"])


def say(text: str) -> int:
    print(text)
    print(text, file=sys.stderr)
    return os.getpid()


def say_in_all_ways(text: str) -> int:
    say(text)
    print(text, file=sys.__stdout__, flush=True)
    os.write(1, f"{text}\n".encode())
    subprocess.run(["echo", text], check=True)
    return os.getpid()


# --- streams -------------------------------------------------------------------------------------------------------


def close_stdout() -> None:
    sys.stdout.close()


def close_stderr() -> None:
    sys.stderr.close()


def close_original() -> None:
    assert sys.__stdout__ is not None
    sys.__stdout__.close()


def detach() -> None:
    sys.stdout.detach()  # type: ignore[attr-defined]


def silence() -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def close_descriptors() -> None:
    os.close(1)
    os.close(2)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        *(("process", each) for each in (close_stdout, close_stderr, close_original, detach, silence)),
        *(("thread", each) for each in (close_stdout, close_stderr, close_original, silence)),
        *((kind, close_descriptors) for kind in ("process", "thread")),
    ],
)
async def test_next_task_prints_after_streams_were_spoiled(make: Any, kind: str, spoil: Callable[[], None]) -> None:
    client = await make(slots=2, kind=kind)
    pid = await client.call(os.getpid)
    await client.call(spoil)
    attempt = client.run(say_in_all_ways, "heard")
    assert client.result(await client.answer(attempt)) == pid, "the process goes on"
    await client.call(os.getpid)  # what a thread worker's children print comes by itself
    await client.until(lambda: all(output.count(b"heard") == count for output, count in printed(client, attempt)))


def printed(client: Any, attempt: int) -> list[tuple[bytes, int]]:
    """Everything printed on stdout and on stderr, and how often `say_in_all_ways` prints its text there."""
    from outrider.engine.wire import messages as m

    outputs = [each for each in client.heard if isinstance(each, m.Output)]
    return [
        (b"".join(each.text for each in outputs if each.stream == stream), count) for stream, count in ((1, 4), (2, 1))
    ]


@KINDS
async def test_file_that_reuses_stdout_gets_no_prints(make: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"

    def reuse() -> tuple[int, int]:
        os.close(1)
        context.kept_file = path.open("w")  # type: ignore[attr-defined]
        return os.getpid(), context.kept_file.fileno()  # type: ignore[attr-defined]

    client = await make(slots=1 if kind == "process" else 2, kind=kind)
    pid, fd = await client.call(reuse)
    assert fd == 1
    attempt = client.run(say, "heard")
    assert client.result(await client.answer(attempt)) != pid, "another process: the file may still be in use"
    await client.until(lambda: client.printed(attempt) == b"heard\n")
    assert path.read_text() == ""


async def test_text_in_a_replaced_stream_is_flushed(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"

    def replace() -> None:
        sys.stdout = path.open("w")
        print("into the file")

    client = await make()
    await client.call(replace)
    assert path.read_text() == "into the file\n"


async def test_stream_of_one_thread_stays_while_its_task_runs(make: Any, tmp_path: Path) -> None:
    def redirect() -> bool:
        mine = sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        (tmp_path / "redirected").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.001)
        return sys.stdout is mine

    client = await make(slots=2, kind="thread")
    attempt = client.run(redirect)
    while not (tmp_path / "redirected").exists():
        await client.turn()
    await client.call(os.getpid)
    (tmp_path / "go").touch()
    assert client.result(await client.answer(attempt)) is True
    attempt = client.run(say, "heard")
    await client.answer(attempt)
    assert client.printed(attempt) == b"heard\n"


# --- settings --------------------------------------------------------------------------------------------------------

variable: ContextVar[str] = ContextVar("variable", default="unset")


def change_context() -> tuple[str, int]:
    before = variable.get(), decimal.getcontext().prec
    variable.set("left")
    decimal.getcontext().prec = 3
    return before


@KINDS
async def test_context_variables_end_with_their_task(make: Any, kind: str) -> None:
    client = await make(slots=2, kind=kind)
    for _ in range(4):
        assert await client.call(change_context) == ("unset", 28)


def set_up_context() -> str:
    def set_up() -> None:
        variable.set("by the setup")

    context.run_setup(set_up)
    return variable.get()


async def test_context_variables_of_a_setup_stay(make: Any) -> None:
    client = await make()
    assert await client.call(set_up_context) == "by the setup"
    for _ in range(2):
        assert await client.call(change_context) == ("by the setup", 28)


def import_in_a_changed_context() -> str:
    variable.set("by the task")
    context.run_lasting(lambda: None)
    return variable.get()


async def test_import_leaves_the_context_variables_of_its_task(make: Any) -> None:
    client = await make()
    assert await client.call(set_up_context) == "by the setup"
    assert await client.call(import_in_a_changed_context) == "by the task"


class Unloadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


async def test_settings_of_a_setup_stay_where_arguments_cannot_be_unpickled(make: Any) -> None:
    client = await make()
    assert await client.call(settings)
    code = cloudpickle.dumps(SetUpProgram("f", cloudpickle.dumps(number_and_time), b"", False, setup=SETUP))
    client.send(m.Define(b"set up", code))
    client.functions[b"set up"] = b"set up"
    failed = await client.call(b"set up", Unloadable())
    assert failed.phase == "load"
    assert await client.call(b"set up", 1) == (1, 4.0)


def number_and_time(state: None, number: int) -> tuple[int, float | None]:
    assert state is None
    return number, socket.getdefaulttimeout()


SETUP = cloudpickle.dumps(partial(socket.setdefaulttimeout, 4.0))


def change_settings() -> int:
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)
    gc.disable()
    socket.setdefaulttimeout(0.01)
    logging.disable(logging.CRITICAL)
    sys.argv[:] = ["other"]
    signal.alarm(3600)
    return os.getpid()


def change_thread() -> None:
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)


def settings() -> tuple[Any, ...]:
    return (
        sys.gettrace(), sys.getprofile(), gc.isenabled(), socket.getdefaulttimeout(),
        logging.root.manager.disable, list(sys.argv), signal.getitimer(signal.ITIMER_REAL)[0] > 0, os.getpid(),
    )  # fmt: skip


async def test_settings_are_restored(make: Any) -> None:
    client = await make()
    before = await client.call(settings)
    for _ in range(2):
        assert await client.call(change_settings) == before[-1]
        assert await client.call(settings) == before


async def test_trace_function_of_a_thread_is_restored(make: Any) -> None:
    client = await make(slots=2, kind="thread")
    for _ in range(4):
        assert (await client.call(settings))[:2] == (None, None)
        await client.call(change_thread)


async def test_setting_of_an_import_stays(make: Any, tmp_path: Path) -> None:
    (tmp_path / "outrider_sets_timeout.py").write_text("import socket; socket.setdefaulttimeout(7)")

    def load() -> Any:
        sys.path.insert(0, str(tmp_path))
        import outrider_sets_timeout  # type: ignore[import-not-found]

        return outrider_sets_timeout

    class Imported:
        def __reduce__(self) -> tuple[Any, ...]:
            return load, ()

    client = await make()
    await client.call(len, ())
    await client.call(isinstance, Imported(), object)
    assert await client.call(socket.getdefaulttimeout) == 7
    assert await client.call(change_settings)
    assert await client.call(socket.getdefaulttimeout) == 7


# --- limits ----------------------------------------------------------------------------------------------------------


def change_priority() -> int:
    os.nice(1)
    return os.getpid()


def change_cpus() -> int:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return os.getpid()


def place() -> tuple[int, set[int]]:
    return os.nice(0), os.sched_getaffinity(0)


@pytest.mark.parametrize(
    "change",
    [
        change_priority,
        pytest.param(
            change_cpus,
            marks=pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs"),
        ),
    ],
)
async def test_lower_priority_and_fewer_cpus_end_with_the_process(make: Any, change: Callable[[], int]) -> None:
    client = await make()
    before = await client.call(place)
    pid = await client.call(change)
    assert await client.call(place) == before
    assert await client.call(os.getpid) != pid


# --- memory ----------------------------------------------------------------------------------------------------------


class Large:
    made: ClassVar[list[weakref.ref[Large]]] = []

    def __init__(self) -> None:
        self.made.append(weakref.ref(self))


def fail_with_large_local() -> None:
    gc.set_threshold(0)
    local = Large()  # noqa: F841
    error = ValueError("the error's own frame holds it")
    raise error


def large_left() -> tuple[int, int]:
    return len(Large.made), sum(each() is not None for each in Large.made)


@KINDS
async def test_locals_of_a_failed_task_are_freed(make: Any, kind: str) -> None:
    client = await make(slots=1 if kind == "process" else 2, kind=kind)
    await client.call(fail_with_large_local)
    assert await client.call(large_left) == (1, 0)


# --- threads ---------------------------------------------------------------------------------------------------------


def leave_thread(name: str, daemon: bool) -> int:
    threading.Thread(target=threading.Event().wait, name=name, daemon=daemon).start()
    return os.getpid()


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("left")]


async def test_daemon_thread_ends_with_its_process_and_is_reported(make: Any) -> None:
    client = await make()
    attempt = client.run(leave_thread, "left", True)
    pid = client.result(await client.answer(attempt))
    assert b"a daemon thread of this task still runs at its end (left)" in client.printed(attempt, 2)
    assert await client.call(names) == []
    assert await client.call(os.getpid) != pid


async def test_other_threads_stay(make: Any, tmp_path: Path) -> None:
    (tmp_path / "outrider_starts_thread.py").write_text(
        "import threading as t; t.Thread(target=t.Event().wait, name='left by an import', daemon=True).start()"
    )

    def leave_others() -> int:
        leave_thread("left, and no daemon", False)
        context.executor = concurrent.futures.ThreadPoolExecutor(1, "left by an executor")  # type: ignore[attr-defined]
        context.executor.submit(int).result()  # type: ignore[attr-defined]
        sys.path.insert(0, str(tmp_path))
        import outrider_starts_thread  # type: ignore[import-not-found]  # noqa: F401

        thread = threading.Thread(target=int, daemon=True)
        thread.start()
        thread.join()
        return os.getpid()

    client = await make()
    pid = await client.call(leave_others)
    assert await client.call(os.getpid) == pid
    assert len(await client.call(names)) == 3


async def test_daemon_thread_stays_in_a_process_with_a_setup(make: Any) -> None:
    client = await make()
    await client.call(lambda: context.run_setup(int))
    pid = await client.call(leave_thread, "left", True)
    assert await client.call(os.getpid) == pid


# --- event loops -----------------------------------------------------------------------------------------------------


def run_own_loop() -> int:
    return asyncio.run(asyncio.sleep(0, 1))


def close_current_loop() -> int:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.close()
    return 1


def use_current_loop() -> int:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 2))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="no process has an implicit loop any more")
@pytest.mark.parametrize("end", [run_own_loop, close_current_loop])
async def test_next_task_has_a_current_loop(make: Any, end: Callable[[], int]) -> None:
    client = await make()
    assert await client.call(use_current_loop) == 2
    assert await client.call(end) == 1
    assert await client.call(use_current_loop) == 2
