"""What becomes of one task in a real worker, and of its processes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from outrider.engine.node import context
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.messages import Cause, RunFlag

pytestmark = pytest.mark.anyio


def double(x: int) -> int:
    return 2 * x


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- results ---------------------------------------------------------------------------------------------------------


async def test_a_task_returns_its_result(make: Any) -> None:
    client = await make()
    assert await client.call(double, 21) == 42


async def test_a_worker_is_kept_warm(make: Any) -> None:
    client = await make()
    assert await client.call(os.getpid) == await client.call(os.getpid)


async def test_slots_run_at_the_same_time(make: Any, tmp_path: Path) -> None:
    def meet(mine: str, other: str) -> bool:
        (tmp_path / mine).touch()
        deadline = time.monotonic() + 60
        while not (tmp_path / other).exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    client = await make(slots=2)
    first, second = client.run(meet, "a", "b"), client.run(meet, "b", "a")
    assert client.result(await client.answer(first))
    assert client.result(await client.answer(second))


async def test_a_thousand_short_tasks_each_answer_once(make: Any) -> None:
    client = await make(slots=2)
    attempts = [client.run(double, i) for i in range(1000)]
    assert [client.result(await client.answer(attempt)) for attempt in attempts] == [2 * i for i in range(1000)]
    assert sum(isinstance(x, m.Done) for x in client.heard) == 1000


async def test_short_tasks_do_not_stay_stuck_behind_a_long_one(make: Any, tmp_path: Path) -> None:
    def task(wait: bool) -> None:
        while wait and not (tmp_path / "go").exists():
            time.sleep(0.001)

    client = await make(slots=2)
    for _ in range(20):
        await client.call(task, False)
    long = client.run(task, True)
    others = [client.run(task, False) for _ in range(40)]
    for attempt in others:
        await client.answer(attempt)
    assert not client.of(long, m.Done)
    (tmp_path / "go").touch()
    await client.answer(long)


async def test_a_started_task_says_so_if_asked(make: Any) -> None:
    client = await make()
    attempt = client.run(double, 1, flags=RunFlag.ANNOUNCE)
    await client.answer(attempt)
    assert [type(x) for x in client.of(attempt, m.Started, m.Done)] == [m.Started, m.Done]


async def test_arguments_and_results_may_be_blobs(make: Any, bulk: Any) -> None:
    client = await make()
    data = os.urandom(300_000)
    dumped = values.dump(((data,), {}))
    whole = b"".join(dumped.parts)
    assert await bulk(client.server).ask(m.Put("in", len(whole)), whole) == m.Have("in", len(whole))
    done = await client.answer(client.run(bytes, args=m.Value(b"", dumped.sizes, "in")))
    assert done.value.blob == "b1"
    out = bulk(client.server)
    have = await out.ask(m.Get("b1"))
    assert isinstance(have, m.Have)
    await client.until(lambda: len(out.data) == have.size_bytes)
    assert values.load(out.data, done.value.sizes) == data
    client.send(m.Drop(("in", "b1")))
    assert await client.call(double, 1) == 2
    assert await bulk(client.server).ask(m.Get("b1")) == m.Missing("b1")


async def test_arrays_of_a_blob_are_writable_and_private(make: Any, bulk: Any) -> None:
    def overwrite(buffer: bytearray) -> int:
        first = buffer[0]
        buffer[0] = 99
        return first

    client = await make()
    dumped = values.dump(((_OutOfBand(bytearray(200_000)),), {}))
    whole = b"".join(dumped.parts)
    await bulk(client.server).ask(m.Put("in", len(whole)), whole)
    for _ in range(2):
        assert await client.call(overwrite, args=m.Value(b"", dumped.sizes, "in")) == 0


class _OutOfBand:
    """Pickled with its memory beside it, and back as that memory."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory

    def __reduce_ex__(self, _: Any) -> Any:
        import pickle

        return memoryview, (pickle.PickleBuffer(self.memory),)


