"""A client's forked children (multiprocessing's, a data loader's workers): neither the pool's life nor theirs hangs on
the other's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 200.0
BEGINNING = """
import asyncio, os, signal, sys, time
from outrider import Local, Pool, PoolClosed, compute

@compute
def square(x):
    return x * x

def pool(name=None):
    return Pool(provider=Local(), nodes=1, console="silent", name=name)

def in_child(run):
    child = os.fork()
    if child == 0:
        try:
            run()
        except BaseException as error:
            print(type(error).__name__, *error.args, flush=True)
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a program: at the end nothing of it is left."""
    yield {**os.environ, "OUTRIDER_STATE": str(tmp_path)}
    until(lambda: not living(tmp_path))
    assert list(tmp_path.glob("local/*")) == []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def living(state: Path) -> list[int]:
    """By their environment: also those that have another parent by now."""
    mark, found = f"OUTRIDER_STATE={state}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


KILLED = """
async def main():
    async with pool() as it:
        await it.run(square(2))
        if os.fork() == 0:
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(600)
        time.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "its sockets alone"])
def test_the_pool_of_a_killed_client_ends_while_its_child_lives(
    pidfd: bool, environment: dict[str, str], tmp_path: Path
) -> None:
    without = "" if pidfd else "def no(*_): raise OSError\nos.pidfd_open = no\n"
    command = [sys.executable, "-c", BEGINNING + without + KILLED]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        child = int(client.stdout.readline())
        try:
            client.kill()
            client.wait()
            until(lambda: living(tmp_path) == [child])
            assert list(tmp_path.glob("local/*")) == []
        finally:
            os.kill(child, signal.SIGKILL)


def said(program: str, environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", BEGINNING + textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.splitlines()


def test_a_child_can_open_a_pool_of_its_own_and_the_parents_goes_on(environment: dict[str, str]) -> None:
    program = """
        def own():
            async def main():
                async with pool("same") as it:
                    print(await it.run(square(3)), flush=True)
            asyncio.run(main())

        async def main():
            async with pool("same") as it:
                print(await it.run(square(2)), flush=True)
                in_child(own)
                print(await it.run(square(4)), flush=True)
        asyncio.run(main())
        with pool("same") as it:
            in_child(own)
            print(it.run(square(5)), flush=True)
        """
    assert said(program, environment) == ["4", "9", "0", "16", "9", "0", "25"]


THEIRS = "PoolClosed The pool is of the process that this one was forked from: open another one here."


def test_a_child_cannot_use_its_parents_pool_and_is_told_so(environment: dict[str, str]) -> None:
    program = """
        with pool() as it:
            in_child(lambda: it.run(square(3)))
            in_child(lambda: it.submit(square(3)))
            print(it.run(square(2)), flush=True)

        async def main():
            async with pool() as it:
                in_child(lambda: it.submit(square(3)))
                in_child(lambda: it.snapshot())
                print(await it.run(square(2)), flush=True)
        asyncio.run(main())
        """
    assert said(program, environment) == [*[THEIRS, "1"] * 2, "4"] * 2


def test_a_child_that_leaves_its_parents_block_ends_nothing(environment: dict[str, str]) -> None:
    program = """
        with pool() as it:
            child = os.fork()
            if child != 0:
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), it.run(square(2)), flush=True)
        if child == 0:
            os._exit(7)

        async def main():
            async with pool() as it:
                child = os.fork()
                if child != 0:
                    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), await it.run(square(2)), flush=True)
            if child == 0:
                os._exit(7)
        asyncio.run(main())
        """
    assert said(program, environment) == ["7 4"] * 2
