"""`stdout`, `stderr`, `silent`: one function's output is kept away, and nobody else's."""

import os
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import cloudpickle
import pytest

from outrider import InstanceInfo, SpecError, compute, silent, stderr, stdout
from outrider.engine.node import context
from outrider.engine.serialization.program import build

Printed = pytest.CaptureFixture[str]

_ZERO = "job node worker rank local_rank head_port accelerators total_accelerators generation"
_ONE = "total_nodes workers_per_node world_size local_world_size attempt"
INFO: dict[str, Any] = {
    **dict.fromkeys(_ZERO.split(), 0),
    **dict.fromkeys(_ONE.split(), 1),
    "pool": "p",
    "is_head": True,
    "head_addr": "h",
    "hostname": "h",
    "accelerator": None,
    "peers": [],
}


def nobody(_info: InstanceInfo) -> bool:
    return False


def test_only_the_head_prints(capsys: Printed) -> None:
    @stdout(only="head")
    def on_head() -> None:
        print("head")

    @stdout(only=lambda info: info.rank == 1)
    def on_one() -> None:
        print("one")

    on_head()
    on_one()
    assert capsys.readouterr().out == "head\n"


def test_streams_are_muted_one_by_one(capsys: Printed) -> None:
    def both() -> int:
        print("out")
        print("err", file=sys.stderr)
        return 5

    assert [stdout(only=nobody)(both)(), stderr(only=nobody)(both)(), silent(both)(), both()] == [5, 5, 5, 5]
    assert capsys.readouterr() == ("out\nout\n", "err\nerr\n")


def test_nothing_is_left_in_place_of_the_streams() -> None:
    before = sys.stdout, sys.stderr

    @silent
    def fail() -> None:
        raise ValueError("loud")

    with pytest.raises(ValueError, match="loud"):
        fail()
    assert (sys.stdout, sys.stderr) == before


def test_other_threads_go_on_printing(capsys: Printed) -> None:
    muted, printed = threading.Event(), threading.Event()

    @silent
    def quiet() -> None:
        muted.set()
        printed.wait(60)
        print("quiet")

    thread = threading.Thread(target=quiet)
    thread.start()
    muted.wait(60)
    print("other")
    printed.set()
    thread.join()
    assert capsys.readouterr().out == "other\n"


@pytest.mark.anyio
async def test_other_coroutines_go_on_printing(capsys: Printed) -> None:
    @silent
    async def quiet() -> None:
        for _ in range(3):
            print("quiet")
            await anyio.lowlevel.checkpoint()

    async def loud() -> None:
        for _ in range(3):
            print("loud")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(quiet)
        tasks.start_soon(loud)
    assert capsys.readouterr().out == "loud\n" * 3


@pytest.mark.anyio
async def test_a_generators_consumer_goes_on_printing(capsys: Printed) -> None:
    @silent
    def rows() -> Iterator[int]:
        try:
            for i in range(3):
                print("row")
                yield i
        finally:
            print("closed")

    @silent
    async def arows() -> AsyncIterator[int]:
        print("arow")
        yield 0

    for i in rows():
        print(f"got {i}")
        if i == 1:
            break
    async for i in arows():
        print(f"agot {i}")
    assert capsys.readouterr().out == "got 0\ngot 1\nagot 0\n"


def test_under_and_over_compute_are_the_same(capsys: Printed) -> None:
    @compute(timeout=3)
    @silent
    def under(x: int) -> int:
        print("under")
        return x

    @silent
    @compute(timeout=3)
    def over(x: int) -> int:
        print("over")
        return x

    for function in (under, over):
        assert (function.local(1), function.options.timeout_s, function.__name__) == (1, 3, function.function.__name__)
        assert pickle.loads(build(function))(lambda: ((2,), {})) == 2
        with pytest.raises(TypeError, match="missing 1 required"):
            function()  # type: ignore[call-arg]
    assert capsys.readouterr().out == ""


def test_the_kind_of_function_stays() -> None:
    @compute
    @silent
    def rows(source: Iterator[int]) -> Iterator[int]:
        yield from source

    assert list(rows.streamed) == ["source"]
    assert list(pickle.loads(build(rows))(lambda: ((iter([1, 2]),), {}))) == [1, 2]


def test_nested_mutes_end_one_by_one(capsys: Printed) -> None:
    @silent
    def inner() -> None:
        print("inner")

    @silent
    def outer() -> None:
        inner()
        print("outer")

    outer()
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_muted_functions_can_be_copied_to_another_process() -> None:
    @silent
    def rows() -> Iterator[int]:
        print("quiet")
        yield 1

    done = subprocess.run(
        [sys.executable, "-c", "import sys, pickle; print(list(pickle.load(sys.stdin.buffer)()))"],
        input=cloudpickle.dumps(rows),
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"[1]\n"


@pytest.mark.parametrize("wrong", ["tail", None, 3])
def test_only_takes_head_or_a_predicate(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r'stdout\(only=\.\.\.\) takes "head"'):
        stdout(only=wrong)


@pytest.fixture
def _alone() -> Iterator[None]:
    """As in a process worker."""
    context.enter(context.TaskContext(1, 1, 1, INFO), alone=True)
    yield
    context.leave()


@pytest.mark.usefixtures("_alone")
def test_the_last_of_several_that_overlap_ends_the_silence(capfd: Printed) -> None:
    @types.coroutine
    def pause() -> Iterator[None]:
        yield

    @silent
    async def quiet() -> None:
        await pause()

    first, second = quiet(), quiet()
    for step, running in (("both", first), ("both", second), ("one", first), ("none", second)):
        with suppress(StopIteration):
            running.send(None)
        os.write(1, step.encode())
    assert capfd.readouterr() == ("none", "")


IN_A_PROCESS_OF_ITS_OWN = """
import ctypes, os, subprocess, sys
from outrider import silent, stdout
from outrider.engine.node import context

libc = ctypes.CDLL(None)

def everything(word):
    print(word, "python", flush=True)
    print(word, "python, buffered")
    libc.printf(f"{word} C, buffered\\n".encode())
    os.write(1, f"{word} descriptor\\n".encode())
    subprocess.run(["echo", word, "child"], check=True)
    print(word, "error", file=sys.stderr)

context.enter(context.TaskContext(1, 1, 1, {**INFO}), alone=True)
everything("before")
stdout(only=lambda info: False)(everything)("muted")
everything("between")
silent(everything)("silent")
everything("after")
"""


def test_in_a_process_of_its_own_c_code_and_children_are_muted_too() -> None:
    code = IN_A_PROCESS_OF_ITS_OWN.replace("{**INFO}", repr(INFO))

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    for word in ("before", "between", "after"):
        assert sorted(line for line in done.stdout.splitlines() if line.startswith(word)) == sorted(
            [
                f"{word} python",
                f"{word} python, buffered",
                f"{word} C, buffered",
                f"{word} descriptor",
                f"{word} child",
            ]
        )
    assert "muted" not in done.stdout
    assert "silent" not in done.stdout
    assert done.stderr.split() == ["before", "error", "muted", "error", "between", "error", "after", "error"]