async def test_on_one_host_blobs_go_by_path(make: Any) -> None:
    client = await make(same_host=True)
    mine = os.memfd_create("mine")
    dumped = values.dump((("x" * 100_000,), {}))
    os.write(mine, b"".join(dumped.parts))
    client.send(m.Adopt("in", f"/proc/{os.getpid()}/fd/{mine}", dumped.total))
    done = await client.answer(client.run(len, args=m.Value(b"", dumped.sizes, "in")))
    os.close(mine)
    assert client.result(done) == 100_000
    done = await client.answer(client.run(bytes, 100_000))
    assert values.load(Path(done.value.blob).read_bytes(), done.value.sizes) == bytes(100_000)
    client.send(m.Drop((done.value.blob,)))


async def test_a_function_may_be_a_blob(make: Any, bulk: Any) -> None:
    import cloudpickle

    load_length = cloudpickle.dumps(lambda load, big=bytes(2_000_000): len(big) + len(load()[0]))
    client = await make()
    await bulk(client.server).ask(m.Put("code", len(load_length)), load_length)
    client.send(m.Define(b"big", b"", "code"))
    assert await client.call(b"big", 1) == 2_000_001


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_an_exception_arrives_with_the_users_frames_alone(make: Any) -> None:
    def inner() -> None:
        raise KeyError("lost")

    client = await make()
    failed = await client.call(inner)
    assert (failed.phase, failed.kind, failed.message) == ("call", "KeyError", "'lost'")
    assert "in inner" in failed.traceback
    assert "executor/call.py" not in failed.traceback
    assert repr(values.load(failed.error.data)) == "KeyError('lost')"


async def test_an_exception_that_cannot_be_pickled_arrives_as_text(make: Any) -> None:
    def fail() -> None:
        held = threading.Lock()

        class WithLock(Exception):
            lock = held

        raise WithLock("with a lock")

    client = await make()
    failed = await client.call(fail)
    assert failed.kind.endswith("WithLock")
    assert (failed.message, failed.error) == ("with a lock", None)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("any")])
async def test_no_exception_ends_the_worker(make: Any, error: BaseException) -> None:
    def fail() -> None:
        raise error

    client = await make()
    pid = await client.call(os.getpid)
    assert (await client.call(fail)).kind == type(error).__name__
    assert await client.call(os.getpid) == pid


async def test_a_result_that_cannot_be_pickled_names_the_path(make: Any) -> None:
    def give() -> Any:
        return {"model": [1, threading.Lock()]}

    client = await make()
    failed = await client.call(give)
    assert failed.phase == "dump"
    assert "result['model'][1]" in failed.message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"function": b"nobody"}, "function 6e6f626f6479 was not defined on this node"),
        ({"args": m.Value(b"", (1,), "nothing")}, "blob 'nothing' is not on this node"),
        ({"args": m.Value(b"cnowhere\nthing\n.")}, "No module named 'nowhere'"),
        ({"args": m.Value(b"garbage")}, "pickle data was truncated"),
    ],
)
async def test_what_cannot_be_loaded_is_told_apart(make: Any, fields: dict[str, Any], message: str) -> None:
    client = await make()
    failed = await client.call(double, 1, **fields)
    assert failed.phase == "load"
    assert message in failed.message


async def test_text_that_is_not_utf8_survives(make: Any) -> None:
    def fail() -> None:
        raise ValueError("\udcff")

    client = await make()
    assert (await client.call(fail)).message == "\\udcff"


# --- ends ------------------------------------------------------------------------------------------------------------


def segfault() -> None:
    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("task", "cause", "code"),
    [
        (lambda: os._exit(3), Cause.EXIT, 3),
        (segfault, Cause.SIGNAL, signal.SIGSEGV),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), Cause.SIGNAL, signal.SIGKILL),
        (os.abort, Cause.SIGNAL, signal.SIGABRT),
    ],
    ids=["exit", "segfault", "kill", "abort"],
)
async def test_a_dead_process_ends_its_task_and_no_other(make: Any, task: Any, cause: Cause, code: int) -> None:
    client = await make()
    ended = await client.call(task)
    assert (ended.cause, ended.code) == (cause, code)
    assert await client.call(double, 4) == 8


async def test_a_task_that_runs_too_long_is_ended(make: Any) -> None:
    client = await make()
    ended = await client.call(time.sleep, 60, timeout_s=0.05)
    assert ended[:4] == m.Ended(1, Cause.TIMEOUT, 0, "")[:4]
    assert await client.call(double, 4) == 8


def nest(directory: str) -> None:
    """A child, a grandchild in a session of its own, and a daemon whose parents have gone."""
    script = (
        "import os, subprocess, sys, time\n"
        "open(sys.argv[1] + '/' + str(os.getpid()), 'w').close()\n"
        "if len(sys.argv) > 2:\n"
        "    subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]], start_new_session=True)\n"
        "    if sys.argv[3:]: sys.exit()\n"
        "time.sleep(60)\n"
    )
    subprocess.Popen([sys.executable, "-c", script, directory, script])
    subprocess.Popen([sys.executable, "-c", script, directory, script, "and leave"])
    time.sleep(60)


async def test_a_killed_tasks_whole_tree_is_gone_when_it_is_said(make: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    client = await make()
    attempt = client.run(nest, str(pids))
    deadline = time.monotonic() + 60
    while len(list(pids.iterdir())) < 4 and time.monotonic() < deadline:
        await client.turn()
    client.send(m.Kill(attempt))
    assert (await client.answer(attempt)).cause is Cause.KILLED
    assert len(list(pids.iterdir())) == 4
    assert not [file.name for file in pids.iterdir() if alive(int(file.name))]
    assert await client.call(double, 4) == 8


async def test_a_task_that_has_not_started_is_killed_without_a_process(make: Any, tmp_path: Path) -> None:
    client = await make()
    pid = await client.call(os.getpid)
    first = client.run(wait_for, tmp_path / "go")
    second = client.run(double, 1)
    client.send(m.Kill(second))
    assert (await client.answer(second)).cause is Cause.KILLED
    (tmp_path / "go").touch()
    await client.answer(first)
    assert await client.call(os.getpid) == pid


async def test_killing_what_has_been_answered_says_nothing(make: Any) -> None:
    client = await make()
    attempt = client.run(double, 1)
    await client.answer(attempt)
    client.send(m.Kill(attempt), m.Kill(1000))
    assert await client.call(double, 1) == 2
    assert len(client.of(attempt, m.Done, m.Ended)) == 1


async def test_recall_takes_back_what_has_not_started(make: Any, tmp_path: Path) -> None:
    client = await make()
    first = client.run(wait_for, tmp_path / "go")
    rest = [client.run(double, i) for i in range(3)]
    client.send(m.Recall((first, *rest)))
    assert (await client.expect(m.Returned)).attempts == tuple(rest)
    (tmp_path / "go").touch()
    await client.answer(first)
    assert await client.call(double, 1) == 2
    assert not client.of(rest[0], m.Done)


async def test_a_child_that_comes_back_from_a_task_speaks_for_nobody(make: Any) -> None:
    client = await make()
    attempt = client.run(os.fork)
    assert client.result(await client.answer(attempt)) > 0
    assert await client.call(double, 1) == 2
    assert len(client.of(attempt, m.Done, m.Failed, m.Ended)) == 1


async def test_a_fresh_task_has_a_process_of_its_own(make: Any, tmp_path: Path) -> None:
    def own() -> int:
        import atexit

        atexit.register(lambda: (tmp_path / "farewell").touch())
        return os.getpid()

    client = await make()
    warm = await client.call(os.getpid)
    fresh = [await client.call(own, flags=RunFlag.FRESH) for _ in range(2)]
    assert len({warm, *fresh}) == 3
    assert await client.call(os.getpid) == warm
    assert (tmp_path / "farewell").exists()
    assert not alive(fresh[0])


# --- surroundings ----------------------------------------------------------------------------------------------------


async def test_the_environment_is_set_before_the_first_task(make: Any, tmp_path: Path) -> None:
    client = await make(env={"COLOUR": "blue", "PYTHONPATH": "/somewhere"})
    assert await client.call(os.getenv, "COLOUR") == "blue"
    assert await client.call(os.getcwd) == str(tmp_path / "work")
    assert (await client.call(lambda: sys.path))[0] == "/somewhere"


async def test_a_worker_inherits_nothing(make: Any) -> None:
    def descriptors() -> list[str]:
        found = []
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
            try:
                found.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
            except FileNotFoundError:
                continue
        return sorted(link.partition(":")[0] for link in found)

    client = await make(slots=2)
    assert await client.call(descriptors) == [
        "/dev/null",
        "/memfd",
        "/memfd",
        "pipe",
        "pipe",
        "pipe",
        "pipe",
        "socket",
        "socket",
    ]  # the file of its stacks, which it has mapped as well; stdout and stderr, twice each; its own pipe; its log's


async def test_a_task_knows_where_it_runs(make: Any) -> None:
    def where() -> tuple[Any, Any]:
        task = context.current()
        assert task is not None
        return task.info, json.loads(os.environ["COMPUTE_POOL"])

    client = await make(slots=1)
    client.send(m.View(msgpack.packb({"pool": "p", "node": 2, "total_nodes": 3})))
    info, variable = await client.call(where, job=9, number=2)
    assert info == variable
    assert {k: info[k] for k in ("pool", "node", "total_nodes", "job", "attempt", "rank", "world_size", "is_head")} == {
        "pool": "p", "node": 2, "total_nodes": 3, "job": 9, "attempt": 2, "rank": 0, "world_size": 1, "is_head": True,
    }  # fmt: skip
    assert info["head_port"] > 0
    world = msgpack.packb({"rank": 1, "world_size": 4, "is_head": False, "generation": 5, "head_port": 1})
    info, variable = await client.call(where, world=world)
    assert info == variable
    assert (info["rank"], info["world_size"], info["generation"], info["node"]) == (1, 4, 5, 2)


async def test_threads_of_a_task_are_in_it(make: Any) -> None:
    def ask() -> int | None:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(context.current()))
        thread.start()
        thread.join()
        return found[0].job if found[0] else None

    client = await make()
    assert await client.call(ask, job=11) == 11
    assert context.current() is None


# --- the pipe between executor server and worker ----------------------------------------------------------------------


async def test_what_is_too_large_for_the_pipe_reaches_the_worker_all_the_same(make: Any) -> None:
    def peers() -> tuple[int, int]:
        task = context.current()
        assert task is not None
        return len(task.info["peers"]), len(task.info["pool"])

    client = await make()
    many = [{"rank": rank, "hostname": "h" * 100} for rank in range(3000)]
    client.send(m.View(msgpack.packb({"pool": "p" * 300_000})))
    assert await client.call(peers, world=msgpack.packb({"peers": many})) == (3000, 300_000)


async def test_messages_wait_for_a_worker_that_does_not_read(make: Any) -> None:
    client = await make()
    pid = await client.call(os.getpid)
    os.kill(pid, signal.SIGSTOP)
    attempt = client.run(sum_of_lengths, context.Input(0), flags=RunFlag.ALONE)
    for _ in range(40):
        client.send(m.Input(attempt, 0, values.inline(values.dump(bytes(60_000)))))
    client.send(m.Input(attempt, 0, None))
    await client.turn()
    os.kill(pid, signal.SIGCONT)
    assert client.result(await client.answer(attempt)) == 2_400_000


def sum_of_lengths(items: Any) -> int:
    return sum(map(len, items))


async def test_user_code_that_writes_into_the_pipe_harms_nobody(make: Any) -> None:
    def scribble() -> int:
        written = 0
        for fd in range(3, 64):
            try:
                pipe = stat.S_ISSOCK(os.fstat(fd).st_mode)
            except OSError:
                continue
            for data in (b"\xc1", b"garbage", bytes(1)) if pipe else ():
                with suppress(OSError):  # the socket of logs is connected to none: see the test of datagrams below
                    written += os.write(fd, data)
        return written

    client = await make()
    assert await client.call(scribble) > 0
    assert await client.call(double, 2) == 4


async def test_user_code_that_writes_into_the_socket_of_logs_harms_nobody(make: Any) -> None:
    datagrams = (b"", b"\xc1", b"garbage", bytes(1), b"{", b"[]", b'{"values": 3}', b"{}\n{}")

    def scribble(datagrams: tuple[bytes, ...]) -> int:
        path, written = os.environ["OUTRIDER_LOG"], 0
        for fd in range(3, 64):
            try:
                ours = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            with ours:
                if ours.getsockname() == path:  # the worker's own descriptor of it
                    written += sum(ours.sendto(data, path) for data in datagrams)
        return written

    client = await make()
    assert await client.call(scribble, datagrams) == sum(map(len, datagrams))
    assert await client.call(double, 2) == 4
